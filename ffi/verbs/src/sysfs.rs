//! Files of `/sys` that programs look at beside the library's functions.

use crate::device::{NAME, gids, to_gid};
use core::ffi::{CStr, c_char, c_int};

/// What a file says. `None`: there is none.
fn text(path: &str) -> Option<String> {
    let path = path.strip_prefix("/sys/").unwrap_or(path);
    match path {
        "class/misc/rdma_cm/abi_version" => return Some("4\n".into()),
        "class/infiniband_verbs/abi_version" => return Some("6\n".into()),
        _ => {}
    }
    let file = path.strip_prefix("class/infiniband/")?.strip_prefix(NAME)?.strip_prefix('/')?;
    let of_gid = |rest: &str| gids().get(rest.parse::<usize>().ok()?).copied();
    let Some(file) = file.strip_prefix("ports/1/") else {
        return matches!(file, "node_type").then(|| "1: CA\n".into());
    };
    if let Some(rest) = file.strip_prefix("gid_attrs/types/") {
        return of_gid(rest).map(|_| "RoCE v2\n".into());
    }
    if let Some(rest) = file.strip_prefix("gid_attrs/ndevs/") {
        return of_gid(rest).and_then(|(_, index)| Some(interface(index)? + "\n"));
    }
    if let Some(rest) = file.strip_prefix("gids/") {
        let raw = to_gid(of_gid(rest)?.0).raw;
        let words: Vec<_> =
            raw.chunks(2).map(|w| w.iter().map(|b| format!("{b:02x}")).collect::<String>()).collect();
        return Some(words.join(":") + "\n");
    }
    let known = match file {
        "link_layer" => "Ethernet\n",
        "state" => "4: ACTIVE\n",
        "phys_state" => "5: LinkUp\n",
        "rate" => "100 Gb/sec (4X EDR)\n",
        "pkeys/0" => "0xffff\n",
        "lid" | "sm_lid" | "lid_mask_count" => "0x0\n",
        _ => return None,
    };
    Some(known.into())
}

/// The name of a network interface.
fn interface(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: a buffer of the size that the function asks for, which it ends with a zero.
    unsafe {
        let found = libc::if_indextoname(index, name.as_mut_ptr());
        if found.is_null() { None } else { Some(CStr::from_ptr(found).to_str().ok()?.to_owned()) }
    }
}

/// # Safety
/// `path` is null or ends with a zero; `out` has `size` bytes.
unsafe fn copy(path: &str, out: *mut c_char, size: usize) -> Option<usize> {
    let text = text(path)?;
    let n = text.len().min(size);
    // SAFETY: `n` is not above `size`.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), out.cast::<u8>(), n) };
    Some(n)
}

/// For the preloaded object: copies what a file of `/sys` says; -1 when it is none of ours.
#[unsafe(no_mangle)]
unsafe extern "C" fn lh_longhaul_sysfs(path: *const c_char, out: *mut c_char, size: usize) -> isize {
    let run = || {
        // SAFETY: the caller's, which ends with a zero.
        let path = unsafe { CStr::from_ptr(path) }.to_str().ok()?;
        // SAFETY: the caller's buffer.
        unsafe { copy(path, out, size) }
    };
    let copied = if path.is_null() { None } else { std::panic::catch_unwind(run).ok().flatten() };
    copied.map_or(-1, |n| n as isize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lh_ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: usize,
) -> c_int {
    let run = || {
        let part = |p: *const c_char| {
            // SAFETY: the caller's, which ends with a zero.
            if p.is_null() { Some("") } else { unsafe { CStr::from_ptr(p) }.to_str().ok() }
        };
        let path = format!("{}/{}", part(folder)?, part(file)?);
        // SAFETY: the caller's buffer, in which a zero follows the text.
        unsafe {
            let n = copy(path.trim_start_matches('/'), out, size.checked_sub(1)?)?;
            let n = n - usize::from(n > 0 && *out.add(n - 1) == b'\n' as c_char);
            *out.add(n) = 0;
            Some(n as c_int)
        }
    };
    std::panic::catch_unwind(run).ok().flatten().unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_device_have_what_programs_look_for() {
        assert_eq!(text("/sys/class/misc/rdma_cm/abi_version").as_deref(), Some("4\n"));
        let port = "/sys/class/infiniband/longhaul0/ports/1/";
        let of = |file: &str| text(&format!("{port}{file}"));
        assert_eq!(of("link_layer").as_deref(), Some("Ethernet\n"));
        assert_eq!(of("gid_attrs/types/0").as_deref(), Some("RoCE v2\n"));
        assert!(of("gid_attrs/ndevs/0").is_some_and(|name| name.len() > 1));
        assert!(of("gids/0").is_some_and(|gid| gid.len() == 40));
        for none in ["gids/99", "gids/x", "gid_attrs/types/", "../../../etc/passwd", "gids/"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(text("/sys/class/infiniband/mlx5_0/ports/1/link_layer"), None);
    }
}
