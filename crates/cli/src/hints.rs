//! A test that every command and option named in error texts and guides exists.

use crate::args::Cli;
use clap::{Command, CommandFactory as _, ValueEnum as _};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What stands in hints for what the reader has to fill in, or the program does, and an example of each.
const EXAMPLES: &[(&str, &str)] = &[
    ("{seed}..{}", "0..1"),
    ("{}/{id}", "4711/3.0"),
    ("--store {}", "--store etcd://host/key"),
    ("{name}", "vegas-c"),
    ("FILE", "file"),
    ("ARGS", "ls longhaul://host/"),
    ("{PERF_PORT}", "4461"),
    ("{}", "name"),
];

/// An option of another program that a text names.
const LINKER: &str = "--export-memory";
/// What the far end over ssh is started with; people do not, so it is in no help.
const FAR_END: &str = "--over-ssh";
/// What texts hold that are not for the command line of this program: style sheets, and commands of other programs.
const OTHERS: &[&str] = &[":root{", "cargo ", "/bin/"];

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("hints.rs") {
            out.push(path);
        }
    }
}

/// The texts of all crates: what stands in quotation marks, with lines that are continued put together.
fn texts() -> Vec<String> {
    all().iter().flat_map(|(_, code)| strings(code)).collect()
}

/// Each file's name and its lines without comments.
fn all() -> Vec<(PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut files);
    }
    let code = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        let code: Vec<_> = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        code.join("\n")
    };
    files.iter().map(|f| (f.clone(), code(f))).collect()
}

/// The string literals of a piece of Rust, as far as that can be told without reading Rust.
fn strings(code: &str) -> Vec<String> {
    let (mut found, mut chars) = (Vec::new(), code.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            // A quotation mark as a character, and raw text, are passed over.
            '\'' if chars.peek() == Some(&'"') => drop(chars.next()),
            '"' => {
                let mut text = String::new();
                while let Some(c) = chars.next().filter(|c| *c != '"') {
                    match (c, chars.peek()) {
                        ('\\', Some('\n')) => {
                            while chars.peek().is_some_and(|c| c.is_whitespace()) {
                                chars.next();
                            }
                        }
                        ('\\', Some(_)) => text.extend(chars.next()),
                        _ => text.push(c),
                    }
                }
                found.push(text);
            }
            _ => {}
        }
    }
    found
}

/// What stands behind `longhaul` between backticks.
fn commands() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in texts() {
        for (i, part) in text.split('`').enumerate().filter(|(i, _)| i % 2 == 1) {
            if let Some(command) = part.strip_prefix("longhaul ") {
                assert!(i > 0 && command.len() < 200, "{text}");
                found.insert(command.to_owned());
            }
        }
    }
    found
}

/// Whether all words are those of a command or of a group of commands.
fn names_one(command: &str) -> bool {
    let known = |at: Option<Command>, word: &str| at.and_then(|c| c.find_subcommand(word).cloned());
    command.split(' ').fold(Some(Cli::command()), known).is_some()
}

#[test]
fn commands_named_in_texts_exist() {
    let all = commands();
    assert!(all.len() > 20, "they are not found: {all:?}");
    for command in all {
        let mut filled = command.clone();
        EXAMPLES.iter().for_each(|(what, example)| filled = filled.replace(what, example));
        let words = ["longhaul"].into_iter().chain(filled.split(' '));
        let parsed = Cli::command().try_get_matches_from(words);
        out_line!("{:<50} {}", command, if parsed.is_ok() { "can be given" } else { "names commands" });
        assert!(parsed.is_ok() || names_one(&filled), "`longhaul {command}`: {}", parsed.unwrap_err());
    }
}

fn options(c: &Command, out: &mut BTreeSet<String>) {
    out.extend(c.get_arguments().filter_map(|a| a.get_long()).map(|l| format!("--{l}")));
    let aliases = c.get_arguments().filter_map(|a| a.get_all_aliases()).flatten();
    out.extend(aliases.map(|l| format!("--{l}")));
    c.get_subcommands().for_each(|s| options(s, out));
}

