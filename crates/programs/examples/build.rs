//! Rebuilds the shipped programs and the example of the guide: `cargo xtask programs`. Needs clang and lld.

use longhaul_programs::{compile, shipped};
use std::path::Path;
use std::process::Command;

fn main() -> Result<(), String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("programs/built");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (name, ..) in shipped::BUILT {
        let source = match shipped::source(name) {
            Some(_) => here.join("programs").join(name).with_extension("c"),
            None => here.join("../../docs/examples").join(name).with_extension("c"),
        };
        let text = std::fs::read_to_string(&source).map_err(|e| format!("{}: {e}", source.display()))?;
        let wasm = folder.join(name).with_extension("wasm");
        compile::wasm(&source, &wasm).map_err(|e| e.to_string())?;
        let from = wasm.with_extension("from");
        std::fs::write(&from, shipped::fingerprint(&text) + "\n")
            .map_err(|e| format!("{}: {e}", from.display()))?;
        println!("{}", wasm.display());
    }
    let version = Command::new("clang").arg("--version").output().map_err(|e| format!("clang: {e}"))?;
    let version = String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default().to_owned();
    let file = folder.join("compiler");
    std::fs::write(&file, version + "\n").map_err(|e| format!("{}: {e}", file.display()))
}
