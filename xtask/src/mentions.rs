//! What the documents name must exist: tests, types and fields by their names, source files by their paths.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

/// Folders of the documents, and those of what they name.
const DOCUMENTS: &[&str] = &["docs", "ARCHITECTURE.md"];
const SOURCES: &[&str] = &["crates", "ffi", "xtask", "fuzz", "benches", "interop", "docs"];
/// Kinds of files with names in them.
const KINDS: &[&str] = &["rs", "toml", "c", "h", "sh", "txt", "json"];
/// A name with so many parts is one of the project's; shorter ones may be of others.
const PARTS: usize = 4;

/// Names in code quotes of the documents under `root` that no source has, one text each.
///
/// # Errors
/// When a file cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut words = BTreeSet::new();
    for folder in SOURCES {
        each_file(&root.join(folder), &mut |path, text| {
            if path.extension().is_some_and(|e| KINDS.iter().any(|k| e == *k)) {
                words.extend(text.split(|c| !is_word(c)).filter(|w| is_long_name(w)).map(str::to_owned));
            }
        })?;
    }
    let mut files = Vec::new();
    for folder in SOURCES {
        each_file(&root.join(folder), &mut |path, _| files.push(path.to_string_lossy().into_owned()))?;
    }
    let mut missing = Vec::new();
    for folder in DOCUMENTS {
        each_file(&root.join(folder), &mut |path, text| {
            if path.extension().is_some_and(|e| e == "md") {
                let shown = path.strip_prefix(root).unwrap_or(path).display();
                let unknown = quoted(text).filter(|name| is_long_name(name) && !words.contains(*name));
                missing.extend(
                    unknown.map(|name| format!("{shown}: `{name}` is in no source; was it renamed?")),
                );
                let gone = quoted(text).filter(|q| is_source_file(q)).flat_map(alternatives);
                let gone = gone.filter(|name| !files.iter().any(|file| ends_as(file, name)));
                missing
                    .extend(gone.map(|name| format!("{shown}: there is no file `{name}`; was it renamed?")));
            }
        })?;
    }
    Ok(missing)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether this is a name of Rust in lower case with parts enough.
fn is_long_name(word: &str) -> bool {
    word.split('_').filter(|part| !part.is_empty()).count() >= PARTS
        && word.chars().all(|c| is_word(c) && !c.is_ascii_uppercase())
}

/// Whether this is the name of one or several files of Rust.
fn is_source_file(word: &str) -> bool {
    word.ends_with(".rs") && word.chars().all(|c| is_word(c) || "/.{},-".contains(c))
}

/// The names that braces stand for, as in a shell.
fn alternatives(name: &str) -> Vec<String> {
    let braces = name.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (inside, tail))) = braces else { return vec![name.to_owned()] };
    inside.split(',').flat_map(|one| alternatives(&format!("{head}{one}{tail}"))).collect()
}

/// Whether a file's path ends with these components; between a crate's name and a file in it, `src` may be left out.
fn ends_as(file: &str, name: &str) -> bool {
    let whole = |part: &str| file.ends_with(&format!("/{part}"));
    whole(name)
        || name.split_once('/').is_some_and(|(of, rest)| whole(rest) && file.contains(&format!("/{of}/")))
}

/// What stands between single backquotes, line by line.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn each_file(folder: &Path, visit: &mut dyn FnMut(&Path, &str)) -> Result<()> {
    if folder.is_file() {
        visit(folder, &std::fs::read_to_string(folder)?);
        return Ok(());
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "corpus" {
                each_file(&path, visit)?;
            }
        } else if path.extension().is_some_and(|e| e == "md" || KINDS.iter().any(|k| e == *k)) {
            let text =
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            visit(&path, &text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_quotes_are_found_and_short_or_foreign_ones_left_out() {
        let text = "see `every_test_has_names`, `a_b` and `MAX_OF_ALL_THINGS`\nnot this_is_no_code `rest";
        let found: Vec<_> = quoted(text).filter(|n| is_long_name(n)).collect();
        assert_eq!(found, ["every_test_has_names"]);
    }

    #[test]
    fn renamed_test_in_a_document_is_named_with_its_file() {
        let root = std::env::temp_dir().join(format!("longhaul-mentions-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs")).unwrap();
        std::fs::create_dir_all(root.join("crates")).unwrap();
        std::fs::write(root.join("docs/a.md"), "`one_test_is_there` `one_test_is_gone` `crates/{a,b}.rs`")
            .unwrap();
        std::fs::write(root.join("crates/a.rs"), "fn one_test_is_there() {}").unwrap();
        let found = check(&root).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        let expected = [
            "docs/a.md: `one_test_is_gone` is in no source; was it renamed?",
            "docs/a.md: there is no file `crates/b.rs`; was it renamed?",
        ];
        assert_eq!(found, expected);
    }
}
