//! Tests of the whole command line: what it accepts, and its help texts.

use super::*;
use clap::{Arg, CommandFactory as _};

/// Options that the help of one command shows at most.
const MAX_SHOWN: usize = 19;
/// Headings that options may stand under.
const HEADINGS: [&str; 5] =
    [heading::TRANSFER, heading::NETWORK, heading::SECURITY, heading::CONGESTION_CONTROL, heading::OUTPUT];

#[test]
fn command_line_definition_passes_the_checks_of_clap() {
    Cli::command().debug_assert();
}

#[test]
fn valid_commands_parse_and_invalid_ones_exit_with_status_2() {
    let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
    for good in [
        "longhaul serve /srv",
        "longhaul serve /srv --listen 0.0.0.0:4460 --token --no-overwrite",
        "longhaul serve /srv --token=3 --limit 1gbit",
        "longhaul put a b/ longhaul://host/x/ --limit 500mbit --json -n",
        "longhaul get longhaul://[::1]:9/x . --checksum -q",
        "longhaul get longhaul://host/x . --limit 1gbit --cc cubic --known-rate 900mbit --no-resume",
        "longhaul put a longhaul://host/x/ --qos latency --app db-1",
        "longhaul get longhaul://host/x . --qos guaranteed(300M)",
        "longhaul ls longhaul://host/ -r",
        "longhaul serve /srv --cert c.pem --key k.pem --ca roots.pem --allow-name a --allow-name b",
        "longhaul put a longhaul://host/ --cert c.pem --cacert roots.pem",
        "longhaul keys token -n 3 --lifetime 10min",
        "longhaul serve /srv --datapath udp --lanes 4 --cores 0,2,4,6",
        "longhaul serve /srv --datapath uring",
        "longhaul serve /srv --discover off",
        "longhaul put a longhaul://host/x/ --discover mesh",
        "longhaul serve /srv --datapath xdp:eth0",
        "longhaul perf client host -o read -P 4 -t 2s --suite aegis-128l",
        "longhaul wan relay --listen 127.0.0.1:0 --to 127.0.0.1:1 rate=500mbit delay=35ms",
        "longhaul sim steady --rate 10gbit --loss 1%",
        "longhaul demo -v",
        "longhaul sim swarm --seeds 0..1000 --threads 2",
        "longhaul lab run fig2 --only loss=1% --repeat 2 --out x --sim",
        "longhaul lab run breadth --sim --part 1/20 --repeat 2 --jobs 2",
        "longhaul lab search --cc haul --against bbr --time 10min --evaluations 48 --seed 7 --jobs 2 --keep 5 --out x.toml",
        "longhaul lab exec --link rate=1gbit --beside b=true a -- ping -c 1 10.77.0.2",
        "longhaul lab list fig2 --cells",
        "longhaul serve /srv --policy etcds://a,b:1/longhaul/policy --store-ca ca.pem --control-group ops",
        "longhaul put a longhaul://host/ --policy p.toml --no-control",
        "longhaul cc show --watch --json",
        "longhaul cc set p.toml --pid 3",
        "longhaul cc set --flow 3/1.0 --cc cubic --cap none",
        "longhaul cc push p.toml --store etcd://h/k",
        "longhaul cc trace --flow 3/1.0 --every 10 -n 5",
    ] {
        assert!(parse(good).is_ok(), "{good}: {}", parse(good).unwrap_err());
    }
    for bad in [
        "longhaul",
        "longhaul put a",
        "longhaul put a host/x",
        "longhaul get longhaul://host/x",
        "longhaul put a longhaul://host/x --cc nonsense",
        "longhaul put a longhaul://host/x --mtu 100",
        "longhaul put a longhaul://host/x --qos fast",
        "longhaul serve /srv --read-only --write-only",
        "longhaul perf client host -n 1G -t 1s",
        "longhaul put a longhaul://host/x --key k.pem",
        "longhaul put a longhaul://host/x --ca roots.pem --accept-new",
        "longhaul serve /srv --ca roots.pem --token",
        "longhaul serve /srv --allow-name a",
        "longhaul sim swarm --seeds 5..5",
        "longhaul serve /srv --datapath tcp",
        "longhaul serve /srv --lanes 0",
        "longhaul serve /srv --cores a",
        "longhaul serve /srv --no-control --control-group ops",
        "longhaul put a longhaul://host/ --policy http://h/k",
        "longhaul cc set",
        "longhaul cc set p.toml --cap 1G",
        "longhaul cc set p.toml --flow 3/1.0",
        "longhaul cc push p.toml",
        "longhaul cc trace --every 0",
    ] {
        assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad}");
    }
}

/// Every command with its words, groups of commands included.
fn commands() -> Vec<(String, clap::Command)> {
    fn add(c: &clap::Command, words: &str, out: &mut Vec<(String, clap::Command)>) {
        for sub in c.get_subcommands().filter(|s| s.get_name() != "help") {
            add(sub, &format!("{words} {}", sub.get_name()), out);
        }
        out.push((words.to_owned(), c.clone()));
    }
    let mut all = Cli::command();
    all.build();
    let mut out = Vec::new();
    add(&all, "longhaul", &mut out);
    out
}

