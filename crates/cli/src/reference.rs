//! `longhaul man`: man pages, made from the command line definitions.

use crate::args::Cli;
use crate::exit::{Failure, Outcome};
use clap::CommandFactory as _;
use std::path::Path;

/// Writes a page for each command.
pub fn man(dir: &Path) -> Outcome<()> {
    let fail = |e: std::io::Error| {
        Failure::usage(format!("cannot write man pages to {}: {e}; try another folder", dir.display()))
    };
    std::fs::create_dir_all(dir).map_err(fail)?;
    let mut all = Cli::command();
    // Subcommands get what holds for all of them, such as -v.
    all.build();
    pages(all, "", dir).map_err(fail)
}

fn pages(command: clap::Command, prefix: &str, dir: &Path) -> std::io::Result<()> {
    let name = if prefix.is_empty() {
        command.get_name().to_owned()
    } else {
        format!("{prefix}-{}", command.get_name())
    };
    let command = command.display_name(&name);
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        pages(sub.clone(), &name, dir)?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    std::fs::write(dir.join(format!("{name}.1")), page)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        super::man(dir.path()).unwrap();
        for page in [
            "longhaul.1",
            "longhaul-put.1",
            "longhaul-perf-client.1",
            "longhaul-wan-relay.1",
            "longhaul-clean.1",
        ] {
            let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(text.contains(".SH"), "{page}");
        }
        let put = std::fs::read_to_string(dir.path().join("longhaul-put.1")).unwrap();
        for flag in ["known\\-rate", "no\\-resume", "cert", "cacert"] {
            assert!(put.contains(flag), "{flag}");
        }
        let serve = std::fs::read_to_string(dir.path().join("longhaul-serve.1")).unwrap();
        assert!(serve.contains("allow\\-name"));
        let token = std::fs::read_to_string(dir.path().join("longhaul-keys-token.1")).unwrap();
        assert!(token.contains("lifetime"));
    }

    #[test]
    fn pages_group_all_options_under_their_headings() {
        let dir = tempfile::tempdir().unwrap();
        super::man(dir.path()).unwrap();
        let put = std::fs::read_to_string(dir.path().join("longhaul-put.1")).unwrap();
        for heading in ["TRANSFER", "NETWORK", "SECURITY", "CONGESTION CONTROL", "OUTPUT"] {
            assert!(
                put.contains(&format!(".SH \"{heading}\"")) || put.contains(&format!(".SH {heading}")),
                "{heading}"
            );
        }
        // One that `--help` leaves out.
        for option in ["mpa\\-markers", "verbose", "help\\-all"] {
            assert!(put.contains(&format!("\\-\\-{option}\\fR\n")), "{option}");
        }
    }
}
