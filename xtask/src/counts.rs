//! Counts instructions of the hot loops (`benches/counts`), and compares them with `benches/counts.json`.
//!
//! Counts, other than times, hardly depend on what else a machine does: 5 % more is a change of the code. They depend on the
//! compiler and on what the processor shows to valgrind; where those are others than the file's, a difference is no fault.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::packages::{self, Tool};
use crate::process::{cargo, command, output, root, run, target_dir};

const VALGRIND: Tool = Tool { needs: "valgrind", package: "valgrind" };
/// Where the counts are kept, from the root.
const FILE: &str = "benches/counts.json";
/// The part by which a count may be worse, in hundredths.
const TOLERANCE: f64 = 5.0;
/// The function that callgrind counts in, as `benches/counts/src/region.rs` names it.
const REGION: &str = "*the_counted_region*";

/// What was counted, and with what.
#[derive(Clone, Debug, PartialEq)]
struct Counts {
    compiler: String,
    /// What the processor shows under valgrind, in words.
    features: String,
    /// Instructions for each unit, by the loop's name.
    loops: BTreeMap<String, f64>,
}

/// What a comparison came to: one text each.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// What fails.
    worse: Vec<String>,
    /// What is to be said.
    notes: Vec<String>,
}

/// Counts every loop and compares with the file, or puts what has changed into it.
///
/// # Errors
/// valgrind cannot be had, a loop does not run, or is more than 5 % worse.
pub fn run_counts(accept: bool) -> Result<()> {
    packages::need(&[VALGRIND])?;
    let program = build()?;
    let file = std::fs::read(&program).with_context(|| format!("cannot read {program}"))?;
    let mut new = Counts { compiler: compilers(&file), features: String::new(), loops: BTreeMap::new() };
    let kept = read(&root().join(FILE))?;
    for line in output(&mut command(&program))?.lines() {
        let (name, unit) = line.split_once(' ').context("longhaul-counts lists loops in another way")?;
        let (count, features) = count(&program, name)?;
        let was = kept.as_ref().and_then(|k| k.loops.get(name));
        let was = was.map_or_else(String::new, |w| format!(", was {w:.1} ({:+.1} %)", change(*w, count)));
        println!("{name}: {count:.1} instructions a {unit}{was}");
        new.features = features;
        new.loops.insert(name.to_owned(), count);
    }
    if accept {
        let merged = accepted(kept.as_ref(), new);
        let text = serde_json::to_string_pretty(&to_json(&merged))? + "\n";
        std::fs::write(root().join(FILE), text).with_context(|| format!("cannot write {FILE}"))?;
        println!("kept in {FILE}");
        return Ok(());
    }
    let kept = kept.with_context(|| format!("there is no {FILE}: `cargo xtask counts --accept` makes it"))?;
    let outcome = compare(&kept, &new);
    outcome.notes.iter().for_each(|n| println!("note: {n}"));
    outcome.worse.iter().for_each(|w| eprintln!("{w}"));
    ensure!(
        outcome.worse.is_empty(),
        "{} counts differ from {FILE}. `callgrind_annotate --inclusive=yes {}/LOOP.out` shows where the instructions go; \
         if it has to be so, `cargo xtask counts --accept` and say in the commit why",
        outcome.worse.len(),
        folder().display()
    );
    Ok(())
}

/// Where callgrind's profiles are left.
fn folder() -> PathBuf {
    target_dir().join("counts")
}

fn build() -> Result<String> {
    run(cargo().args(["build", "--quiet", "--profile", "dist", "-p", "longhaul-counts"]))?;
    Ok(target_dir().join("dist/longhaul-counts").to_string_lossy().into_owned())
}

