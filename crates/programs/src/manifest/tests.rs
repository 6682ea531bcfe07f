use super::*;
use proptest::prelude::*;

const GOOD: &str = "abi\t1\t\nname\treno-c\t\nsummary\tNewReno\t\nneeds\tstep\t\nstates\tslow_start,avoidance\t\n\
    param\tcount\tinitial_window\tpackets\t2\t10000\t10\twhat may be in flight\t\n\
    param\tswitch\tfast\t\t0\t1\t1\tfaster\t\nparam\trate\tcap\t\t1000\t100000\t0\tno more\t\n\
    param\tspan\ttarget\t\t0\t9000\t500\tdelay\t\nparam\tshare\tcut\t\t0\t100000\t50000\tof the window\t\n";

fn module(sections: &[(u8, &str, &str)]) -> Vec<u8> {
    let mut out = b"\0asm\x01\0\0\0".to_vec();
    for (id, name, body) in sections {
        let size = 1 + name.len() + body.len();
        out.extend_from_slice(&[*id, (size & 0x7f) as u8 | 0x80, (size >> 7) as u8, name.len() as u8]);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(body.as_bytes());
    }
    out
}

#[test]
fn every_field_of_a_manifest_is_parsed() {
    let wasm = module(&[(1, "", "type"), (0, "name", "other"), (0, "opencc", GOOD)]);
    let m = Manifest::of_wasm(&wasm).unwrap();
    assert_eq!((m.name.as_str(), m.summary.as_str()), ("reno-c", "NewReno"));
    assert_eq!(m.needs, Needs { marks: Marks::Step, telemetry: false });
    assert_eq!(m.states, ["slow_start", "avoidance"]);
    let kinds: Vec<_> = m.params.iter().map(|p| (p.name, p.kind.describe())).collect();
    assert_eq!(kinds[0], ("initial_window", "2 to 10000 packets [10]".to_owned()));
    assert_eq!(kinds[1], ("fast", "on|off [on]".to_owned()));
    assert_eq!(kinds[2], ("cap", "8k to 800k bit/s [auto]".to_owned()));
    assert_eq!(kinds[4], ("cut", "0% to 100% [50%]".to_owned()));
    assert_eq!(m.values(&cc::Params::default())[..6], [10, 1, 0, 500, 50_000, 0]);
}

#[test]
fn malformed_manifests_are_errors_that_name_the_cause() {
    let but =
        |from: &str, to: &str| Manifest::parse(GOOD.replace(from, to).as_bytes()).unwrap_err().to_string();
    assert!(but("abi\t1", "abi\t2").contains("version 2 of opencc.h"));
    assert!(but("abi\t1\t\n", "").contains("OC_PROGRAM"));
    assert!(but("reno-c", "Reno").contains("lower-case"));
    assert!(but("reno-c", "a-name-of-16-char").contains("15"));
    assert!(but("needs\tstep", "needs\tluck").contains("OC_NEEDS"));
    assert!(but("\t10\twhat", "\t1\twhat").contains("out of its range"));
    assert!(but("\t10\twhat", "\t5*2\twhat").contains("plain decimal"));
    assert!(but("\t10\twhat", "\t+10\twhat").contains("plain decimal"));
    assert!(but("fast", "initial_window").contains("another parameter"));
    assert!(but("param\tswitch", "param\tknob").contains("kind"));
    assert!(but("param\tswitch", "knob\tswitch").contains("does not know"));
    assert!(but("summary\tNewReno", "name\tagain").contains("twice"));
    assert!(but("NewReno", &"x".repeat(300)).contains("240"));
    let many: String = (0..17).map(|i| format!("param\tswitch\tp{i}\t\t0\t1\t0\t\t\n")).collect();
    let text = format!("abi\t1\t\nname\tx\t\n{many}");
    assert!(Manifest::parse(text.as_bytes()).unwrap_err().to_string().contains("16"));
    assert_eq!(Manifest::of_wasm(b"\x7fELF").unwrap_err(), Bad::NotWasm);
    assert_eq!(Manifest::of_wasm(&module(&[(0, "name", "x")])).unwrap_err(), Bad::NoManifest);
    let cut = module(&[(0, "opencc", GOOD)]);
    assert!(matches!(Manifest::of_wasm(&cut[..cut.len() - 1]), Err(Bad::Damaged { at: 8 })));
    assert!(matches!(Manifest::of_wasm(&vec![0; MAX_MODULE + 1]), Err(Bad::TooLong { .. })));
}

proptest! {
    #[test]
    fn parser_accepts_arbitrary_bytes_without_panic(tail in proptest::collection::vec(any::<u8>(), 0..200), wasm in any::<bool>()) {
        let mut bytes = if wasm { b"\0asm\x01\0\0\0".to_vec() } else { Vec::new() };
        bytes.extend(&tail);
        let _ = Manifest::of_wasm(&bytes);
        let _ = Manifest::parse(&tail);
    }

    #[test]
    fn mutated_manifests_have_no_values_out_of_range(at in 0..GOOD.len(), byte in 32u8..127) {
        let mut text = GOOD.as_bytes().to_vec();
        text[at] = byte;
        if let Ok(m) = Manifest::parse(&text) {
            for (p, v) in m.params.iter().zip(m.values(&cc::Params::default())) {
                if let Kind::Count { min, max, .. } = p.kind {
                    prop_assert!((min..=max).contains(&v));
                }
            }
        }
    }
}
