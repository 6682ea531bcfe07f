//! Tests that the shipped modules are those that their sources give.

mod common;

use common::build;
use longhaul_programs::{Options, load_bytes, shipped};
use std::path::{Path, PathBuf};

fn source(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = if shipped::source(name).is_some() { "programs" } else { "../../docs/examples" };
    here.join(folder).join(name).with_extension("c")
}

#[test]
fn shipped_modules_match_the_fingerprints_of_their_sources() {
    for (name, _, from) in shipped::BUILT {
        let text = std::fs::read_to_string(source(name)).unwrap();
        let now = shipped::fingerprint(&text);
        assert_eq!(
            from.trim(),
            now,
            "{name}.c or a header has changed: run `cargo xtask programs`, and commit what it builds"
        );
    }
    assert!(shipped::SHIPPED.iter().all(|(name, _)| shipped::module(name).is_some()));
}

#[test]
fn shipped_modules_load_without_a_compiler() {
    for (name, module, _) in shipped::BUILT {
        let loaded = load_bytes(module, &Options::default()).unwrap();
        assert_eq!(loaded.name.strip_suffix("-c").unwrap_or(loaded.name), *name);
        assert_eq!(shipped::module(loaded.name), Some(*module));
    }
    assert_eq!(shipped::module("unheard-of"), None);
}

/// The same compiler version gives the same bytes as committed.
#[test]
fn rebuilding_gives_the_same_bytes() {
    let version = std::process::Command::new("clang").arg("--version").output();
    let version = version.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let by = include_str!("../programs/built/compiler").trim();
    if version.lines().next().unwrap_or_default() != by {
        println!("skipped: the shipped modules were built by {by}");
        return;
    }
    for (name, module, _) in shipped::BUILT {
        let Some(again) = build(&source(name)) else { return };
        assert!(again == *module, "{name}.wasm is not what {name}.c makes: run `cargo xtask programs`");
    }
}