/// The compilers that a program says it was made by, in its section `.comment`: rustc, and those of the C in it. A
/// cipher's C is built by clang where that is installed, else by gcc, and takes 3 % more instructions from one of them.
fn compilers(program: &[u8]) -> String {
    let texts =
        program.split(|b| *b == 0).filter(|t| t.len() < 128).filter_map(|t| std::str::from_utf8(t).ok());
    let is_one =
        |t: &&str| t.starts_with("rustc version ") || t.starts_with("GCC: (") || t.contains("clang version ");
    texts.filter(is_one).collect::<BTreeSet<_>>().into_iter().rev().collect::<Vec<_>>().join("; ")
}

/// Instructions for each unit of a loop, and what the processor showed.
fn count(program: &str, name: &str) -> Result<(f64, String)> {
    std::fs::create_dir_all(folder()).with_context(|| format!("cannot make {}", folder().display()))?;
    let profile = folder().join(format!("{name}.out"));
    let said = output(
        command("valgrind")
            .args(["--tool=callgrind", "--quiet"])
            .arg(format!("--toggle-collect={REGION}"))
            .arg(format!("--callgrind-out-file={}", profile.display()))
            .args([program, name]),
    )?;
    let (units, features) = parse_said(&said).with_context(|| format!("longhaul-counts {name}"))?;
    let text = std::fs::read(&profile).with_context(|| format!("cannot read {}", profile.display()))?;
    let total =
        parse_profile(&String::from_utf8_lossy(&text)).with_context(|| profile.display().to_string())?;
    Ok((total as f64 / units as f64, features))
}

/// The number of units and the processor's features, as the program says them.
fn parse_said(text: &str) -> Result<(u64, String)> {
    let line = |key: &str| {
        let found = text.lines().find_map(|l| l.strip_prefix(key));
        found.map(str::trim).with_context(|| format!("it did not say its {}", key.trim()))
    };
    let units: u64 = line("units ")?.parse().context("its units are no number")?;
    ensure!(units > 0, "it counted no unit");
    Ok((units, line("features ")?.to_owned()))
}

/// The instructions in a profile of callgrind's (the manual's "Callgrind Format Specification"): the first cost of its
/// totals, or of its summary in versions that write no totals.
fn parse_profile(text: &str) -> Result<u64> {
    let line = |key: &str| text.lines().find_map(|l| l.strip_prefix(key));
    let events = line("events:").context("no `events:`: this is no profile of callgrind's")?;
    ensure!(
        events.split_whitespace().next() == Some("Ir"),
        "its first event is not Ir but `{}`",
        events.trim()
    );
    let total =
        line("totals:").or_else(|| line("summary:")).context("it has neither totals nor a summary")?;
    let total = total.split_whitespace().next().context("its total is empty")?;
    let total: u64 = total.parse().with_context(|| format!("its total `{total}` is no number"))?;
    ensure!(total > 0, "nothing was counted: callgrind found no function like `{REGION}`");
    Ok(total)
}

/// By how many hundredths `new` is more than `old`.
fn change(old: f64, new: f64) -> f64 {
    (new / old - 1.0) * 100.0
}

/// Whether the two can be held against each other; if not, why.
fn foreign(kept: &Counts, new: &Counts) -> Option<String> {
    if kept.compiler != new.compiler {
        return Some(format!("{FILE} is of another compiler, {}, not {}", kept.compiler, new.compiler));
    }
    let differ = kept.features != new.features;
    differ.then(|| {
        format!("{FILE} is of a processor with `{}`; this one has `{}`", kept.features, new.features)
    })
}

