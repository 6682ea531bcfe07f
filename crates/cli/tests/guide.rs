//! The example of an algorithm. The guides themselves are followed by `cargo xtask guides`.

use std::path::Path;
use std::process::Command;

/// Runs a block in a folder, each line as one types it.
fn type_in(block: &str, folder: &Path) {
    let bin = Path::new(env!("CARGO_BIN_EXE_longhaul")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for line in block.lines() {
        let out =
            Command::new("sh").args(["-c", line]).current_dir(folder).env("PATH", &path).output().unwrap();
        let said =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        println!("$ {line}\n{said}");
        assert!(out.status.success(), "{line}: {said}");
    }
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

#[test]
fn example_of_the_guide_builds_and_passes() {
    if !is_there("clang") || !is_there("wasm-ld") {
        println!("skipped: clang and lld are not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/gradient.c");
    std::fs::copy(source, folder.path().join("gradient.c")).unwrap();
    type_in(
        "longhaul cc build gradient.c\nlonghaul cc test --json gradient.wasm:gain=8 > card.json",
        folder.path(),
    );
    let card: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("card.json")).unwrap()).unwrap();
    assert_eq!((&card["algorithm"], &card["passed"]), (&"gradient:gain=8".into(), &true.into()));
    assert!(card["rows"].as_array().unwrap().len() >= 15, "{card}");
}
