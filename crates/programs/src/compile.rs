//! Compiles a source in C to a WebAssembly module, with clang and lld.

use crate::manifest::{Bad, Manifest};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest source, in bytes.
pub const MAX_SOURCE: u64 = 1 << 20;
/// Most of the compiler's messages that an error quotes, in bytes.
const MAX_MESSAGES: usize = 8 * 1024;
/// Stack of a program, which is small because functions are inlined and the state is elsewhere.
const STACK: u32 = 8 * 1024;

/// Why a source could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A tool is missing.
    #[error("cannot run {tool}: {error}; install clang and lld (Debian: `apt-get install clang lld`)")]
    Tool {
        /// The program that could not be run.
        tool: &'static str,
        /// Why.
        error: io::Error,
    },
    /// The compiler or the linker refused it.
    #[error("{path} does not compile:\n{messages}", path = path.display())]
    Refused {
        /// The source.
        path: PathBuf,
        /// What they said.
        messages: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The source compiles, but its manifest is invalid.
    #[error("{path}: {bad}", path = path.display())]
    Manifest {
        /// The source.
        path: PathBuf,
        /// What is wrong.
        bad: Bad,
    },
}

/// Writes `opencc.h` and `opencc_window.h` into a folder, for editors and for other tools.
///
/// # Errors
/// [`BuildError::File`].
pub fn write_headers(folder: &Path) -> Result<(), BuildError> {
    for (name, text) in [("opencc.h", crate::HEADER), ("opencc_window.h", crate::WINDOW_HEADER)] {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| BuildError::File { path, error })?;
    }
    Ok(())
}

/// Compiles the program in `source` into a WebAssembly module, `wasm`. It uses the headers of this library, after
/// those beside the source.
///
/// # Errors
/// Any [`BuildError`].
pub fn wasm(source: &Path, wasm: &Path) -> Result<Manifest, BuildError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |error| BuildError::File { path, error }
    };
    let length = std::fs::metadata(source).map_err(file(source))?.len();
    if length > MAX_SOURCE {
        let error = io::Error::other(format!("{length} bytes are more than the {MAX_SOURCE} that are read"));
        return Err(BuildError::File { path: source.to_owned(), error });
    }
    let folder = tempfile::tempdir().map_err(file(&std::env::temp_dir()))?;
    write_headers(folder.path())?;
    let output = Command::new("clang")
        .args(["--target=wasm32", "-std=gnu11", "-O2", "-mbulk-memory", "-ffreestanding", "-nostdlib"])
        .args(["-Wall", "-Wextra", "-fno-ident"])
        .arg("-I")
        .arg(folder.path())
        .args(["-Wl,--no-entry", "-Wl,--strip-debug"])
        .arg(format!("-Wl,-z,stack-size={STACK}"))
        .arg(format!("-Wl,--max-memory={}", crate::MAX_MEMORY))
        .arg("-o")
        .args([wasm, source])
        .output()
        .map_err(|error| BuildError::Tool { tool: "clang", error })?;
    if !output.status.success() {
        let shown = &output.stderr[..output.stderr.len().min(MAX_MESSAGES)];
        let messages = String::from_utf8_lossy(shown).into_owned();
        if messages.contains("wasm-ld") && messages.contains("unable to execute") {
            let error = io::Error::new(io::ErrorKind::NotFound, "clang does not find it");
            return Err(BuildError::Tool { tool: "wasm-ld", error });
        }
        return Err(BuildError::Refused { path: source.to_owned(), messages });
    }
    let module = std::fs::read(wasm).map_err(file(wasm))?;
    Manifest::of_wasm(&module).map_err(|bad| {
        // A module that cannot be loaded is deleted.
        let _ = std::fs::remove_file(wasm);
        BuildError::Manifest { path: source.to_owned(), bad }
    })
}
