use crate::*;

/// The problems of a policy, each as `line severity what | remedy`.
fn problems(text: &str) -> Vec<String> {
    let p = match Policy::read(text) {
        Ok((_, p)) => p,
        Err(p) => p,
    };
    p.list.iter().map(|p| format!("{} {:?} {} | {}", p.line, p.severity, p.message, p.remedy)).collect()
}

/// Asserts that a policy has exactly one problem, whose text has each of these words.
#[track_caller]
fn assert_one_problem(text: &str, words: &[&str]) {
    let all = problems(text);
    assert_eq!(all.len(), 1, "{text}\n{all:#?}");
    for w in words {
        assert!(all[0].contains(w), "{w}: {}", all[0]);
    }
}

#[test]
fn renamed_keys_are_errors_that_give_the_new_name() {
    let rule = |more: &str| format!("[[rule]]\nname = \"r\"\nmatch = {{}}\n{more}");
    for (old, new) in [
        ("substitute = \"reno\"", "fallback"),
        ("may_choose = true", "allow_override"),
        ("treat_as = \"latency\"", "qos"),
        ("cc_wish = \"reno\"", "peer_cc"),
        ("cc_wish_only = true", "peer_cc_only"),
        ("cc_refuse = \"reno\"", "peer_cc_refuse"),
        ("cc_firm = true", "cc_prefer_own"),
    ] {
        assert_one_problem(&rule(old), &["4 Error", "has no key", &format!("it is now called \"{new}\"")]);
    }
}

#[test]
fn unknown_keys_and_names_get_a_suggestion() {
    assert_one_problem("[proces]\ncap = \"1G\"", &["1 Error", "\"proces\"", "mean \"process\""]);
    // The key's former name, which promised more than it did.
    assert_one_problem("[host]\ncap = \"1G\"", &["1 Error", "each process", "write [process]"]);
    assert_one_problem(
        "[process]\ncapp = \"1G\"",
        &["2 Error", "[process] has no key \"capp\"", "mean \"cap\""],
    );
    assert_one_problem(
        "[[class]]\nname = \"a\"\nwieght = 3",
        &["3 Error", "class \"a\" has no key", "mean \"weight\""],
    );
    assert_one_problem("[default]\nalgorithm = \"cubik\"", &["2 Error", "cubik", "mean \"cubic\""]);
    assert_one_problem("[default]\nclass = \"bulkk\"", &["2 Error", "the class \"bulkk\"", "mean \"bulk\""]);
    assert_one_problem("[qos.latncy]\nclass = \"bulk\"", &["1 Error", "mean \"latency\""]);
    assert_one_problem("[dscp]\nCS9 = \"bulk\"", &["2 Error", "code point", "AF11"]);
    assert_one_problem(
        "[dscp]\nCS1 = \"deadline\"",
        &["2 Error", "unknown", "ordinary, latency, bulk, scavenger"],
    );
    assert_one_problem(
        "[[rule]]\nname = \"r\"\nmatch = { carrier = \"udp\" }",
        &["3 Error", "match of rule \"r\"", "native, tcp, roce"],
    );
    assert_one_problem(
        "[[rule]]\nname = \"r\"\nmatch = { path = \"wam\" }\n[path.wan]\ndestination = \"::/0\"",
        &["3 Error", "\"wam\"", "mean \"wan\""],
    );
    assert_one_problem(
        "[[class]]\nname = \"a\"\nparent = \"storge\"\n[[class]]\nname = \"storage\"",
        &["3 Error", "mean \"storage\""],
    );
}

