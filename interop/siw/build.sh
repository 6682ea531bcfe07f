#!/bin/bash
# build.sh CACHE OUT: builds OUT/vmlinux and OUT/initramfs.cpio, a guest with the kernel's own siw, from Debian 12's packages.
#
# Debian turns siw off; here it is compiled, unmodified, from Debian's own kernel source against Debian's own kernel.
# CACHE keeps what was downloaded. Nothing is installed and nothing outside the two folders is changed.
# Needs: apt-get with Debian 12's package lists, and the programs that `cargo xtask interop` looks for.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(mkdir -p "$1" && cd "$1" && pwd)
out=$(mkdir -p "$2" && cd "$2" && pwd)
jobs=$(nproc)
# As root all the way: its helper user could not write into the cache.
apt_get() { apt-get -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root "$@"; }

source_version=6.1
# The kernel that Debian 12 has now: older ones are not kept in its archive.
abi=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-//p')
[ -n "$abi" ] || { echo "apt knows no linux-image-amd64: are Debian's package lists there?" >&2; exit 1; }
[ "${abi#"$source_version".}" != "$abi" ] || { echo "this is for Debian 12, whose kernel is $source_version; here it is $abi" >&2; exit 1; }
kernel_packages="linux-image-$abi linux-headers-$abi linux-headers-${abi%-amd64}-common linux-kbuild-$source_version"
programs="rping ucmatose rdma_client rdma_server rstream riostream ib_write_bw ib_read_bw ib_send_bw ib_send_lat"
user_packages="rdmacm-utils perftest rdma-core ibverbs-providers libibverbs1 librdmacm1 libibumad3 libnl-3-200
    libnl-route-3-200 libpci3 libmnl0 libbpf1 libelf1 libcap2 libxtables12 libtirpc3 libc6 iproute2 busybox-static
    zlib1g libudev1 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 libcom-err2 libssl3
    libdb5.3 libselinux1 libpcre2-8-0 libgcc-s1 libibverbs-dev librdmacm-dev"

# ---- packages

mkdir -p "$cache/debs"
cd "$cache/debs"
missing=()
for package in $kernel_packages $user_packages; do
    compgen -G "${package}_*.deb" >/dev/null || missing+=("$package")
done
[ ${#missing[@]} = 0 ] || apt_get download "${missing[@]}"

work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
for package in $kernel_packages; do dpkg -x "${package}"_*.deb "$work/kernel"; done
for package in $user_packages; do dpkg -x "${package}"_*.deb "$work/user"; done

# ---- siw.ko. Of the kernel's source, which is large, only siw's folder is kept.

version=$(apt-cache show --no-all-versions "linux-source-$source_version" | sed -n 's/^Version: //p')
siw=$cache/siw-$version
if [ ! -d "$siw" ]; then
    (cd "$work" && apt_get download "linux-source-$source_version")
    mkdir "$work/source"
    dpkg --fsys-tarfile "$work"/linux-source-*.deb | tar xO "./usr/src/linux-source-$source_version.tar.xz" |
        xz -dc -T0 | tar x -C "$work/source" --strip-components=5 "linux-source-$source_version/drivers/infiniband/sw/siw"
    rm "$work"/linux-source-*.deb
    mv "$work/source" "$siw"
fi
cp -r "$siw" "$work/siw"
headers=$work/kernel/usr/src/linux-headers-$abi
sed -i "s#include /usr/src#include $work/kernel/usr/src#" "$headers/Makefile"
make -s -j"$jobs" -C "$headers" M="$work/siw" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES= modules
strip --strip-debug "$work/siw/siw.ko"
modules=$work/kernel/lib/modules/$abi
install -D "$work/siw/siw.ko" "$modules/kernel/drivers/infiniband/sw/siw/siw.ko"
depmod -b "$work/kernel" "$abi"

# ---- the root file system

root=$work/root
lib=usr/lib/x86_64-linux-gnu
mkdir -p "$root"/{bin,lib/x86_64-linux-gnu,lib64,usr/bin,$lib/libibverbs,etc/libibverbs.d,proc,sys,dev,tmp,run,modules}
cp "$work/user/bin/busybox" "$root/bin/"
for applet in $("$root/bin/busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done

for module in virtio_pci virtio_net crc32c_intel crc32c_generic rdma_cm rdma_ucm ib_uverbs siw sch_netem; do
    modprobe -d "$work/kernel" -S "$abi" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file"
done > "$root/modules/order"

for program in $programs; do cp "$work/user/usr/bin/$program" "$root/usr/bin/"; done
gcc-12 -O1 -Wall -I "$work/user/usr/include" -o "$root/usr/bin/solicited" "$here/solicited.c" \
    -L "$work/user/$lib" -Wl,--allow-shlib-undefined -lrdmacm -libverbs
for program in bin/ip bin/ss sbin/tc usr/sbin/tc usr/bin/rdma sbin/rdma; do
    [ ! -f "$work/user/$program" ] || cp -L --remove-destination "$work/user/$program" "$root/bin/"
done
cp "$work/user/$lib"/libibverbs/libsiw-*.so "$root/$lib/libibverbs/"
cp "$work/user/etc/libibverbs.d/siw.driver" "$root/etc/libibverbs.d/"
cp -r "$work/user/usr/lib/tc" "$root/usr/lib/" 2>/dev/null || true

# Libraries, found with the loader and the libraries of the packages, whatever the host has.
loader=$work/user/lib64/ld-linux-x86-64.so.2
path=$work/user/lib/x86_64-linux-gnu:$work/user/$lib
for file in "$root"/usr/bin/* "$root"/bin/{ip,ss,tc,rdma} "$root/$lib"/libibverbs/*; do
    "$loader" --library-path "$path" --list "$file" | awk '$3 ~ /^\// { print $3 }'
done | sort -u | while read -r file; do cp -L "$file" "$root/lib/x86_64-linux-gnu/"; done
cp -L "$work/user/lib/x86_64-linux-gnu/libgcc_s.so.1" "$root/lib/x86_64-linux-gnu/" # loaded when a thread ends
cp -L "$loader" "$root/lib64/"
install -m 755 "$here/init" "$root/init"
echo 'root:x:0:0:root:/:/bin/sh' > "$root/etc/passwd"
printf '127.0.0.1 localhost\n' > "$root/etc/hosts"
(cd "$root" && find . | cpio -o -H newc --quiet) > "$out/initramfs.cpio"

# ---- the kernel, unpacked: decompressing is slow in an emulated machine

image=$work/kernel/boot/vmlinuz-$abi
word() { od -An -t u"$2" -j "$1" -N "$2" "$image" | tr -d ' '; }
# Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length.
start=$((($(word $((0x1f1)) 1) + 1) * 512 + $(word $((0x248)) 4)))
length=$(word $((0x24c)) 4)
dd if="$image" of="$work/payload" iflag=skip_bytes,count_bytes skip="$start" count="$length" bs=1M status=none
case $(od -An -t x1 -N 4 "$work/payload" | tr -d ' ') in
fd377a58) xz -dc --single-stream < "$work/payload" > "$out/vmlinux" || [ -s "$out/vmlinux" ] ;;
1f8b*) gzip -dc < "$work/payload" > "$out/vmlinux" || [ -s "$out/vmlinux" ] ;;
*) cp "$image" "$out/vmlinux" ;;
esac
echo "guest: Linux $abi with siw of $version, $(du -shL "$out" | cut -f1)"
