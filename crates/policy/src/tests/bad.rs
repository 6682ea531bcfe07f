use crate::*;

/// The problems of a policy, each as `line severity what | remedy`.
fn problems(text: &str) -> Vec<String> {
    let p = match Policy::read(text) {
        Ok((_, p)) => p,
        Err(p) => p,
    };
    p.list.iter().map(|p| format!("{} {:?} {} | {}", p.line, p.severity, p.what, p.remedy)).collect()
}

/// That a policy has one problem, which has each of these words.
#[track_caller]
fn one(text: &str, words: &[&str]) {
    let all = problems(text);
    assert_eq!(all.len(), 1, "{text}\n{all:#?}");
    for w in words {
        assert!(all[0].contains(w), "{w}: {}", all[0]);
    }
}

#[test]
fn keys_and_names_are_known_or_guessed() {
    one("[proces]\ncap = \"1G\"", &["1 Error", "\"proces\"", "mean \"process\""]);
    // The word of before promised more than it did.
    one("[host]\ncap = \"1G\"", &["1 Error", "each process", "write [process]"]);
    one("[process]\ncapp = \"1G\"", &["2 Error", "[process] has no key \"capp\"", "mean \"cap\""]);
    one("[[class]]\nname = \"a\"\nwieght = 3", &["3 Error", "class \"a\" has no key", "mean \"weight\""]);
    one("[default]\nalgorithm = \"cubik\"", &["2 Error", "cubik", "mean \"cubic\""]);
    one("[default]\nclass = \"bulkk\"", &["2 Error", "the class \"bulkk\"", "mean \"bulk\""]);
    one("[qos.latncy]\nclass = \"bulk\"", &["1 Error", "mean \"latency\""]);
    one("[dscp]\nCS9 = \"bulk\"", &["2 Error", "code point", "AF11"]);
    one("[dscp]\nCS1 = \"deadline\"", &["2 Error", "unknown", "ordinary, latency, bulk, scavenger"]);
    one(
        "[[rule]]\nname = \"r\"\nmatch = { carrier = \"udp\" }",
        &["3 Error", "match of rule \"r\"", "native, tcp, roce"],
    );
    one(
        "[[rule]]\nname = \"r\"\nmatch = { path = \"wam\" }\n[path.wan]\ndestination = \"::/0\"",
        &["3 Error", "\"wam\"", "mean \"wan\""],
    );
    one(
        "[[class]]\nname = \"a\"\nparent = \"storge\"\n[[class]]\nname = \"storage\"",
        &["3 Error", "mean \"storage\""],
    );
}

#[test]
fn values_are_of_their_kind_and_in_their_range() {
    one("[process]\ncap = \"fast\"", &["2 Error", "cap = \"fast\" of [process] is not a rate", "\"300M\""]);
    one("[process]\ncap = 300", &["2 Error", "without a unit", "\"300M\""]);
    one("[process]\ncap = true", &["2 Error", "true or false", "quotation marks"]);
    one("[[class]]\nname = \"a\"\nweight = 0", &["3 Error", "1 to 10000"]);
    one("[[class]]\nname = \"a\"\nlevel = 8", &["3 Error", "0 to 7"]);
    one("[[class]]\nname = \"a\"\norder = \"edf\"", &["3 Error", "fair, strict, deadline"]);
    one("[[class]]\nname = \"\"", &["2 Error", "is not a name"]);
    one("[[class]]\nweight = 5", &["1 Error", "has no name"]);
    one("[default]\nmay_choose = \"yes\"", &["2 Error", "true or false"]);
    one("[default]\nalgorithm = \"ledbat++:target=9s\"", &["2 Error", "target=9s", "cc describe"]);
    one("[default]\nalgorithm = \"ledbat++:tarket=9ms\"", &["2 Error", "mean \"target\""]);
    one("[[rule]]\nname = \"r\"", &["1 Error", "has no match", "match = {}"]);
    let rule = |m: &str| format!("[[rule]]\nname = \"r\"\nmatch = {{ {m} }}");
    one(&rule("destination = \"10.0.0.0/33\""), &["3 Error", "0 to 32"]);
    one(&rule("destination = \"10.1.0.0/8\""), &["3 Error", "\"10.0.0.0/8\""]);
    one(&rule("source = [\"10.0.0.0/8\", \"home\"]"), &["3 Error", "\"home\"", "fd00::/8"]);
    one(&rule("destination_port = 0"), &["3 Error", "1 to 65535"]);
    one(&rule("destination_port = \"9-1\""), &["3 Error", "range"]);
    one(&rule("dscp = []"), &["3 Error", "0 values"]);
    one(&rule("dscp = 64"), &["3 Error", "code point"]);
    one(&rule("qos = \"fast\""), &["3 Error", "unknown"]);
    one(&rule("application = \"\""), &["3 Error", "name"]);
    one("[path.x]", &["1 Error", "says nothing"]);
    one("rule = 3", &["1 Error", "[[rule]]"]);
}

