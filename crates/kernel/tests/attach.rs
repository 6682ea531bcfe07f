//! Tests of programs in the kernel's TCP. They print `skipped: ...` without root, clang, or kernel support.

use longhaul_kernel as kernel;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The headers that programs include.
const HEADERS: [kernel::Header<'static>; 2] =
    [("opencc.h", programs::HEADER), ("opencc_window.h", programs::WINDOW_HEADER)];

/// Names are the kernel's, and so shared by all tests.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether programs can be attached here.
fn able() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let clang = Command::new("clang").arg("--version").output().is_ok();
    let lacks =
        [(root, "not root"), (clang, "no clang"), (kernel::check_support().is_ok(), "no struct_ops for TCP")];
    match lacks.iter().find(|(there, _)| !there) {
        Some((_, what)) => println!("skipped: {what}"),
        None => return true,
    }
    false
}

/// The sources of the programs that Longhaul ships.
fn shipped() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/programs");
    let mut all: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "c"));
    all.sort_unstable();
    all
}

fn object(path: &Path) -> Vec<u8> {
    kernel::build(path, &HEADERS).unwrap_or_else(|e| panic!("{e}"))
}

/// A source with this text, built.
fn built(text: &str) -> Result<Vec<u8>, kernel::Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("program.c");
    std::fs::write(&path, text).expect("a file");
    kernel::build(&path, &HEADERS)
}

/// A program that decides what the two parameters say.
const STEADY: &str = r#"
#include "opencc.h"
OC_PROGRAM("lh-steady", "a rate and a window", OC_NEEDS_NOTHING)
OC_COUNT(pace, "bytes/s", 1, 1000000000, 2000000, "how fast")
OC_COUNT(window, "bytes", 1, 1000000000, 10000000, "how much in flight")
struct steady { u64 calls; };
OC_INLINE void decide(struct steady *t, struct oc_decision *d)
{
	t->calls += 1;
	d->rate = OC_PARAM(pace);
	d->bound = OC_PARAM(window);
	d->ssthresh = OC_NONE;
}
OC_INLINE void start(struct steady *t, const struct oc_signals *s, struct oc_decision *d) { decide(t, d); }
OC_INLINE void feedback(struct steady *t, const struct oc_signals *s, struct oc_decision *d) { decide(t, d); }
OC_INLINE void event(struct steady *t, const struct oc_signals *s, u64 what, struct oc_decision *d) { decide(t, d); }
OC_ALGORITHM(struct steady, start, feedback, event)
"#;

#[test]
fn shipped_programs_pass_the_verifier_and_can_be_removed() {
    if !able() {
        return;
    }
    let _alone = alone();
    assert!(!shipped().is_empty());
    for (n, path) in shipped().iter().enumerate() {
        let object = object(path);
        let about = kernel::program_info(&object).expect("sound");
        let name = format!("lht.v{n}");
        let attached =
            kernel::attach(&object, &name, &[]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        println!("{} ({} bytes) is {}", about.name, object.len(), attached.name());
        assert!(kernel::available_algorithms().contains(&name));
        drop(attached);
        assert!(!kernel::available_algorithms().contains(&name));
    }
}

#[test]
fn names_must_be_valid_and_unused() {
    if !able() {
        return;
    }
    let _alone = alone();
    let object = built(STEADY).expect("it compiles");
    assert_eq!(kernel::program_info(&object).expect("sound").name, "lh_steady");
    assert_eq!(kernel::program_info(&object).expect("sound").params, ["pace", "window"]);
    let _first = kernel::attach(&object, "lht.name", &[]).expect("attached");
    let again = kernel::attach(&object, "lht.name", &[]).expect_err("taken");
    assert!(matches!(again, kernel::Error::NameTaken(_)), "{again}");
    for name in ["", "a-b", "sixteen.letters_", "a b", "../x"] {
        let e = kernel::attach(&object, name, &[]).expect_err("no name");
        assert!(matches!(e, kernel::Error::BadName(_)), "{name}: {e}");
    }
    let e = kernel::attach_pinned(&object, "lht.kept", &[], kernel::Scope::Asked).expect_err("a dot");
    assert!(matches!(e, kernel::Error::Dotted(_)), "{e}");
    let e = kernel::attach(&object, "lht.param", &[("gain", 1)]).expect_err("no such parameter");
    assert!(e.to_string().contains("pace, window"), "{e}");
}

#[test]
fn compile_and_verifier_errors_name_the_line() {
    if !able() {
        return;
    }
    let _alone = alone();
    let e = built("#include \"opencc.h\"\nint x = ;\n").expect_err("no C");
    assert!(e.to_string().contains("program.c:2"), "{e}");
    // Reads what is no field of TCP's.
    let wild = STEADY.replace("t->calls += 1;", "t->calls += *(volatile u64 *)OC_PARAM(pace);");
    let e = kernel::attach(&built(&wild).expect("it compiles"), "lht.wild", &[]).expect_err("refused");
    assert!(matches!(&e, kernel::Error::Verifier { at: Some(at), .. } if at.contains("program.c")), "{e}");
    // Never ends.
    let endless = STEADY.replace("t->calls += 1;", "for (;;) t->calls += 1;");
    let e = kernel::attach(&built(&endless).expect("it compiles"), "lht.endless", &[]).expect_err("refused");
    assert!(matches!(e, kernel::Error::Verifier { .. }), "{e}");
    // Shared by all flows.
    let shared = STEADY.replace("struct steady {", "u64 all;\nstruct steady {").replace("t->calls", "all");
    let e = kernel::attach(&built(&shared).expect("it compiles"), "lht.shared", &[]).expect_err("refused");
    assert!(e.to_string().contains("algorithm's state"), "{e}");
    assert!(!kernel::available_algorithms().iter().any(|n| n.starts_with("lht.")));
}

#[test]
fn truncated_or_mutated_objects_cause_no_panic() {
    if !able() {
        return;
    }
    let object = built(STEADY).expect("it compiles");
    for len in (0..object.len()).step_by(97) {
        let _ = kernel::program_info(&object[..len]);
    }
    // Each place once or more, with values that are large, small and odd.
    for (n, at) in (0..object.len()).step_by(7).enumerate() {
        let mut changed = object.clone();
        changed[at] = [0, 0xff, 0x7f, 1, 0x80][n % 5];
        let _ = kernel::program_info(&changed);
    }
    for bytes in [&b""[..], b"\x7fELF", &object[..64]] {
        let e = kernel::program_info(bytes).expect_err("no object");
        assert!(matches!(e, kernel::Error::BadObject(_)), "{e}");
    }
}
