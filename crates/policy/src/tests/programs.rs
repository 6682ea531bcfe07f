//! Tests of programs in policies: loaded ones can be named, declared ones can be named for other hosts.

use crate::*;
use cc::registry::{self, Loading};

fn load(name: &str) {
    let build = Box::new(|_: &cc::Params, info: &cc::PathInfo, rng| {
        let none = cc::Params::default();
        registry::create("reno", &none, info, rng).expect("reno is built in")
    });
    let (summary, params, needs) = ("a test's", Vec::new(), cc::Needs::NOTHING);
    registry::load(Loading { name, summary, params, needs, code: "c0de", build })
        .expect("a name of a program");
}

fn problems_of(read: Result<(Policy, Problems), Problems>) -> String {
    read.map_or_else(|p| p, |(_, p)| p).to_string()
}

fn policy_naming(programs: &str, name: &str) -> String {
    format!("programs = [{programs}]\n[default]\nalgorithm = \"{name}\"\n")
}

#[test]
fn loaded_programs_can_be_named_here_and_declared_ones_on_other_hosts() {
    load("loaded-here");
    let bare = "[default]\nalgorithm = \"loaded-here\"\n";
    assert_eq!(problems_of(Policy::read(bare)), "");
    // Programs loaded here say nothing about other hosts.
    let e = problems_of(Policy::read_for_hosts(bare));
    assert!(e.contains("line 2: error") && e.contains("loaded-here") && e.contains("programs = ["), "{e}");
    let declared = policy_naming("\"loaded-here\"", "loaded-here");
    assert_eq!(problems_of(Policy::read(&declared)) + &problems_of(Policy::read_for_hosts(&declared)), "");
}

#[test]
fn algorithms_of_a_policy_are_listed_with_their_places() {
    let text = "programs = [\"named-here\", \"htcp\"]\n[default]\nalgorithm = \"cubic\"\n[[rule]]\nname = \"night\"\n\
                match = {}\nalgorithm = \"named-here:gain=8\"\nfallback = \"reno\"\n";
    let (policy, _) = Policy::read_for_hosts(text).unwrap();
    let all = cc::platform::Policy::algorithms(&policy);
    let of =
        |name: &str| all.iter().filter(|(n, _)| n == name).map(|(_, by)| by.as_str()).collect::<Vec<_>>();
    assert_eq!(of("named-here"), ["programs, line 1", "rule \"night\", line 7"]);
    assert_eq!((of("cubic"), of("reno")), (vec!["[default], line 3"], vec!["rule \"night\", line 8"]));
    assert_eq!(of("htcp"), ["programs, line 1"]);
}

#[test]
fn missing_declared_program_is_reported_once() {
    let text = policy_naming("\"missing-one\", \"missing-two\"", "missing-one:gain=8")
        + "fallback = \"missing-two\"\n";
    let e = Policy::read(&text).unwrap_err();
    assert_eq!(e.list.iter().map(|p| p.line).collect::<Vec<_>>(), [1, 1], "{e}");
    for (p, name) in e.list.iter().zip(["missing-one", "missing-two"]) {
        assert!(p.message.contains(name) && p.message.contains("not loaded here"), "{p}");
        assert!(p.remedy.contains("cc load") && p.remedy.contains("--cc-program"), "{p}");
    }
    let (policy, warnings) = Policy::read_for_hosts(&text).unwrap();
    assert!(warnings.list.is_empty());
    assert_eq!(Policy::read_for_hosts(&policy.to_string()).unwrap().0.spec(), policy.spec());
    let e = policy.explain(&parse_flow("1.1.1.1->2.2.2.2").unwrap());
    assert_eq!((e.algorithm.name.as_str(), e.algorithm.parameters["gain"].as_str()), ("missing-one", "8"));
    assert!(e.to_string().contains("missing-one gain=8: a program that is not loaded here"), "{e}");
}

#[test]
fn invalid_program_names_are_reported_with_all_other_problems() {
    let text = "programs = [\"bbr\", \"No\", \"twice\", \"twice\"]\n[default]\nalgorithm = \"twice:gain\"\n\
                fallback = \"twicf\"\npeer_cc = \"twice\"\n";
    let e = Policy::read_for_hosts(text).unwrap_err();
    let lines: Vec<_> = e.list.iter().map(|p| p.to_string()).collect();
    assert_eq!(lines.len(), 5, "{e}");
    for (line, words) in [
        (0, "\"bbr\" of the policy is built in"),
        (1, "\"No\" of the policy is not the name of a program"),
        (2, "\"twice\" twice"),
        (3, "key=value"),
        (4, "did you mean \"twice\"?"),
    ] {
        assert!(lines[line].contains(words), "{words}: {}", lines[line]);
    }
    let e = problems_of(Policy::read("[process]\nprograms = [\"x\"]\n"));
    assert!(e.contains("line 2") && e.contains("no key \"programs\""), "{e}");
}