/// What the command prints when its help is asked for by `flag`.
fn help(words: &str, flag: &str) -> String {
    let words = words.split(' ').chain([flag]);
    let e = Cli::try_parse_from(words).unwrap_err();
    assert_eq!(e.exit_code(), 0, "{e}");
    e.render().to_string()
}

/// The long names of the options in a help text.
fn shown(help: &str) -> Vec<String> {
    // Further in stands what is said of them.
    let options = help.lines().filter(|l| !l.starts_with("        ") && l.trim_start().starts_with('-'));
    let names = options.filter_map(|l| l.split("--").nth(1));
    names.map(|n| n.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()).collect()
}

fn options(c: &clap::Command) -> Vec<Arg> {
    c.get_arguments().filter(|a| !a.is_positional()).cloned().collect()
}

#[test]
fn help_shows_fewer_than_20_options_of_each_command() {
    for (words, _) in commands() {
        let text = help(&words, "--help");
        assert_eq!(text, help(&words, if words.ends_with(" ls") { "--help" } else { "-h" }), "{words}");
        let shown = shown(&text);
        assert!((3..=MAX_SHOWN).contains(&shown.len()), "{words}: {}: {shown:?}", shown.len());
        assert!(shown.contains(&"help-all".to_owned()), "{words}: {shown:?}");
    }
}

#[test]
fn help_all_shows_every_option_under_its_heading() {
    let mut all = 0;
    for (words, command) in commands() {
        let text = help(&words, "--help-all");
        let mut shown = shown(&text);
        let mut names: Vec<String> =
            options(&command).iter().filter_map(|a| a.get_long().map(str::to_owned)).collect();
        shown.sort();
        names.sort();
        assert_eq!(shown, names, "{words}");
        all += names.len();
        for a in options(&command) {
            let heading = a.get_help_heading().unwrap_or_default();
            assert!(HEADINGS.contains(&heading), "{words} {a}: \"{heading}\"");
            assert!(text.contains(&format!("\n{heading}:\n")), "{words}: {heading}");
        }
        assert!(!text.contains("\nOptions:"), "{words}: options without a heading");
    }
    assert!(all > 400, "they are not found: {all}");
}

/// What is wrong with the help text of an option.
fn flaws(a: &Arg) -> Vec<&'static str> {
    let help = a.get_help().map(ToString::to_string).unwrap_or_default();
    let name = a.get_value_names().and_then(|n| n.first()).map(|n| n.to_string()).unwrap_or_default();
    let takes_value = a.get_action().takes_values();
    let ranged = name == "N" || name == "BYTES" || name == "SHARE";
    let bounds = [" to ", "from 1", " or auto", "after N"];
    let default = !a.get_default_values().is_empty() || a.is_required_set() || help.contains("default");
    let units = ["RATE", "TIME", "SIZE", "BYTES", "SHARE", "N", "AGE"];
    let has_unit = |v: &std::ffi::OsStr| v.to_str().is_some_and(|v| v.ends_with(char::is_alphabetic));
    [
        ("is empty", help.is_empty()),
        ("is more than one sentence", help.contains(". ") || help.ends_with('.')),
        ("does not begin like a sentence", !help.starts_with(|c: char| c.is_uppercase() || c == 'i')),
        ("is too long", help.len() > 180),
        ("has no default", takes_value && !default),
        ("has no range", takes_value && ranged && !bounds.iter().any(|b| help.contains(b))),
        ("has no value name", takes_value && name.is_empty()),
        (
            "has a default without a unit",
            ["RATE", "TIME"].contains(&&*name) && !a.get_default_values().iter().all(|v| has_unit(v)),
        ),
        (
            "has a number without a unit",
            takes_value && name.chars().all(char::is_uppercase) && name.len() < 2 && !units.contains(&&*name),
        ),
    ]
    .into_iter()
    .filter_map(|(what, wrong)| wrong.then_some(what))
    .collect()
}

#[test]
fn every_option_has_one_plain_sentence_with_range_and_default() {
    let mut wrong = Vec::new();
    for (words, command) in commands() {
        for a in options(&command) {
            let help = a.get_help().map(ToString::to_string).unwrap_or_default();
            wrong.extend(flaws(&a).into_iter().map(|f| format!("{words} {a} {f}: {help}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn commands_that_take_rates_times_or_sizes_explain_their_units() {
    for (words, command) in commands() {
        let takes = |a: &Arg| {
            let names = a.get_value_names().unwrap_or_default();
            a.get_action().takes_values()
                && names.iter().any(|n| ["RATE", "TIME", "SIZE"].contains(&n.as_str()))
        };
        if options(&command).iter().any(takes) {
            assert!(help(&words, "--help").contains("Units:"), "{words}");
        }
    }
}