fn compare(kept: &Counts, new: &Counts) -> Outcome {
    let mut outcome = Outcome::default();
    for (name, &now) in &new.loops {
        let Some(&old) = kept.loops.get(name) else {
            outcome
                .worse
                .push(format!("{name}: {now:.1}, not in {FILE}: `cargo xtask counts --accept` adds it"));
            continue;
        };
        let by = change(old, now);
        if by > TOLERANCE {
            let text =
                format!("{name}: {old:.1} before, {now:.1} now, {by:+.1} %: more than {TOLERANCE} % worse");
            outcome.worse.push(text + "; `cargo xtask counts --accept` takes it");
        } else if by < -TOLERANCE {
            let text = format!("{name}: {old:.1} before, {now:.1} now, {by:+.1} %");
            outcome.notes.push(text + ": `cargo xtask counts --accept`, so that the gain is kept");
        }
    }
    for name in kept.loops.keys().filter(|name| !new.loops.contains_key(*name)) {
        outcome.worse.push(format!("{name}: in {FILE}, but no loop: `cargo xtask counts --accept` drops it"));
    }
    if let Some(why) = foreign(kept, new) {
        outcome.notes.append(&mut outcome.worse);
        let advice =
            "differences are no faults; `cargo xtask counts --accept` where the file should be of this one";
        outcome.notes.insert(0, format!("{why}: {advice}"));
    }
    outcome
}

/// What the file is to hold: what is within bounds stays as it was, so that many small steps add up to one that is seen.
fn accepted(kept: Option<&Counts>, mut new: Counts) -> Counts {
    if let Some(kept) = kept.filter(|k| foreign(k, &new).is_none()) {
        for (name, now) in &mut new.loops {
            if let Some(&old) = kept.loops.get(name).filter(|old| change(**old, *now).abs() <= TOLERANCE) {
                *now = old;
            }
        }
    }
    new
}

fn to_json(c: &Counts) -> Value {
    // A tenth of an instruction is exact enough, and keeps the file's differences readable.
    let tenths = |v: f64| (v * 10.0).round() / 10.0;
    let loops: BTreeMap<&String, f64> = c.loops.iter().map(|(name, v)| (name, tenths(*v))).collect();
    json!({ "compiler": c.compiler, "features": c.features, "instructions": loops })
}

fn from_json(text: &str) -> Result<Counts> {
    let v: Value = serde_json::from_str(text)?;
    let words = |key: &str| Some(v.get(key)?.as_str()?.to_owned());
    let words = |key: &str| words(key).with_context(|| format!("no text `{key}`"));
    let table = v.get("instructions").and_then(Value::as_object).context("no table `instructions`")?;
    let mut loops = BTreeMap::new();
    for (name, count) in table {
        let count = count.as_f64().filter(|c| *c > 0.0);
        loops
            .insert(name.clone(), count.with_context(|| format!("the count of `{name}` is not above zero"))?);
    }
    Ok(Counts { compiler: words("compiler")?, features: words("features")?, loops })
}

