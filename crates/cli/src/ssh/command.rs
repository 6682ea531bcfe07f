//! Command lines: the one that connects, and the one that is run at the other end.

use super::args::{PortRange, SshOptions};
use super::location::Remote;
use crate::exit::{Failure, Outcome};
use crate::url;
use std::path::Path;
use std::process::Command;
use tracing::Level;

/// Bytes of the command that the shell at the other end is given: Linux takes 128 KiB as one argument (`execve(2)`).
const MAX_COMMAND: usize = 100 << 10;
/// What the far end is told by an option of its own: of each, its form on the command line.
pub type Options = Vec<String>;

/// The command that connects.
#[derive(Clone, Debug)]
pub struct SshCommand {
    words: Vec<String>,
    target: String,
}

impl SshCommand {
    /// As the command line says.
    ///
    /// # Errors
    /// A command that cannot be read.
    pub fn new(over: &SshOptions, remote: &Remote) -> Outcome<SshCommand> {
        let text = over.rsh.as_deref().unwrap_or("ssh");
        let words = split_words(text).map_err(|why| {
            Failure::usage(format!("cannot use --rsh {text}: {why}; try a program with its options"))
        })?;
        Ok(SshCommand { words, target: remote.target.clone() })
    }

    /// The program that connects.
    pub fn program(&self) -> &str {
        self.words.first().map_or("ssh", String::as_str)
    }

    /// Whether it is OpenSSH's client by its name, so that its options mean what they mean there.
    pub fn is_ssh(&self) -> bool {
        Path::new(self.program()).file_name().is_some_and(|n| n == "ssh")
    }

    /// Runs `command` by the shell at the other end.
    pub fn command(&self, command: &str) -> Command {
        let mut c = self.plain();
        if self.is_ssh() {
            // As scp does: what the user's settings ask for of a login must not disturb a transfer.
            c.args(["-x", "-oClearAllForwardings=yes", "-oPermitLocalCommand=no"]);
            c.args(["-oRemoteCommand=none", "-oRequestTTY=no", "--"]);
        }
        c.arg(&self.target).arg(command);
        c
    }

    /// Prints the settings that ssh has for this machine.
    pub fn settings(&self) -> Command {
        let mut c = self.plain();
        c.args(["-G", "--", &self.target]);
        c
    }

    fn plain(&self) -> Command {
        let mut c = Command::new(self.program());
        c.args(self.words.iter().skip(1)).env_remove("LONGHAUL_TOKEN");
        c
    }
}

/// What is run at the other end: `longhaul serve --over-ssh put -- PATH`. Whatever shell reads it takes each word as it is: paths
/// have no characters but those of an address, others are `%NN`.
///
/// # Errors
/// More paths than fit.
pub fn remote_command(
    program: &str,
    operation: &str,
    range: Option<PortRange>,
    options: &Options,
    paths: &[Vec<u8>],
) -> Outcome<String> {
    let mut line = format!("{program} serve --over-ssh {operation}");
    if tracing::enabled!(Level::DEBUG) {
        line.push_str(" -vv");
    } else if tracing::enabled!(Level::INFO) {
        line.push_str(" -v");
    }
    if let Some(r) = range {
        line.push_str(&format!(" --port-range {r}"));
    }
    for o in options {
        line.push(' ');
        line.push_str(o);
    }
    line.push_str(" --");
    for p in paths {
        // Never empty, and nothing that a shell would act on at the start of a word, such as ~ or =.
        let start = if p.starts_with(b"/") { "" } else { "./" };
        let (start, p) = match p.strip_prefix(b"~") {
            Some(rest) => ("%7E", rest),
            None => (start, &p[..]),
        };
        line.push_str(&format!(" {start}{}", url::encode(p)));
    }
    if line.len() > MAX_COMMAND {
        let text = format!(
            "cannot ask for {} paths by one command over ssh: they take {} bytes, and {MAX_COMMAND} are the most; try the \
             folder that they are in",
            paths.len(),
            line.len()
        );
        return Err(Failure::usage(text));
    }
    Ok(line)
}

