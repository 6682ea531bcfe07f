//! Compiles a program's source to a BPF object with clang.

use super::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The text of `opencc_bpf.h`, which adapts a program written against `opencc.h` to the kernel's `tcp_congestion_ops`.
pub const TCP_HEADER: &str = include_str!("../include/opencc_bpf.h");

/// Names a compiler; `clang` if it is not set.
const COMPILER: &str = "LONGHAUL_CLANG";
/// Names of the compiler that Debian has, the plain one first.
const COMPILERS: &[&str] = &["clang", "clang-19", "clang-16", "clang-14"];
/// Lines of what the compiler said that are shown.
const MAX_LINES_SHOWN: usize = 40;

/// A C header that the source may include: its file name and its text.
pub type Header<'a> = (&'a str, &'a str);

/// Compiles the program in `source` (a path) for the kernel's TCP. `headers` are found by `#include "NAME"`; [`TCP_HEADER`] need not
/// be among them.
///
/// # Errors
/// [`Error::NoClang`], [`Error::Compile`] with the compiler's output, or [`Error::Io`].
pub fn build(source: &Path, headers: &[Header<'_>]) -> Result<Vec<u8>, Error> {
    run(source, headers, &[])
}

/// Like [`build`], but the program also records each of its calls (see [`Attached::next_record`](super::Attached::next_record)).
///
/// # Errors
/// As [`build`].
pub fn build_traced(source: &Path, headers: &[Header<'_>]) -> Result<Vec<u8>, Error> {
    run(source, headers, &["-DOPENCC_TRACE"])
}

fn run(source: &Path, headers: &[Header<'_>], more: &[&str]) -> Result<Vec<u8>, Error> {
    let folder = tempfile::tempdir().map_err(Error::io("cannot make a temporary folder"))?;
    for (name, text) in headers.iter().chain(&[("opencc_bpf.h", TCP_HEADER)]) {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map_err(Error::io(format!("cannot write {}", path.display())))?;
    }
    let out = folder.path().join("program.o");
    let arguments = |compiler: &str| {
        let mut c = Command::new(compiler);
        // -mcpu=v3: 32-bit arithmetic and all jumps, Linux 5.1. Functions of the program are meant to be inlined.
        c.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-std=gnu11", "-nostdinc", "-Wall"])
            .args(["-Wno-unused-function", "-mllvm", "-inline-threshold=100000", "-fno-ident"])
            .args(more)
            .arg(prefix_map(source))
            .arg("-I")
            .arg(folder.path())
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(&out);
        c
    };
    let done = first_there(arguments)?;
    if !done.status.success() {
        let text = String::from_utf8_lossy(&done.stderr);
        let text = text.lines().take(MAX_LINES_SHOWN).collect::<Vec<_>>().join("\n");
        return Err(Error::Compile { file: source.display().to_string(), text });
    }
    std::fs::read(&out).map_err(Error::io("cannot read what the compiler made"))
}

/// The object does not depend on the folder that it was built in.
fn prefix_map(source: &Path) -> OsString {
    let folder: PathBuf = source.parent().map(Path::to_path_buf).unwrap_or_default();
    let mut out = OsString::from("-fdebug-prefix-map=");
    out.push(folder);
    out.push("=.");
    out
}

fn first_there(command: impl Fn(&str) -> Command) -> Result<Output, Error> {
    let named = std::env::var(COMPILER).ok();
    let names: Vec<&str> = named.as_deref().map_or_else(|| COMPILERS.to_vec(), |n| vec![n]);
    for name in names {
        match command(name).output() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            done => return done.map_err(Error::io(format!("cannot run {name}"))),
        }
    }
    Err(Error::NoClang)
}
