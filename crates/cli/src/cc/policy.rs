//! `longhaul cc policy`: checks and explains policy files. Also reads policies for the other commands.

use super::rules;
use crate::args::PolicyCommand;
use crate::exit::{Code, Failure, Outcome};
use policy::{MAX_FILE, Policy, Problems, parse_flow};
use std::io::Read as _;
use std::path::Path;

/// Runs one subcommand.
pub fn run(command: &PolicyCommand) -> Outcome<()> {
    match command {
        PolicyCommand::Check { file, json } => check(file, *json),
        PolicyCommand::Explain { flow, policy, attached, json } => {
            let policy = match (policy, attached) {
                (Some(file), _) => load(file)?,
                (None, Some(group)) => rules::held(group.as_deref())?,
                (None, None) => Policy::built_in(),
            };
            explain(&flow.join(" "), &policy, *json)
        }
        PolicyCommand::BuiltIn => {
            out_text!("{}", policy::BUILT_IN);
            Ok(())
        }
    }
}

/// The policy of a file, with the addresses of this host; its warnings go to the log.
///
/// # Errors
/// The file cannot be read, or everything that is wrong with it.
fn load(file: &Path) -> Outcome<Policy> {
    let read = Policy::read_for_hosts(&text(file)?);
    let (policy, warnings) = read.map_err(|p| Failure::usage(named(file, &p)))?;
    for w in &warnings.list {
        tracing::warn!("{}: {w}", file.display());
    }
    Ok(policy.with_interfaces(lhio::addresses_of_interface))
}

/// The text of a file, if it is not longer than a policy may be.
fn text(file: &Path) -> Outcome<String> {
    let fail = |e: std::io::Error| {
        Failure::usage(format!(
            "cannot read the policy {}: {e}; try the path of a policy \
             file",
            file.display()
        ))
    };
    let mut bytes = Vec::new();
    // One byte more than may be, so that too long a file is noticed without reading it all.
    let limit = MAX_FILE as u64 + 1;
    std::fs::File::open(file).and_then(|f| f.take(limit).read_to_end(&mut bytes)).map_err(fail)?;
    String::from_utf8(bytes).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        Failure::usage(format!(
            "cannot read the policy {}: line {line} is not UTF-8; try to save it as UTF-8",
            file.display()
        ))
    })
}

/// Each problem behind the file's name.
fn named(file: &Path, problems: &Problems) -> String {
    let lines: Vec<_> = problems.to_string().lines().map(|l| format!("{}: {l}", file.display())).collect();
    let count = format!(
        "cannot use the policy {}: {} errors; try again without them",
        file.display(),
        problems.errors
    );
    format!("{}\n{count}", lines.join("\n"))
}

fn check(file: &Path, json: bool) -> Outcome<()> {
    let read = Policy::read_for_hosts(&text(file)?);
    let (usable, problems) = match &read {
        Ok((_, warnings)) => (true, warnings),
        Err(problems) => (false, problems),
    };
    if json {
        let value = serde_json::json!({
            "file": file.display().to_string(),
            "usable": usable,
            "errors": problems.errors,
            "problems": problems.list,
            "omitted": problems.omitted,
        });
        crate::out::json(&value);
        return if usable { Ok(()) } else { Err(Failure::new(Code::Usage, "")) };
    }
    match &read {
        Err(problems) => Err(Failure::usage(named(file, problems))),
        Ok((policy, warnings)) => {
            for w in &warnings.list {
                out_line!("{}: {w}", file.display());
            }
            let s = policy.spec();
            let counts =
                [(s.rules.len(), "rules"), (s.classes.len(), "classes"), (warnings.list.len(), "warnings")];
            let counts =
                counts.map(|(n, what)| format!("{n} {}", if n == 1 { singular(what) } else { what }));
            out_line!("{} is valid: {}", file.display(), counts.join(", "));
            Ok(())
        }
    }
}

fn singular(what: &str) -> &str {
    what.strip_suffix("es").filter(|s| s.ends_with("ss")).or(what.strip_suffix('s')).unwrap_or(what)
}

fn explain(flow: &str, policy: &Policy, json: bool) -> Outcome<()> {
    let traffic = parse_flow(flow).map_err(Failure::usage)?;
    let explanation = policy.explain(&traffic);
    let in_kernel = rules::in_kernel(&traffic, &explanation.algorithm.name, &explanation.fallback);
    if json {
        let mut value = serde_json::to_value(&explanation).map_err(Failure::system)?;
        value["kernel"] = serde_json::json!(in_kernel);
        crate::out::json(&value);
    } else {
        out_text!("{explanation}");
        if let Some(text) = in_kernel {
            out_line!("kernel TCP  {text}");
        }
    }
    Ok(())
}