#[test]
fn values_of_wrong_type_or_range_are_errors() {
    assert_one_problem(
        "[process]\ncap = \"fast\"",
        &["2 Error", "cap = \"fast\" of [process] is not a rate", "\"300M\""],
    );
    assert_one_problem("[process]\ncap = 300", &["2 Error", "without a unit", "\"300M\""]);
    assert_one_problem("[process]\ncap = true", &["2 Error", "true or false", "quotation marks"]);
    assert_one_problem("[[class]]\nname = \"a\"\nweight = 0", &["3 Error", "1 to 10000"]);
    assert_one_problem("[[class]]\nname = \"a\"\nlevel = 8", &["3 Error", "0 to 7"]);
    assert_one_problem("[[class]]\nname = \"a\"\norder = \"edf\"", &["3 Error", "fair, strict, deadline"]);
    assert_one_problem("[[class]]\nname = \"\"", &["2 Error", "is not a name"]);
    assert_one_problem("[[class]]\nweight = 5", &["1 Error", "has no name"]);
    assert_one_problem("[default]\nallow_override = \"yes\"", &["2 Error", "true or false"]);
    assert_one_problem(
        "[default]\nalgorithm = \"ledbat++:target=9s\"",
        &["2 Error", "target=9s", "cc describe"],
    );
    assert_one_problem("[default]\nalgorithm = \"ledbat++:tarket=9ms\"", &["2 Error", "mean \"target\""]);
    assert_one_problem("[[rule]]\nname = \"r\"", &["1 Error", "has no match", "match = {}"]);
    let rule = |m: &str| format!("[[rule]]\nname = \"r\"\nmatch = {{ {m} }}");
    assert_one_problem(&rule("destination = \"10.0.0.0/33\""), &["3 Error", "0 to 32"]);
    assert_one_problem(&rule("destination = \"10.1.0.0/8\""), &["3 Error", "\"10.0.0.0/8\""]);
    assert_one_problem(&rule("source = [\"10.0.0.0/8\", \"home\"]"), &["3 Error", "\"home\"", "fd00::/8"]);
    assert_one_problem(&rule("destination_port = 0"), &["3 Error", "1 to 65535"]);
    assert_one_problem(&rule("destination_port = \"9-1\""), &["3 Error", "range"]);
    assert_one_problem(&rule("dscp = []"), &["3 Error", "0 values"]);
    assert_one_problem(&rule("dscp = 64"), &["3 Error", "code point"]);
    assert_one_problem(&rule("qos = \"fast\""), &["3 Error", "unknown"]);
    assert_one_problem(&rule("application = \"\""), &["3 Error", "name"]);
    assert_one_problem("[path.x]", &["1 Error", "says nothing"]);
    assert_one_problem("rule = 3", &["1 Error", "[[rule]]"]);
}

#[test]
fn terms_for_the_peer_are_checked() {
    let rule = |more: &str| format!("[[rule]]\nname = \"r\"\nmatch = {{}}\n{more}");
    assert_one_problem("[default]\npeer_cc = [\"bbr\", \"cubik\"]", &["2 Error", "cubik", "mean \"cubic\""]);
    assert_one_problem("[qos.bulk]\npeer_cc = \"cubic:hystart=perhaps\"", &["2 Error", "hystart=perhaps"]);
    assert_one_problem(&rule("cc_allow = [\"none\", \"bbr\"]"), &["4 Error", "\"none\""]);
    assert_one_problem(&rule("peer_cc_refuse = \"bbr:probe_rtt=off\""), &["4 Error", "bbr:probe_rtt=off"]);
    assert_one_problem(&rule("peer_cc_refuse = []"), &["4 Error", "0 values"]);
    assert_one_problem(&rule("cc_prefer_own = \"yes\""), &["4 Error", "true or false"]);
    assert_one_problem(&rule("peer_cc_only = true"), &["1 Error", "but no peer_cc", "add peer_cc"]);
    assert_one_problem(&rule("peer_cc = [\"reno\", \"reno\"]"), &["4 Error", "reno twice"]);
    assert_one_problem(
        &rule("peer_cc = \"cubic:hystart=off\"\npeer_cc_refuse = \"cubic\""),
        &["4 Error", "both prefers and refuses cubic"],
    );
    let many: Vec<_> = (0..=MAX_NAMES).map(|i| format!("\"x{i}\"")).collect();
    let all = problems(&format!("programs = [{0}]\n[default]\npeer_cc_refuse = [{0}]", many.join(", ")));
    assert!(all.iter().any(|p| p.contains("has 17 values") && p.contains("give 16")), "{all:#?}");
    assert_one_problem(
        &rule("algorithm = \"bbr\"\ncc_allow = \"reno\""),
        &["5 Warning", "the rule names its algorithm", "allow_override = true"],
    );
    assert_eq!(
        problems(&rule("algorithm = \"bbr\"\ncc_allow = \"reno\"\nallow_override = true")),
        Vec::<String>::new()
    );
}

