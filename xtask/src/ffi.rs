//! The shared libraries that programs load in place of others: `cargo xtask ffi`.
//!
//! rustc hands the linker a version script of its own, so that symbol versions cannot come from a second one. So the crate is built
//! as a static library, and joined by the C compiler with a table of jumps that carry the public names and versions.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{build_all, cargo, command, root, run, target_dir};

/// A shared library.
struct Library {
    /// The crate that has the functions.
    package: &'static str,
    /// Its static library.
    archive: &'static str,
    /// What programs know it by.
    soname: &'static str,
    /// What it exports.
    exports: &'static str,
}

const LIBRARIES: &[Library] = &[Library {
    package: "longhaul-ibverbs",
    archive: "liblonghaul_ibverbs.a",
    soname: "libibverbs.so.1",
    exports: "ffi/verbs/exports.txt",
}];

/// The object that is preloaded, whose names have no versions: its crate and its file.
const PRELOADED: (&str, &str) = ("longhaul-preload", "liblonghaul_preload.so");

/// The error that functions give which are not served (`ENOSYS`).
const ENOSYS: u32 = 38;

/// Builds all of them; returns the folder that they are in. `profile`: `dev` or `release`.
pub fn build(profile: &str) -> Result<PathBuf> {
    let built = target_dir().join(if profile == "dev" { "debug" } else { profile });
    let folder = built.join("lib");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if profile == "dev" {
        build_all()?;
    } else {
        let packages = LIBRARIES.iter().map(|l| l.package).chain([PRELOADED.0]).flat_map(|p| ["-p", p]);
        run(cargo().args(["build", "--quiet", "--profile", profile]).args(packages))?;
    }
    for library in LIBRARIES {
        link(library, &built, &folder)?;
    }
    let (made, partial) = (folder.join(PRELOADED.1), folder.join(format!(".{}.new", PRELOADED.1)));
    std::fs::copy(built.join(PRELOADED.1), &partial)?;
    std::fs::rename(&partial, &made)?;
    println!("ffi: {}", made.display());
    Ok(folder)
}

fn link(library: &Library, built: &Path, folder: &Path) -> Result<()> {
    let path = root().join(library.exports);
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let exports = parse(&text)?;
    let (table, versions) =
        (folder.join(format!("{}.s", library.soname)), folder.join(format!("{}.map", library.soname)));
    std::fs::write(&table, assembly(&exports)?)?;
    std::fs::write(&versions, version_script(&exports))?;
    // Complete before it gets its name: a program may be loading it.
    let (made, partial) = (folder.join(library.soname), folder.join(format!(".{}.new", library.soname)));
    let mut cc = command("cc");
    cc.args(["-shared", "-o"]).arg(&partial).arg(format!("-Wl,-soname,{}", library.soname)).arg(&table);
    cc.arg(format!("-Wl,--version-script,{}", versions.display()));
    cc.args(["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,now"]);
    cc.arg(built.join(library.archive)).args(["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"]);
    run(&mut cc)?;
    std::fs::rename(&partial, &made)?;
    // Some programs (NCCL) open it by the name without a number first, by which the loader might find the system's.
    if let Some((name, _)) = library.soname.rsplit_once('.') {
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(library.soname, &link)
            .with_context(|| format!("cannot make {}", link.display()))?;
    }
    println!("ffi: {}", made.display());
    Ok(())
}

/// How a name is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// By the function behind `lh_`.
    Served,
    /// By `ENOSYS`.
    Enosys,
    /// By a null pointer, with `errno`.
    Null,
}

#[derive(Debug)]
struct Export {
    name: String,
    version: String,
    answer: Answer,
}

fn parse(text: &str) -> Result<Vec<Export>> {
    let mut exports = Vec::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let [name, version, answer] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("an export is a name, a version and an answer, not `{line}`");
        };
        let answer = match answer {
            "served" => Answer::Served,
            "enosys" => Answer::Enosys,
            "null" => Answer::Null,
            other => bail!("{name}: `{other}` is none of served, enosys and null"),
        };
        exports.push(Export { name: name.to_owned(), version: version.to_owned(), answer });
    }
    ensure!(!exports.is_empty(), "nothing is exported");
    Ok(exports)
}

/// Jumps that carry the public names.
fn assembly(exports: &[Export]) -> Result<String> {
    let (jump, enosys, null) = match std::env::consts::ARCH {
        "x86_64" => (
            "jmp",
            format!("    movl ${ENOSYS}, %eax\n    ret\n"),
            format!(
                "    subq $8, %rsp\n    call __errno_location@PLT\n    movl ${ENOSYS}, (%rax)\n    xorl %eax, %eax\n    addq $8, %rsp\n    ret\n"
            ),
        ),
        "aarch64" => (
            "b",
            format!("    mov w0, #{ENOSYS}\n    ret\n"),
            format!(
                "    stp x29, x30, [sp, #-16]!\n    bl __errno_location\n    mov w1, #{ENOSYS}\n    str w1, [x0]\n    mov x0, #0\n    ldp x29, x30, [sp], #16\n    ret\n"
            ),
        ),
        other => bail!("no jumps are known for {other}"),
    };
    let mut text = String::from("    .section .note.GNU-stack,\"\",@progbits\n    .text\n");
    write!(text, "answer_enosys:\n{enosys}answer_null:\n{null}")?;
    for e in exports {
        let target = match e.answer {
            Answer::Served => format!("lh_{}", e.name),
            Answer::Enosys => "answer_enosys".to_owned(),
            Answer::Null => "answer_null".to_owned(),
        };
        let local = format!("{}__{}", e.name, e.version.replace('.', "_"));
        writeln!(text, "    .globl {local}\n    .type {local}, @function\n{local}:\n    {jump} {target}")?;
        writeln!(
            text,
            "    .size {local}, . - {local}\n    .symver {local}, {}@@{}, remove",
            e.name, e.version
        )?;
    }
    Ok(text)
}

/// The versions in order, each with its names.
fn version_script(exports: &[Export]) -> String {
    let mut versions: BTreeMap<Vec<u32>, (&str, Vec<&str>)> = BTreeMap::new();
    for e in exports {
        // `IBVERBS_1.10` comes behind `IBVERBS_1.9`, and private names come last.
        let digits = e.version.rsplit('_').next().unwrap_or_default();
        let mut key: Vec<u32> = digits.split('.').filter_map(|n| n.parse().ok()).collect();
        key.insert(0, u32::from(e.version.contains("PRIVATE")));
        versions.entry(key).or_insert((&e.version, Vec::new())).1.push(&e.name);
    }
    let mut text = String::new();
    let mut before = String::new();
    let last = versions.len().saturating_sub(1);
    for (i, (version, names)) in versions.values().enumerate() {
        let names: String = names.iter().map(|n| format!(" {n};")).collect();
        let local = if i == last { " local: *;" } else { "" };
        let _ = writeln!(text, "{version} {{ global:{names}{local} }}{before};");
        before = format!(" {version}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_become_jumps_with_versions_in_order() {
        let all = parse("# of the tests\nb V_1.10 served\na V_1.9 null\np V_PRIVATE_34 enosys\n").unwrap();
        let script = version_script(&all);
        assert_eq!(
            script,
            "V_1.9 { global: a; };\nV_1.10 { global: b; } V_1.9;\nV_PRIVATE_34 { global: p; local: *; } V_1.10;\n"
        );
        let text = assembly(&all).unwrap();
        assert!(text.contains("lh_b\n") && text.contains(".symver b__V_1_10, b@@V_1.10, remove"));
        for bad in ["", "a V_1", "a V_1 maybe"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
