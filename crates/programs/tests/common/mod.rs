//! Programs for tests: built from C where clang is available, and assembled by hand elsewhere.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod bad;
pub mod parts;

use cc::registry;
use longhaul_programs::compile::{self, BuildError};
use longhaul_programs::{Options, load_bytes};
use std::path::{Path, PathBuf};

/// The source of a shipped program.
pub fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Builds a source; `None`, with a message that the test is skipped, where there is no compiler.
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

/// Builds a source given as text.
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