#[test]
fn options_named_in_texts_exist() {
    let mut known: BTreeSet<String> = ["--help".to_owned(), "--version".to_owned()].into();
    options(&Cli::command(), &mut known);
    let mut unknown = BTreeSet::new();
    let of_others = |t: &&String| OTHERS.iter().any(|o| t.contains(o));
    for text in texts().iter().filter(|t| t.contains(' ') && !of_others(t)) {
        for (at, _) in text.match_indices("--") {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_ascii_alphanumeric() || "-\\[=/".contains(c)) {
                continue;
            }
            let name: String =
                text[at + 2..].chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            let option = format!("--{}", name.trim_end_matches('-'));
            if option.len() > 3 && !known.contains(&option) && option != LINKER && option != FAR_END {
                unknown.insert(format!("{option} in: {}", text.chars().take(120).collect::<String>()));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// What ends an error text that says what was not possible and why in another's words, which have the remedy.
const CAUSES: &[&str] = &["{e}", "{reason}", "{text}", "{f}", "{why}", "{c}", "{way_out}", ": {}"];
/// Beginnings of texts that tell of an end and not of an error.
const ENDS: &[&str] = &["interrupted", "{"];

/// The texts of this crate, tests left out.
fn own_texts() -> Vec<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mine = |(path, _): &(PathBuf, String)| path.starts_with(&own) && !path.ends_with("tests.rs");
    let code =
        |(_, code): (PathBuf, String)| code.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
    all().into_iter().filter(mine).flat_map(|file| strings(&code(file))).collect()
}

#[test]
fn error_texts_say_what_cannot_be_done_why_and_what_to_try() {
    let (mut found, mut wrong) = (0, Vec::new());
    for text in own_texts().iter().filter(|t| t.starts_with("cannot ")) {
        found += 1;
        let helps = ["; try ", "; see ", " try "].iter().any(|w| text.contains(w));
        if !text.contains(": ") || !(helps || CAUSES.iter().any(|c| text.ends_with(c))) {
            wrong.push(text.clone());
        }
    }
    assert!(found > 80, "they are not found: {found}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The first text in the arguments of each call that makes a failure.
fn failures() -> Vec<String> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for (path, code) in all() {
        let code = code.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        if !path.starts_with(&own) {
            continue;
        }
        for call in ["Failure::usage(", "Failure::system(", "Failure::new("] {
            for after in code.split(call).skip(1) {
                let until = after.find(';').unwrap_or(after.len());
                let quoted = after[..until].find('"').map(|at| strings(&after[at..]));
                let is_text = |t: &String| t.starts_with(char::is_alphabetic) && t.trim().contains(' ');
                found.extend(quoted.and_then(|q| q.into_iter().next()).filter(is_text));
            }
        }
    }
    found
}

#[test]
fn failures_begin_with_what_cannot_be_done() {
    let all = failures();
    assert!(all.len() > 60, "they are not found: {}", all.len());
    let wrong: Vec<_> =
        all.iter().filter(|t| !t.starts_with("cannot ") && !ENDS.iter().any(|e| t.starts_with(e))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn guides() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/guides")
}

fn guide(name: &str) -> String {
    fs::read_to_string(guides().join(name)).unwrap()
}

/// What stands between backticks in the first column of the table whose head begins so.
fn first_column(text: &str, head: &str) -> BTreeSet<String> {
    let table = text.lines().skip_while(|l| !l.starts_with(head)).skip(2).take_while(|l| l.starts_with('|'));
    let cells = table.filter_map(|l| l.split('|').nth(1));
    let names = cells.flat_map(|c| c.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    names.collect()
}

#[test]
fn tables_of_the_guides_are_complete() {
    let plans: BTreeSet<String> = lab::plan::SHIPPED.iter().map(|(n, _)| (*n).to_owned()).collect();
    assert_eq!(first_column(&guide("lab.md"), "| plan |"), plans);
    let values = crate::args::Encryption::value_variants();
    let modes: BTreeSet<String> =
        values.iter().filter_map(|v| Some(v.to_possible_value()?.get_name().to_owned())).collect();
    assert_eq!(first_column(&guide("trust.md"), "| `--encryption` |"), modes);
}

#[test]
fn options_in_tables_of_the_guides_exist() {
    let mut known: BTreeSet<String> = ["--help".to_owned(), "--version".to_owned()].into();
    options(&Cli::command(), &mut known);
    let (mut found, mut unknown) = (0, BTreeSet::new());
    for entry in fs::read_dir(guides()).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|l| l.starts_with('|')) {
            let ours = line.split('`').skip(1).step_by(2).filter(|q| !q.starts_with("bench "));
            let quoted = ours.flat_map(|q| q.split([' ', '=']));
            for option in quoted.filter(|w| w.starts_with("--") && w.len() > 2) {
                found += 1;
                if !known.contains(option) {
                    unknown.insert(format!("{option} in {}", path.display()));
                }
            }
        }
    }
    assert!(found > 50, "they are not found: {found}");
    assert!(unknown.is_empty(), "{unknown:#?}");
}
