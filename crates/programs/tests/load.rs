//! Tests loading, replacing and refusing programs.

mod common;

use base::{Rng, Span};
use cc::{Params, PathInfo, registry};
use common::parts::ModuleParts;
use longhaul_programs::{LoadError, Options, load_bytes, unload};

fn load_error(parts: &ModuleParts) -> String {
    load_bytes(&parts.module(), &Options::default()).unwrap_err().to_string()
}

#[test]
fn programs_are_loaded_replaced_and_unloaded() {
    let named = |name: &str| ModuleParts {
        manifest: format!("abi\t1\t\nname\t{name}\t\nsummary\tx\t\n"),
        ..ModuleParts::default()
    };
    let def = load_bytes(&named("comes").module(), &Options::default()).unwrap();
    assert_eq!((def.name, def.summary), ("comes", "x"));
    assert!(registry::names().contains(&"comes"));
    let info = PathInfo {
        packet_bytes: 1_500,
        handshake_rtt: Some(Span::from_millis(20)),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let made = registry::create("comes", &Params::default(), &info, Rng::from_u64(1)).unwrap();
    assert_eq!((made.name(), made.decision().rate.bytes_per_sec()), ("comes", 1_000_000));
    // Loaded again as a new version, then unloaded; a flow that has it keeps it.
    load_bytes(&named("comes").module(), &Options::default()).unwrap();
    assert_eq!(registry::names().iter().filter(|n| **n == "comes").count(), 1);
    assert!(unload("comes") && !unload("comes"));
    assert!(registry::create("comes", &Params::default(), &info, Rng::from_u64(1)).is_err());
    assert_eq!(made.decision().cwnd, 1_000_000);
    assert!(!unload("reno"), "what is built in stays");
}

#[test]
fn invalid_modules_are_refused_with_a_reason() {
    let parts = |change: fn(&mut ModuleParts)| {
        let mut parts = ModuleParts::default();
        change(&mut parts);
        load_error(&parts)
    };
    assert!(parts(|p| p.manifest = "abi\t9\t\nname\tx\t\n".into()).contains("version 9 of opencc.h"));
    assert!(parts(|p| p.manifest = "abi\t1\t\nname\treno\t\n".into()).contains("built in"));
    assert!(parts(|p| p.imports = true).contains("imports env.exit"));
    assert!(parts(|p| p.exports.retain(|e| *e != "oc_event")).contains("does not export oc_event"));
    assert!(parts(|p| p.exports[2] = "oc_other").contains("does not export oc_feedback"));
    assert!(parts(|p| p.memory = 1_000).contains("memory"));
    assert!(parts(|p| p.io = 65_536 - 100).contains("out of its memory"));
    assert!(parts(|p| p.io = -8).contains("out of its memory"));
    assert!(parts(|p| p.io = 1_025).contains("oc_io"));
    assert!(parts(|p| p.code = vec![]).contains("rate of 18446744073709551615"));
    // loop, br 0, end.
    assert!(parts(|p| p.code = vec![0x03, 0x40, 0x0c, 0, 0x0b]).contains("operations in a call"));
    // A type error: i64.const where a call expects nothing.
    assert!(parts(|p| p.code = vec![0x42, 0]).contains("not a program that can run"));
    // unreachable.
    assert!(parts(|p| p.code = vec![0]).contains("was stopped"));
}

#[test]
fn fallback_must_be_built_in() {
    let module = ModuleParts::default().module();
    let with = |fallback: &str| {
        load_bytes(&module, &Options { fallback: fallback.into(), ..Options::default() }).map(|d| d.name)
    };
    assert_eq!(with("cubic:hystart=off"), Ok("by-hand"));
    assert_eq!(with("by-hand"), Err(LoadError::Fallback("by-hand".into())));
    assert!(matches!(with("no-such"), Err(LoadError::Registry(_))));
}