#[test]
fn all_problems_are_reported_at_once_in_line_order() {
    let text = "\
[process]
cap = \"1 G\"
rate = \"fast\"
[[class]]
name = \"a\"
parent = \"b\"
weight = 0
[[class]]
name = \"b\"
parent = \"a\"
[[rule]]
name = \"x\"
match = { destination = \"10.0.0.0/8\" }
algorithm = \"nonsense\"
[[rule]]
name = \"x\"
match = { destination = \"10.1.0.0/16\" }
";
    let all = problems(text);
    let lines: Vec<_> = all.iter().map(|p| p.split(' ').next().unwrap().parse::<usize>().unwrap()).collect();
    assert_eq!(lines, [3, 6, 7, 10, 14, 15, 15], "{all:#?}");
    assert!(all[1].contains("\"a\" -> \"b\" -> \"a\"") && all[3].contains("\"b\" -> \"a\" -> \"b\""));
}

#[test]
fn syntax_errors_have_line_numbers() {
    let all = problems("[process]\ncap = \n[[rule]\nname = \"x\"\n");
    assert!(all.iter().any(|p| p.starts_with("2 Error not TOML")), "{all:#?}");
    assert_one_problem("[process]\ncap = \"1G\"\ncap = \"2G\"", &["3 Error", "not TOML", "duplicate"]);
}

#[test]
fn guarantees_beyond_caps_are_errors() {
    assert_one_problem("[process]\ncap = \"2G\"\nrate = \"1G\"", &["2 Error", "2G", "1G"]);
    assert_one_problem("[[class]]\nname = \"a\"\nguarantee = \"1G\"", &["1 Warning", "rate = "]);
    let host = "[process]\nrate = \"1G\"\n";
    let class = |name: &str, more: &str| format!("[[class]]\nname = \"{name}\"\n{more}\n");
    assert_one_problem(
        &format!("{host}{}", class("a", "guarantee = \"600M\"\ncap = \"500M\"")),
        &["3 Error", "above its cap of 500M"],
    );
    let two = class("a", "guarantee = \"600M\"") + &class("b", "guarantee = \"600M\"");
    assert_one_problem(&format!("{host}{two}"), &["2 Error", "add up to 1.2G", "1G at most"]);
    let tree = class("p", "cap = \"1G\"")
        + &class("a", "guarantee = \"600M\"\nparent = \"p\"")
        + &class("b", "guarantee = \"600M\"\nparent = \"p\"");
    assert_one_problem(
        &format!("[process]\nrate = \"9G\"\n{tree}"),
        &["3 Error", "below class \"p\" add up to 1.2G"],
    );
    let tree = class("p", "guarantee = \"500M\"") + &class("a", "guarantee = \"600M\"\nparent = \"p\"");
    assert_one_problem(
        &format!("[process]\nrate = \"9G\"\n{tree}"),
        &["3 Error", "add up to 600M, above its guarantee of 500M"],
    );
    assert_one_problem("[default]\nguarantee = \"2M\"\ncap = \"1M\"", &["2 Error", "above its cap of 1M"]);
    assert_one_problem(&format!("{host}[default]\nguarantee = \"2G\""), &["4 Error", "a process sends 1G"]);
    let rule = "[[rule]]\nname = \"r\"\nmatch = {}\nclass = \"a\"\nguarantee = \"6M\"\n";
    assert_one_problem(
        &format!("{}{rule}", class("a", "cap = \"5M\"")),
        &["8 Error", "the cap of 5M of class \"a\""],
    );
}

#[test]
fn fallbacks_with_needs_and_duplicate_names_are_errors() {
    assert_one_problem("[[class]]\nname = \"a\"\n[[class]]\nname = \"a\"", &["3 Error", "twice", "line 1"]);
    let strict = cc::registry::list().into_iter().find(|d| d.needs != cc::Needs::NOTHING);
    if let Some(d) = strict {
        assert_one_problem(&format!("[default]\nfallback = \"{}\"", d.name), &["2 Error", "no fallback"]);
    }
    let chain: String = (0..=MAX_DEPTH)
        .map(|i| {
            let parent = if i == 0 { String::new() } else { format!("parent = \"c{}\"\n", i - 1) };
            format!("[[class]]\nname = \"c{i}\"\n{parent}")
        })
        .collect();
    assert_one_problem(&chain, &["Error", "levels of classes deep"]);
}

fn rules(matches: &[&str]) -> String {
    let rule = |(i, m): (usize, &&str)| {
        format!("[[rule]]\nname = \"r{i}\"\nmatch = {{ {m} }}\nweight = {}\n", i + 1)
    };
    matches.iter().enumerate().map(rule).collect()
}

#[test]
fn unreachable_rules_are_errors() {
    assert_one_problem(&rules(&["", "dscp = 3"]), &["5 Error", "\"r1\" is never reached", "\"r0\" (line 1)"]);
    assert_one_problem(
        &rules(&["destination = \"10.0.0.0/8\"", "destination = \"10.1.0.0/16\", dscp = 3"]),
        &["5 Error", "never"],
    );
    assert_one_problem(
        &rules(&["application = \"back*\"", "application = [\"backup?\", \"backend\"]"]),
        &["5 Error", "never"],
    );
    // Two earlier rules that each cover half.
    let halves = [
        "destination = \"10.0.0.0/9\"",
        "destination = \"10.128.0.0/9\"",
        "destination = \"10.0.0.0/8\", qos = \"bulk\"",
    ];
    assert_one_problem(&rules(&halves), &["9 Error", "\"r0\" (line 1), \"r1\" (line 5)"]);
    let quarters = [
        "destination_port = \"1-99\", dscp = 1",
        "destination_port = \"100-65535\", dscp = 1",
        "destination_port = \"50-150\", dscp = 1, carrier = \"tcp\"",
    ];
    assert_one_problem(&rules(&quarters), &["9 Error", "never"]);
    assert_one_problem(
        &(rules(&["path = \"wan\", destination = \"11.0.0.0/8\""])
            + "[path.wan]\ndestination = \"10.0.0.0/8\""),
        &["1 Error", "never applies"],
    );
    // A path with two alternatives, of which one is left over.
    let paths = "[path.a]\ndestination = \"10.0.0.0/8\"\n[path.b]\ndestination = \"11.0.0.0/8\"\n";
    let two = rules(&["path = \"a\"", "path = [\"a\", \"b\"]"]) + paths;
    assert_eq!(problems(&two), Vec::<String>::new());
    assert_one_problem(&(rules(&["path = [\"a\", \"b\"]", "path = \"b\""]) + paths), &["5 Error", "never"]);
}

#[test]
fn partly_overlapping_rules_are_warned_of_and_specific_before_general_are_not() {
    assert_one_problem(
        &rules(&["destination = \"10.0.0.0/8\"", "application = \"backup\""]),
        &["5 Warning", "both fit some flows"],
    );
    assert_eq!(
        problems(&rules(&["destination = \"10.1.0.0/16\"", "destination = \"10.0.0.0/8\""])),
        Vec::<String>::new()
    );
    assert_eq!(problems(&rules(&["dscp = 1", "dscp = 2", "dscp = [1, 2, 3]", ""])), Vec::<String>::new());
    assert_eq!(problems(&rules(&["application = \"a*\"", "application = \"b*\""])), Vec::<String>::new());
    // The same treatment, so the overlap does not matter.
    let same = "[[rule]]\nname = \"a\"\nmatch = { dscp = [1, 2] }\n[[rule]]\nname = \"b\"\nmatch = { dscp = [2, 3] }\n";
    assert_eq!(problems(same), Vec::<String>::new());
}

#[test]
fn limits_are_enforced() {
    assert_one_problem(&"#".repeat(MAX_FILE + 1), &["1 Error", "1048577 bytes"]);
    let many = |n: usize| {
        let rule = |i: usize| {
            format!("[[rule]]\nname=\"{i}\"\nmatch={{destination=\"10.{}.{}.0/24\"}}\n", i / 256, i % 256)
        };
        (0..n).map(rule).collect::<String>()
    };
    assert_eq!(problems(&many(MAX_RULES)), Vec::<String>::new());
    assert_one_problem(&many(MAX_RULES + 1), &["12289 Error", "4097 rule tables"]);
    let classes: String = (0..=MAX_CLASSES).map(|i| format!("[[class]]\nname=\"{i}\"\n")).collect();
    assert_one_problem(&classes, &["513 Error", "257 class tables"]);
    let paths: String = (0..=MAX_PATHS).map(|i| format!("[path.p{i}]\nsource=\"::/0\"\n")).collect();
    assert_one_problem(&paths, &["257 paths"]);
    let values = vec!["1"; MAX_VALUES + 1].join(",");
    assert_one_problem(&rules(&[&format!("source_port = [{values}]")]), &["257 values"]);
    // Deep nesting is an error, not a stack overflow.
    for deep in ["[".repeat(100_000), "a=".to_owned() + &"{a=".repeat(100_000), "a.".repeat(100_000) + "a=1"]
    {
        let all = problems(&deep);
        assert!(all.iter().any(|p| p.contains("Error")), "{}", &deep[..9]);
    }
    // More problems than are listed.
    let bad: String = (0..1_000).map(|i| format!("k{i} = 1\n")).collect();
    let p = Policy::read(&bad).unwrap_err();
    assert_eq!((p.list.len(), p.omitted, p.errors), (MAX_PROBLEMS, 1_000 - MAX_PROBLEMS, 1_000));
}