#[test]
fn what_is_settled_with_the_other_end_is_checked() {
    let rule = |more: &str| format!("[[rule]]\nname = \"r\"\nmatch = {{}}\n{more}");
    one("[default]\ncc_wish = [\"bbr\", \"cubik\"]", &["2 Error", "cubik", "mean \"cubic\""]);
    one("[qos.bulk]\ncc_wish = \"cubic:hystart=perhaps\"", &["2 Error", "hystart=perhaps"]);
    one(&rule("cc_allow = [\"none\", \"bbr\"]"), &["4 Error", "\"none\""]);
    one(&rule("cc_refuse = \"bbr:probe_rtt=off\""), &["4 Error", "bbr:probe_rtt=off"]);
    one(&rule("cc_refuse = []"), &["4 Error", "0 values"]);
    one(&rule("cc_firm = \"yes\""), &["4 Error", "true or false"]);
    one(&rule("cc_wish_only = true"), &["1 Error", "wishes nothing", "add cc_wish"]);
    one(&rule("cc_wish = [\"reno\", \"reno\"]"), &["4 Error", "reno twice"]);
    one(
        &rule("cc_wish = \"cubic:hystart=off\"\ncc_refuse = \"cubic\""),
        &["4 Error", "both wishes and refuses cubic"],
    );
    let many: Vec<_> = (0..=MAX_NAMES).map(|i| format!("\"x{i}\"")).collect();
    let all = problems(&format!("programs = [{0}]\n[default]\ncc_refuse = [{0}]", many.join(", ")));
    assert!(all.iter().any(|p| p.contains("has 17 values") && p.contains("give 16")), "{all:#?}");
    one(
        &rule("algorithm = \"bbr\"\ncc_allow = \"reno\""),
        &["5 Warning", "the rule names its algorithm", "may_choose = true"],
    );
    assert_eq!(
        problems(&rule("algorithm = \"bbr\"\ncc_allow = \"reno\"\nmay_choose = true")),
        Vec::<String>::new()
    );
}