/// The kept counts; `None` without a file.
fn read(path: &Path) -> Result<Option<Counts>> {
    match std::fs::read_to_string(path) {
        Ok(text) => from_json(&text).map(Some).with_context(|| format!("{FILE} is not as it should be")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {FILE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(compiler: &str, loops: &[(&str, f64)]) -> Counts {
        let loops = loops.iter().map(|(name, v)| ((*name).to_owned(), *v)).collect();
        Counts { compiler: compiler.to_owned(), features: "aes avx2".to_owned(), loops }
    }

    #[test]
    fn increase_fails_decrease_is_reported_and_noise_is_ignored() {
        let kept = counts("a", &[("send", 1000.0), ("receive", 1000.0), ("small", 1000.0), ("wire", 10.0)]);
        let new = counts("a", &[("send", 1051.0), ("receive", 1049.0), ("small", 949.0), ("wire", 9.6)]);
        let o = compare(&kept, &new);
        assert_eq!((o.worse.len(), o.notes.len()), (1, 1));
        for part in ["send", "1000.0", "1051.0", "+5.1 %", "--accept"] {
            assert!(o.worse[0].contains(part), "{} does not name {part}", o.worse[0]);
        }
        assert!(o.notes[0].starts_with("small") && o.notes[0].contains("--accept"));
        assert_eq!(compare(&kept, &kept), Outcome::default());
    }

    #[test]
    fn loops_missing_on_either_side_fail() {
        let o = compare(&counts("a", &[("gone", 1.0)]), &counts("a", &[("new", 1.0)]));
        assert!(o.worse[0].starts_with("new:") && o.worse[1].starts_with("gone:"));
    }

    #[test]
    fn another_compiler_or_processor_only_warns() {
        let kept = counts("a", &[("send", 1000.0)]);
        let mut new = counts("b", &[("send", 2000.0)]);
        let o = compare(&kept, &new);
        assert!(
            o.worse.is_empty() && o.notes[0].contains("another compiler") && o.notes[1].contains("2000.0")
        );
        new.compiler = "a".to_owned();
        assert_eq!(compare(&kept, &new).worse.len(), 1);
        new.features = "neon".to_owned();
        let o = compare(&kept, &new);
        assert!(o.worse.is_empty() && o.notes[0].contains("neon"));
    }

    #[test]
    fn accept_changes_only_counts_out_of_bounds() {
        let kept = counts("a", &[("send", 1000.0), ("small", 1000.0), ("gone", 1.0)]);
        let new = counts("a", &[("send", 1040.0), ("small", 900.0), ("new", 7.0)]);
        let expected = counts("a", &[("send", 1000.0), ("small", 900.0), ("new", 7.0)]);
        assert_eq!(accepted(Some(&kept), new.clone()), expected);
        assert_eq!(accepted(None, new.clone()), new);
        let of_another = counts("b", &[("send", 1040.0)]);
        assert_eq!(accepted(Some(&kept), of_another.clone()), of_another);
    }

    #[test]
    fn a_program_says_what_made_it() {
        let program = b"\x7fELF\0\0rustc version 1.95.0 (1 2026)\0GCC: (Debian 12) 12.2.0\0Debian clang version 14.0.6\0\xff\0";
        let expected = "rustc version 1.95.0 (1 2026); GCC: (Debian 12) 12.2.0; Debian clang version 14.0.6";
        let twice = [&program[..], &program[..]].concat();
        let said = compilers(&twice);
        assert_eq!(said.split("; ").collect::<BTreeSet<_>>(), expected.split("; ").collect());
        assert_eq!(said.matches("clang").count(), 1);
    }

    #[test]
    fn profiles_are_read_or_refused() {
        let profile =
            "# callgrind format\nversion: 1\npositions: line\nevents: Ir\nsummary: 5\n\nfn=(1) main\n1 5\n";
        assert_eq!(parse_profile(profile).unwrap(), 5);
        assert_eq!(parse_profile(&format!("{profile}\ntotals: 73870866\n")).unwrap(), 73_870_866);
        assert_eq!(parse_profile("events: Ir Dr\ntotals: 12 3\n").unwrap(), 12);
        for bad in ["", "totals: 5", "events: Dr Ir\ntotals: 1 2", "events: Ir\n", "events: Ir\ntotals: x"] {
            assert!(parse_profile(bad).is_err(), "{bad} was taken");
        }
        let none = parse_profile("events: Ir\ntotals: 0").unwrap_err();
        assert!(none.to_string().contains("the_counted_region"));
    }

    #[test]
    fn program_output_is_parsed_or_refused() {
        let said = "units 2000\nfeatures x86_64 aes\n";
        assert_eq!(parse_said(said).unwrap(), (2000, "x86_64 aes".to_owned()));
        for bad in ["", "units 5", "units x\nfeatures a", "units 0\nfeatures a", "features a"] {
            assert!(parse_said(bad).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn counts_file_round_trips() {
        let c = counts("rustc 1", &[("send", 1234.5), ("wire", 0.1)]);
        assert_eq!(from_json(&to_json(&c).to_string()).unwrap(), c);
        assert!(from_json("{}").is_err());
        assert!(from_json(r#"{"compiler":"a","features":"b","instructions":{"x":0}}"#).is_err());
        // The one in the repository, too.
        assert!(read(&root().join(FILE)).unwrap().is_some());
    }
}
