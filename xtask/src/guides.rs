//! Follows the README and the guides to the letter: each command runs on the host that it is for, and prints what is shown.

mod compare;
mod hosts;
mod parse;

use crate::process::{root, target_dir};
use anyhow::{Context, Result, ensure};
use hosts::Hosts;
pub use hosts::supported;
use parse::{Block, HERE, Item};
use std::fs;
use std::path::{Path, PathBuf};

/// Follows all guides, or those whose file has one of these names in it.
///
/// # Errors
/// A command that ends otherwise, or prints something else, than its guide says.
pub fn run_guides(args: &[String]) -> Result<()> {
    if !supported() {
        println!(
            "skipped: the guides are followed on hosts in network namespaces, which need root and `ip` of iproute2"
        );
        return Ok(());
    }
    crate::ffi::build("dev")?;
    let mut all = vec![root().join("README.md")];
    let found = fs::read_dir(root().join("docs/guides"))?.collect::<std::io::Result<Vec<_>>>()?;
    all.extend(found.into_iter().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "md")));
    all.sort();
    let wanted =
        |p: &&PathBuf| args.is_empty() || args.iter().any(|a| p.to_string_lossy().contains(a.as_str()));
    let (mut commands, mut skipped) = (0, Vec::new());
    for guide in all.iter().filter(wanted) {
        let name = guide.strip_prefix(root()).unwrap_or(guide).display().to_string();
        commands += follow(guide, &mut skipped).with_context(|| name.clone())?;
        println!("{name}: followed");
    }
    skipped.iter().for_each(|s| println!("not run: {s}"));
    println!("{commands} commands ran as the guides say, {} blocks were not run", skipped.len());
    Ok(())
}

/// Follows one guide; how many commands it has.
fn follow(guide: &Path, skipped: &mut Vec<String>) -> Result<usize> {
    let name = guide.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let items = parse::parse(&fs::read_to_string(guide)?)?;
    let folder = std::env::temp_dir().join(format!("longhaul-guide-{}-{name}", std::process::id()));
    let mut hosts = Hosts::new(&folder, &target_dir().join("debug"))?;
    let (mut count, mut printed) = (0, String::new());
    for item in items {
        match item {
            Item::Prepare { host, command } => {
                let (printed, status) = hosts.run(&host, &command, None)?;
                ensure!(
                    status == 0,
                    "to prepare, `{command}` on {host} ended with status {status}: {printed}"
                );
            }
            Item::File { name, content } => hosts.write(&name, &content)?,
            Item::Commands(block) => match &block.condition {
                Some(needed) if hosts.run(HERE, needed, None)?.1 != 0 => {
                    let line = block.commands.first().map_or(0, |c| c.line);
                    skipped.push(format!("{name}, line {line}: `{needed}` fails here"));
                }
                _ => {
                    count += block.commands.len();
                    type_block(&mut hosts, &block, &mut printed)?;
                }
            },
            Item::Skipped { line, reason } => skipped.push(format!("{name}, line {line}: {reason}")),
            Item::Ssh { from, to } => hosts.let_in_by_ssh(&from, &to)?,
            Item::Stop => hosts.stop()?,
            Item::OwnNetwork => hosts.own_network = true,
        }
    }
    Ok(count)
}

fn type_block(hosts: &mut Hosts, block: &Block, before: &mut String) -> Result<()> {
    for (n, c) in block.commands.iter().enumerate() {
        let answer = block.answer.as_deref().filter(|_| n == 0);
        let (printed, status) = hosts.run(&c.host, &filled(&c.text, before), answer)?;
        before.push_str(&printed);
        before.push('\n');
        let wanted = if n + 1 == block.commands.len() { block.status } else { 0 };
        let (line, text) = (c.line, &c.text);
        ensure!(
            status == wanted,
            "line {line}: `{text}` ended with status {status}, not {wanted}:\n{printed}"
        );
        let shown = c.prints.join("\n");
        ensure!(
            c.prints.is_empty() || compare::matches(&c.prints, &printed),
            "line {line}: `{text}` printed\n{printed}\nwhere the guide shows\n{shown}"
        );
    }
    Ok(())
}

/// A word that ends with `...` is the last one printed so far that begins so: the guide cannot know a token.
fn filled(command: &str, printed: &str) -> String {
    let mut out = command.to_owned();
    for word in command.split([' ', '=', '\n']).filter(|w| w.len() > 6) {
        if let Some(head) = word.strip_suffix("...")
            && let Some(found) =
                printed.split_whitespace().rev().find(|p| p.starts_with(head) && p.len() > head.len() + 3)
        {
            out = out.replace(word, found);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn unknown_words_of_a_guide_match_printed_ones() {
        let printed = "lht1_...\nlht1_old12345\nlht1_new12345\nelse";
        assert_eq!(filled("TOKEN=lht1_... put a...", printed), "TOKEN=lht1_new12345 put a...");
        assert_eq!(filled("put lht2_...", printed), "put lht2_...");
    }
}