/// Words as a shell divides them: blanks between them, `'` and `"` around what has some. Nothing else has a meaning, as in
/// rsync's `-e`.
fn split_words(text: &str) -> Result<Vec<String>, &'static str> {
    let (mut words, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) =
        (Vec::new(), None, None);
    for c in text.chars() {
        match quote {
            Some(q) if q == c => quote = None,
            None if c == '\'' || c == '"' => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            None if c.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("a quotation mark has no end");
    }
    words.extend(word);
    if words.first().is_none_or(String::is_empty) {
        return Err("it is empty");
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rsh_commands_are_split_as_by_rsync() {
        let words = |t: &str| split_words(t).unwrap();
        assert_eq!(words("ssh"), ["ssh"]);
        assert_eq!(words("  ssh  -p 2222\t-i  'my key' "), ["ssh", "-p", "2222", "-i", "my key"]);
        assert_eq!(words("a\"b 'c\"'d e'"), ["ab 'cd e"]);
        assert_eq!(words("ssh ''"), ["ssh", ""]);
        for bad in ["", " ", "''", "ssh 'x", "ssh \""] {
            assert!(split_words(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ssh_options_go_to_ssh_only_and_the_target_is_no_option() {
        let remote = Remote { target: "anna@tower".into(), path: vec![] };
        let line = |rsh: Option<&str>| {
            let over = SshOptions { rsh: rsh.map(str::to_owned), ..SshOptions::default() };
            let c = SshCommand::new(&over, &remote).unwrap().command("do it");
            c.get_args().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let plain = line(None);
        assert!(plain.ends_with(&["--".to_owned(), "anna@tower".into(), "do it".into()]), "{plain:?}");
        assert_eq!(line(Some("/usr/bin/ssh -p 7"))[..3], ["-p", "7", "-x"]);
        assert_eq!(line(Some("docker exec -i")), ["exec", "-i", "anna@tower", "do it"]);
    }

    fn command(path: &[u8]) -> String {
        remote_command("longhaul", "put", None, &Options::new(), &[path.to_vec()]).unwrap()
    }

    #[test]
    fn paths_contain_no_shell_metacharacters() {
        assert_eq!(command(b"").rsplit(' ').next(), Some("./"));
        assert_eq!(command(b"~/a b").rsplit(' ').next(), Some("%7E/a%20b"));
        assert_eq!(command(b"/srv/'x'").rsplit(' ').next(), Some("/srv/%27x%27"));
        assert_eq!(command(b"-rf").rsplit(' ').next(), Some("./-rf"));
        let range = PortRange { first: 1, last: 2 };
        let line = remote_command(
            "x",
            "get",
            Some(range),
            &vec!["--mtu=1400".into()],
            &[b"a".to_vec(), b"b".to_vec()],
        );
        assert_eq!(line.unwrap(), "x serve --over-ssh get --port-range 1:2 --mtu=1400 -- ./a ./b");
        let many = vec![vec![b'x'; 200]; 600];
        assert!(remote_command("longhaul", "get", None, &Options::new(), &many).is_err());
    }

    proptest! {
        #[test]
        fn any_path_becomes_one_plain_word(path in proptest::collection::vec(any::<u8>(), 0..60)) {
            let line = command(&path);
            let word = line.strip_prefix("longhaul serve --over-ssh put -- ").unwrap();
            prop_assert!(!word.is_empty() && !word.starts_with(['-', '~', '=', '+', '@']));
            prop_assert!(word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/.-_+,=@%".contains(&b)), "{}", word);
            let back = url::decode(word).unwrap();
            prop_assert!(back == path || back == [b"./", &path[..]].concat());
        }

        #[test]
        fn any_command_is_split_without_panic(text in "\\PC{0,40}") {
            let _ = split_words(&text);
        }
    }
}
