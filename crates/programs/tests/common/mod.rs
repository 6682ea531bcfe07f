//! Programs for tests: built from C where clang is there, and put together by hand.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod bad;

use cc::registry;
use longhaul_programs::compile::{self, BuildError};
use longhaul_programs::{Options, load_bytes};
use std::path::{Path, PathBuf};

/// The folder of the shipped programs.
pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Builds a source; `None`, and says that the test is skipped, where there is no compiler.
pub fn build(source: &Path) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let wasm = folder.path().join("program.wasm");
    match compile::wasm(source, &wasm) {
        Ok(_) => Some(std::fs::read(&wasm).unwrap()),
        Err(e @ BuildError::Tool { .. }) => {
            println!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// Builds a source that is a text.
pub fn build_text(text: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    std::fs::write(&source, text).unwrap();
    build(&source)
}

/// Builds a shipped program and loads it.
pub fn load_shipped(file: &str) -> Option<&'static registry::Definition> {
    let module = build(&shipped(file))?;
    Some(load_bytes(&module, &Options::default()).unwrap())
}

/// A module put together by hand.
pub struct Parts {
    pub manifest: String,
    /// 64 KiB pages.
    pub memory: u64,
    pub imports: bool,
    pub exports: Vec<&'static str>,
    /// What `oc_io` returns.
    pub io: i64,
    /// Code of the callbacks.
    pub code: Vec<u8>,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts {
            manifest: "abi\t1\t\nname\tby-hand\t\n".to_owned(),
            memory: 1,
            imports: false,
            exports: vec!["oc_io", "oc_init", "oc_feedback", "oc_event"],
            io: 1_024,
            // i32.const 1024, i64.const 1000000, i64.store; and the same number as bound.
            code: vec![
                0x41, 0x80, 0x08, 0x42, 0xc0, 0x84, 0x3d, 0x37, 3, 0, 0x41, 0x80, 0x08, 0x42, 0xc0, 0x84,
                0x3d, 0x37, 3, 8,
            ],
        }
    }
}

impl Parts {
    /// Its bytes (WebAssembly core specification, 5.5).
    pub fn module(&self) -> Vec<u8> {
        let mut out = b"\0asm\x01\0\0\0".to_vec();
        // Types () -> () and () -> i32.
        section(&mut out, 1, &[2, 0x60, 0, 0, 0x60, 0, 1, 0x7f]);
        let first = u8::from(self.imports);
        if self.imports {
            section(&mut out, 2, b"\x01\x03env\x04exit\x00\x00");
        }
        section(&mut out, 3, &[2, 1, 0]);
        let mut memory = vec![1, 0];
        leb(&mut memory, self.memory);
        section(&mut out, 5, &memory);
        let mut exports = vec![self.exports.len() as u8 + 1, 6];
        exports.extend(b"memory\x02\x00");
        for name in &self.exports {
            exports.push(name.len() as u8);
            exports.extend(name.as_bytes());
            exports.extend([0, first + u8::from(*name != "oc_io")]);
        }
        section(&mut out, 7, &exports);
        let mut place = vec![0, 0x41];
        signed(&mut place, self.io);
        place.push(0x0b);
        let mut code = vec![2];
        for body in [place, [&[0], &self.code[..], &[0x0b]].concat()] {
            leb(&mut code, body.len() as u64);
            code.extend(body);
        }
        section(&mut out, 10, &code);
        section(&mut out, 0, &[&[6], &b"opencc"[..], self.manifest.as_bytes()].concat());
        out
    }
}

fn section(out: &mut Vec<u8>, id: u8, body: &[u8]) {
    out.push(id);
    leb(out, body.len() as u64);
    out.extend(body);
}

fn leb(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn signed(out: &mut Vec<u8>, mut n: i64) {
    loop {
        let byte = (n & 0x7f) as u8;
        n >>= 7;
        if (n == 0 && byte & 0x40 == 0) || (n == -1 && byte & 0x40 != 0) {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}
