//! Parses a guide: its blocks of code, and the comments that say how to run them.
//!
//! A comment that readers do not see stands before the block that it is for:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `<!-- guide: run HOST: COMMAND -->` | prepare: run a command on a host |
//! | `<!-- guide: file NAME -->` | the next block is the content of a file on every host |
//! | `<!-- guide: answer TEXT -->` | the next block's first command runs on a terminal, and is answered with this |
//! | `<!-- guide: status N -->` | the next block's last command ends with this status |
//! | `<!-- guide: if COMMAND -->` | the next block is run only where this succeeds |
//! | `<!-- guide: skip REASON -->` | the next block is not run |
//! | `<!-- guide: ssh HOST TO -->` | from here on, ssh gets from one host into the other, where sshd is installed |
//! | `<!-- guide: stop -->` | what runs in the background ends |
//! | `<!-- guide: own network -->` | the host that no prompt names is in this machine's own network |

use anyhow::{Result, bail};

/// What a guide has to be done, in its order.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// Run on a host before the reader does anything.
    Prepare { host: String, command: String },
    /// A file that is shown.
    File { name: String, content: String },
    /// Commands, with what they print.
    Commands(Block),
    /// Not run, for a reason.
    Skipped { line: usize, reason: String },
    /// ssh gets from the first host into the second.
    Ssh { from: String, to: String },
    /// What runs in the background ends.
    Stop,
    /// The host that no prompt names has this machine's network.
    OwnNetwork,
}

/// A block of commands.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// What is answered to the first.
    pub answer: Option<String>,
    /// How the last one ends.
    pub status: i32,
    /// What must succeed before; else the block is not run.
    pub condition: Option<String>,
    pub commands: Vec<Command>,
}

/// A command as it is typed, and what it prints.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its line in the guide.
    pub line: usize,
    /// The host before the `$`; `here` where none is named.
    pub host: String,
    pub text: String,
    /// Lines that are shown below it; none: whatever it prints is right.
    pub prints: Vec<String>,
}

/// The host of commands that name none.
pub const HERE: &str = "here";

/// Reads a guide.
///
/// # Errors
/// A block of commands that nobody follows, or a comment that means nothing.
pub fn parse(text: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let (mut file, mut skip, mut block) = (None, None, Block::default());
    let mut lines = text.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        let number = n + 1;
        if let Some(said) = line.trim().strip_prefix("<!-- guide: ").and_then(|l| l.strip_suffix(" -->")) {
            match said.split_once(' ').unwrap_or((said, "")) {
                ("run", what) => match what.split_once(": ") {
                    Some((host, command)) => {
                        items.push(Item::Prepare { host: host.into(), command: command.into() })
                    }
                    None => bail!("line {number}: write `run HOST: COMMAND`"),
                },
                ("file", name) => file = Some(name.to_owned()),
                ("answer", text) => block.answer = Some(text.to_owned()),
                ("status", status) => block.status = status.parse()?,
                ("if", command) => block.condition = Some(command.to_owned()),
                ("skip", reason) if !reason.is_empty() => skip = Some(reason.to_owned()),
                ("ssh", hosts) => match hosts.split_once(' ') {
                    Some((from, to)) => items.push(Item::Ssh { from: from.into(), to: to.into() }),
                    None => bail!("line {number}: write `ssh HOST TO`"),
                },
                ("stop", "") => items.push(Item::Stop),
                ("own", "network") => items.push(Item::OwnNetwork),
                _ => bail!("line {number}: `{said}` means nothing"),
            }
            continue;
        }
        let Some(kind) = line.trim().strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().map(|(_, l)| l).take_while(|l| l.trim() != "```").collect();
        let settings = std::mem::take(&mut block);
        match (skip.take(), file.take(), kind) {
            (Some(reason), ..) => items.push(Item::Skipped { line: number, reason }),
            (_, Some(name), _) => items.push(Item::File { name, content: body.join("\n") + "\n" }),
            (_, _, "console") => {
                let commands = commands(number + 1, &body)?;
                items.push(Item::Commands(Block { commands, ..settings }));
            }
            (_, _, "text") => {}
            (_, _, kind) => bail!(
                "line {number}: nobody follows a block of kind `{kind}`; make it `console` (with prompts), `text` (not run), or say \
                 before it that it is a file or skipped, and why"
            ),
        }
    }
    Ok(items)
}

/// The host and the command of a line with a prompt.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (host, command) = line.split_once("$ ")?;
    let is_name = host.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    is_name.then_some((if host.is_empty() { HERE } else { host }, command.trim()))
}

fn commands(first: usize, body: &[&str]) -> Result<Vec<Command>> {
    let mut all: Vec<Command> = Vec::new();
    let mut goes_on = false;
    for (n, line) in body.iter().enumerate() {
        match (prompt(line), all.last_mut()) {
            (_, Some(last)) if goes_on => {
                last.text.push('\n');
                last.text.push_str(line);
            }
            (Some((host, text)), _) => {
                let (host, text) = (host.to_owned(), text.to_owned());
                all.push(Command { line: first + n, host, text, prints: Vec::new() });
            }
            (None, Some(last)) => last.prints.push((*line).to_owned()),
            (None, None) => {
                bail!("line {}: a block of commands begins with a prompt, `$ ` or `HOST$ `", first + n)
            }
        }
        goes_on = (goes_on || prompt(line).is_some()) && line.ends_with('\\');
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = "# T\n<!-- guide: run tower: mkdir /srv/data -->\n```console\ntower$  serve \\\n  --x\nready\n...\nlaptop$ put # now\n```\n\
                         <!-- guide: file a.toml -->\n```toml\nx = 1\n```\n<!-- guide: skip needs a disk -->\n```\ndd\n```\n\
                         <!-- guide: answer yes -->\n<!-- guide: status 6 -->\n```console\n$ ask\n```\n<!-- guide: stop -->\n```text\nany\n```\n";

    #[test]
    fn guide_is_parsed_into_commands_in_order() {
        let items = parse(GUIDE).unwrap();
        let command = |line, host: &str, text: &str, prints: &[&str]| Command {
            line,
            host: host.into(),
            text: text.into(),
            prints: prints.iter().map(|p| (*p).into()).collect(),
        };
        let first = Block {
            commands: vec![
                command(4, "tower", "serve \\\n  --x", &["ready", "..."]),
                command(8, "laptop", "put # now", &[]),
            ],
            ..Block::default()
        };
        let second = Block {
            answer: Some("yes".into()),
            status: 6,
            commands: vec![command(21, HERE, "ask", &[])],
            ..Block::default()
        };
        assert_eq!(
            items,
            [
                Item::Prepare { host: "tower".into(), command: "mkdir /srv/data".into() },
                Item::Commands(first),
                Item::File { name: "a.toml".into(), content: "x = 1\n".into() },
                Item::Skipped { line: 15, reason: "needs a disk".into() },
                Item::Commands(second),
                Item::Stop,
            ]
        );
    }

    #[test]
    fn unexecuted_blocks_and_unknown_comments_are_refused() {
        for (bad, word) in [
            ("```\nls\n```\n", "nobody follows"),
            ("```sh\nls\n```\n", "nobody follows"),
            ("```console\nls\n```\n", "prompt"),
            ("<!-- guide: skip -->\n", "means nothing"),
            ("<!-- guide: dance -->\n", "means nothing"),
            ("<!-- guide: run ls -->\n", "HOST"),
        ] {
            let e = parse(bad).unwrap_err().to_string();
            assert!(e.contains(word), "{bad}: {e}");
        }
    }
}
