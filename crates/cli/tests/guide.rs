//! The guide for writing an algorithm, followed to the letter: its files are written, its commands run.

use std::path::Path;
use std::process::Command;

/// The code blocks of a text in Markdown: what stands behind the fence, and the block.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
        found.push((kind.to_owned(), body.join("\n") + "\n"));
    }
    found
}

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
fn the_guide_leads_from_an_empty_file_to_an_algorithm_that_runs() {
    if !is_there("clang") || !is_there("wasm-ld") {
        println!("skipped: clang and lld are not installed");
        return;
    }
    let guide = include_str!("../../../docs/guides/write-an-algorithm.md");
    let folder = tempfile::tempdir().unwrap();
    let mut commands = 0;
    for (kind, block) in blocks(guide) {
        match kind.as_str() {
            "c" => std::fs::write(folder.path().join("gradient.c"), block).unwrap(),
            "sh" => {
                commands += block.lines().count();
                type_in(&block, folder.path());
            }
            "sh root" if rustix::process::geteuid().is_root() && kernel::supported().is_ok() => {
                type_in(&block, folder.path());
            }
            "sh root" => println!("skipped: the part of the kernel needs root and struct_ops"),
            other => panic!("the guide has a block of a kind that nobody follows: {other}"),
        }
    }
    assert!(commands >= 3, "build, test, load");
    for made in ["gradient.wasm", "gradient.bpf.o"] {
        assert!(folder.path().join(made).is_file(), "{made}");
    }
}

#[test]
fn the_example_builds_and_passes_as_well() {
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

/// What the guide to policies shows on a console is what one sees there.
#[test]
fn the_guide_to_policies_shows_what_is_printed() {
    let guide = include_str!("../../../docs/guides/policies.md");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
    let bin = Path::new(env!("CARGO_BIN_EXE_longhaul")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut commands = 0;
    for (_, block) in blocks(guide).into_iter().filter(|(kind, _)| kind == "console") {
        for part in format!("\n{block}").split("\n$ ").skip(1) {
            let (command, shown) = part.split_once('\n').unwrap_or((part, ""));
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).current_dir(&examples).env("PATH", &path);
            let o = shell.output().unwrap();
            let said = [o.stdout, o.stderr].map(|b| String::from_utf8(b).unwrap()).concat();
            assert_eq!(said.trim_end(), shown.trim_end(), "$ {command}");
            commands += 1;
        }
    }
    assert_eq!(commands, 4, "console blocks were found");
}