#[test]
fn everything_is_told_at_once_in_the_order_of_lines() {
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
fn text_that_is_no_toml_has_lines_too() {
    let all = problems("[process]\ncap = \n[[rule]\nname = \"x\"\n");
    assert!(all.iter().any(|p| p.starts_with("2 Error not TOML")), "{all:#?}");
    one("[process]\ncap = \"1G\"\ncap = \"2G\"", &["3 Error", "not TOML", "duplicate"]);
}

#[test]
fn promises_are_within_caps() {
    one("[process]\ncap = \"2G\"\nrate = \"1G\"", &["2 Error", "2G", "1G"]);
    one("[[class]]\nname = \"a\"\nguarantee = \"1G\"", &["1 Warning", "rate = "]);
    let host = "[process]\nrate = \"1G\"\n";
    let class = |name: &str, more: &str| format!("[[class]]\nname = \"{name}\"\n{more}\n");
    one(
        &format!("{host}{}", class("a", "guarantee = \"600M\"\ncap = \"500M\"")),
        &["3 Error", "above its cap of 500M"],
    );
    let two = class("a", "guarantee = \"600M\"") + &class("b", "guarantee = \"600M\"");
    one(&format!("{host}{two}"), &["2 Error", "add up to 1.2G", "1G at most"]);
    let tree = class("p", "cap = \"1G\"")
        + &class("a", "guarantee = \"600M\"\nparent = \"p\"")
        + &class("b", "guarantee = \"600M\"\nparent = \"p\"");
    one(&format!("[process]\nrate = \"9G\"\n{tree}"), &["3 Error", "below class \"p\" add up to 1.2G"]);
    let tree = class("p", "guarantee = \"500M\"") + &class("a", "guarantee = \"600M\"\nparent = \"p\"");
    one(
        &format!("[process]\nrate = \"9G\"\n{tree}"),
        &["3 Error", "add up to 600M, above its guarantee of 500M"],
    );
    one("[default]\nguarantee = \"2M\"\ncap = \"1M\"", &["2 Error", "above its cap of 1M"]);
    one(&format!("{host}[default]\nguarantee = \"2G\""), &["4 Error", "a process sends 1G"]);
    let rule = "[[rule]]\nname = \"r\"\nmatch = {}\nclass = \"a\"\nguarantee = \"6M\"\n";
    one(&format!("{}{rule}", class("a", "cap = \"5M\"")), &["8 Error", "the cap of 5M of class \"a\""]);
}

#[test]
fn substitutes_need_nothing_themselves_and_names_are_used_once() {
    one("[[class]]\nname = \"a\"\n[[class]]\nname = \"a\"", &["3 Error", "twice", "line 1"]);
    let strict = cc::registry::list().into_iter().find(|d| d.needs != cc::Needs::NOTHING);
    if let Some(d) = strict {
        one(&format!("[default]\nsubstitute = \"{}\"", d.name), &["2 Error", "no substitute"]);
    }
    let chain: String = (0..=MAX_DEPTH)
        .map(|i| {
            let parent = if i == 0 { String::new() } else { format!("parent = \"c{}\"\n", i - 1) };
            format!("[[class]]\nname = \"c{i}\"\n{parent}")
        })
        .collect();
    one(&chain, &["Error", "levels of classes deep"]);
}

fn rules(matches: &[&str]) -> String {
    let rule = |(i, m): (usize, &&str)| {
        format!("[[rule]]\nname = \"r{i}\"\nmatch = {{ {m} }}\nweight = {}\n", i + 1)
    };
    matches.iter().enumerate().map(rule).collect()
}

#[test]
fn rules_that_are_never_reached_are_errors() {
    one(&rules(&["", "dscp = 3"]), &["5 Error", "\"r1\" is never reached", "\"r0\" (line 1)"]);
    one(
        &rules(&["destination = \"10.0.0.0/8\"", "destination = \"10.1.0.0/16\", dscp = 3"]),
        &["5 Error", "never"],
    );
    one(
        &rules(&["application = \"back*\"", "application = [\"backup?\", \"backend\"]"]),
        &["5 Error", "never"],
    );
    // Two halves make a whole.
    let halves = [
        "destination = \"10.0.0.0/9\"",
        "destination = \"10.128.0.0/9\"",
        "destination = \"10.0.0.0/8\", qos = \"bulk\"",
    ];
    one(&rules(&halves), &["9 Error", "\"r0\" (line 1), \"r1\" (line 5)"]);
    let quarters = [
        "destination_port = \"1-99\", dscp = 1",
        "destination_port = \"100-65535\", dscp = 1",
        "destination_port = \"50-150\", dscp = 1, carrier = \"tcp\"",
    ];
    one(&rules(&quarters), &["9 Error", "never"]);
    one(
        &(rules(&["path = \"wan\", destination = \"11.0.0.0/8\""])
            + "[path.wan]\ndestination = \"10.0.0.0/8\""),
        &["1 Error", "never applies"],
    );
    // A path with two alternatives, of which one is left.
    let paths = "[path.a]\ndestination = \"10.0.0.0/8\"\n[path.b]\ndestination = \"11.0.0.0/8\"\n";
    let two = rules(&["path = \"a\"", "path = [\"a\", \"b\"]"]) + paths;
    assert_eq!(problems(&two), Vec::<String>::new());
    one(&(rules(&["path = [\"a\", \"b\"]", "path = \"b\""]) + paths), &["5 Error", "never"]);
}

#[test]
fn rules_that_cross_are_warned_of_and_the_particular_before_the_general_is_not() {
    one(
        &rules(&["destination = \"10.0.0.0/8\"", "application = \"backup\""]),
        &["5 Warning", "both fit some flows"],
    );
    assert_eq!(
        problems(&rules(&["destination = \"10.1.0.0/16\"", "destination = \"10.0.0.0/8\""])),
        Vec::<String>::new()
    );
    assert_eq!(problems(&rules(&["dscp = 1", "dscp = 2", "dscp = [1, 2, 3]", ""])), Vec::<String>::new());
    assert_eq!(problems(&rules(&["application = \"a*\"", "application = \"b*\""])), Vec::<String>::new());
    // The same outcome: no matter.
    let same = "[[rule]]\nname = \"a\"\nmatch = { dscp = [1, 2] }\n[[rule]]\nname = \"b\"\nmatch = { dscp = [2, 3] }\n";
    assert_eq!(problems(same), Vec::<String>::new());
}

#[test]
fn limits_hold() {
    one(&"#".repeat(MAX_FILE + 1), &["1 Error", "1048577 bytes"]);
    let many = |n: usize| {
        let rule = |i: usize| {
            format!("[[rule]]\nname=\"{i}\"\nmatch={{destination=\"10.{}.{}.0/24\"}}\n", i / 256, i % 256)
        };
        (0..n).map(rule).collect::<String>()
    };
    assert_eq!(problems(&many(MAX_RULES)), Vec::<String>::new());
    one(&many(MAX_RULES + 1), &["12289 Error", "4097 rule tables"]);
    let classes: String = (0..=MAX_CLASSES).map(|i| format!("[[class]]\nname=\"{i}\"\n")).collect();
    one(&classes, &["513 Error", "257 class tables"]);
    let paths: String = (0..=MAX_PATHS).map(|i| format!("[path.p{i}]\nsource=\"::/0\"\n")).collect();
    one(&paths, &["257 paths"]);
    let values = vec!["1"; MAX_VALUES + 1].join(",");
    one(&rules(&[&format!("source_port = [{values}]")]), &["257 values"]);
    // Nesting ends in words, however deep.
    for deep in ["[".repeat(100_000), "a=".to_owned() + &"{a=".repeat(100_000), "a.".repeat(100_000) + "a=1"]
    {
        let all = problems(&deep);
        assert!(all.iter().any(|p| p.contains("Error")), "{}", &deep[..9]);
    }
    // More problems than are told.
    let bad: String = (0..1_000).map(|i| format!("k{i} = 1\n")).collect();
    let p = Policy::read(&bad).unwrap_err();
    assert_eq!((p.list.len(), p.more, p.errors), (MAX_PROBLEMS, 1_000 - MAX_PROBLEMS, 1_000));
}
