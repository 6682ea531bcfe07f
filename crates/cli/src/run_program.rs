//! `longhaul run`: programs for verbs, unchanged, over Longhaul.

use crate::args::Run;
use crate::cc::policies;
use crate::exit::{Code, Failure, Outcome};
use crate::govern;
use crate::setup::LocalIdentity;
use admin::source::Source;
use object::{Object as _, ObjectSymbol as _};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What libibverbs.so.1 exports, and how each is answered.
const EXPORTS: &str = include_str!("../../../ffi/verbs/exports.txt");
const VERBS: &str = "libibverbs.so.1";
/// What shows programs the device nodes.
const PRELOADED: &str = "liblonghaul_preload.so";
/// Libraries that say which interface a program uses.
const INTERFACES: [(&str, &str, bool); 4] = [
    (VERBS, "verbs", true),
    ("librdmacm.so.1", "RDMA connection manager", true),
    ("libfabric.so.1", "libfabric", true),
    ("libucp.so.0", "UCX", true),
];
/// A program's file is read up to this size.
const MAX_PROGRAM: u64 = 1 << 30;

/// Runs the program in this process's place.
pub fn run(a: &Run) -> Outcome<()> {
    let (program, arguments) = a
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("cannot run: no program is named; try `longhaul run -- PROGRAM`"))?;
    if a.check {
        return check(program);
    }
    // A program that is not there is named before anything is made for it.
    find(program)?;
    let library = library(a.library.as_deref())?;
    let cluster = cluster(a.cluster.as_deref())?;
    let mut command = Command::new(program);
    command.args(arguments).env("LONGHAUL_CLUSTER", &cluster).env("LONGHAUL_ENCRYPTION", &a.encryption);
    command.env("LD_LIBRARY_PATH", search_path(&library, std::env::var_os("LD_LIBRARY_PATH").as_deref()));
    if library.join(PRELOADED).is_file() {
        // By its name, which the loader looks for in the library's folder: spaces in a path would part it.
        let before = std::env::var_os("LD_PRELOAD");
        command.env("LD_PRELOAD", search_path(Path::new(PRELOADED), before.as_deref()));
    } else {
        err_lines!(
            "longhaul: {PRELOADED} is not in {}: programs that use librdmacm will not find its device; try `cargo xtask ffi`",
            library.display()
        );
    }
    check_transport(a)?;
    pass_administration(a, &mut command)?;
    command.env("LONGHAUL_TRANSPORT", &a.transport);
    if let Some(names) = &a.tcp_cc {
        command.env("LONGHAUL_TCP_CC", names);
    }
    if let Some(cc) = &a.cc {
        command.env("LONGHAUL_CC", cc);
    }
    if a.encryption != "auto" {
        err_lines!("longhaul: what {} sends is NOT encrypted", base::text::name(program.as_bytes()));
    }
    let e = command.exec();
    Err(Failure::new(Code::Usage, format!("cannot run {}: {e}", base::text::name(program.as_bytes()))))
}

/// Has the program's process read the policy, which is checked before, and be seen by `longhaul cc show`.
fn pass_administration(a: &Run, command: &mut Command) -> Outcome<()> {
    if let Some((folder, group)) = govern::control(&a.admin.control)? {
        command.env("LONGHAUL_CONTROL", folder);
        if let Some(group) = group {
            command.env("LONGHAUL_CONTROL_GROUP", group.to_string());
        }
    }
    let source = match &a.admin.policy {
        None => return Ok(()),
        Some(Source::File(path)) => {
            let text = admin::watch::read_policy_file(path).map_err(Failure::usage)?;
            policies::read(&text).map_err(|problems| {
                Failure::usage(format!("cannot use the policy {}: {}", path.display(), problems.join("; ")))
            })?;
            path.canonicalize().map_err(Failure::system)?.into_os_string()
        }
        Some(store @ Source::Store(_)) => store.to_string().into(),
    };
    command.env("LONGHAUL_POLICY", source).env("LONGHAUL_STATE", LocalIdentity::load()?.state.path());
    let access = govern::access(&a.admin.access)?;
    let (certificate, key) = access.certificate.unzip();
    let files = [("CA", access.ca), ("CERT", certificate), ("KEY", key)];
    for (name, file) in files.into_iter().filter_map(|(name, file)| Some((name, file?))) {
        command.env(format!("LONGHAUL_STORE_{name}"), file.canonicalize().map_err(Failure::system)?);
    }
    if let Some((user, _)) = access.user {
        command.env("LONGHAUL_STORE_USER", user);
    }
    Ok(())
}

/// Refuses options of the other transport.
fn check_transport(a: &Run) -> Outcome<()> {
    let is_iwarp = a.transport == "iwarp";
    let text = match (is_iwarp, &a.cc, &a.tcp_cc) {
        (true, Some(_), _) => "cannot use --cc with --transport iwarp: TCP decides there; try --tcp-cc",
        (false, _, Some(_)) => {
            "cannot use --tcp-cc: the transport is not TCP; try --transport iwarp with it, or --cc"
        }
        (true, ..) if a.encryption == "integrity" => {
            "cannot use --encryption integrity: --transport iwarp has TLS or nothing; try auto, or crc32c if everything may be in the clear"
        }
        (true, _, Some(names)) => {
            let first = lhio::tcp::first_congestion(names).map(drop);
            return first.map_err(|e| Failure::usage(format!("cannot use --tcp-cc {names}: {e}")));
        }
        _ => return Ok(()),
    };
    Err(Failure::usage(text))
}

/// The folder with the library: named, or where this program was built or installed.
fn library(named: Option<&Path>) -> Outcome<PathBuf> {
    let exe = std::env::current_exe().map_err(Failure::system)?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let places = match named {
        Some(folder) => vec![folder.to_owned()],
        None => vec![beside.join("lib"), beside.join("../lib/longhaul")],
    };
    let found = places.iter().find(|p| p.join(VERBS).is_file());
    let found = found.and_then(|p| p.canonicalize().ok());
    found.ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|p| p.join(VERBS).display().to_string()).collect();
        Failure::usage(format!(
            "cannot find {VERBS}: it is not at {}; try --library, or `cargo xtask ffi` where Longhaul is built",
            looked.join(" or ")
        ))
    })
}

fn search_path(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut path = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|b| !b.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// The file with the cluster's key, which is checked; the usual one is made where it is missing.
fn cluster(named: Option<&Path>) -> Outcome<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => LocalIdentity::load()?.state.path().join("cluster.key"),
    };
    if named.is_none() && !path.exists() {
        let key = engine::ClusterKey::generate().map_err(Failure::system)?;
        let fail = |e| Failure::system(format!("cannot write {}: {e}", path.display()));
        let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut f| f.write_all(key.to_line().as_bytes())).map_err(fail)?;
        err_lines!(
            "longhaul: made the key of a new cluster, {}; programs on other hosts need a copy of it",
            path.display()
        );
    }
    engine::ClusterKey::read(&path).map_err(Failure::usage)?;
    // The program may go to another folder before it uses it.
    path.canonicalize().map_err(Failure::system)
}

// ---- --check ----

/// Where the shell would find a program.
fn find(program: &OsStr) -> Outcome<PathBuf> {
    let missing = || {
        Failure::usage(format!(
            "cannot find {}: it is in no folder of PATH; try its full path",
            base::text::name(program.as_bytes())
        ))
    };
    if program.as_bytes().contains(&b'/') {
        return Path::new(program).canonicalize().map_err(|_| missing());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    found.ok_or_else(missing)
}

/// Says which interfaces a program uses, by the libraries that the system's loader would load for it, and which functions of verbs it
/// names that are not served.
fn check(program: &OsStr) -> Outcome<()> {
    let file = find(program)?;
    let shown = base::text::name(file.as_os_str().as_bytes());
    let mut needed = BTreeMap::new();
    collect(&file, &mut needed)?;
    if needed.len() == 1 && needed.values().all(|n| n.libraries.is_empty()) {
        let text = format!(
            "cannot serve {shown}: it is linked statically and loads no library; try one that is linked dynamically"
        );
        return Err(Failure::new(Code::Partial, text));
    }
    let loaded: BTreeSet<&str> =
        needed.values().flat_map(|n| n.libraries.iter().map(String::as_str)).collect();
    let mut missing = false;
    for (soname, name, served) in INTERFACES.iter().filter(|(soname, ..)| loaded.contains(soname)) {
        out_line!(
            "{name:<26} {soname:<18} {}",
            if *served { "served" } else { "not served yet: only what works without it" }
        );
        missing |= !served;
    }
    let answered: BTreeMap<&str, &str> = EXPORTS
        .lines()
        .filter(|l| !l.starts_with('#') && !l.contains("PRIVATE"))
        .filter_map(|l| Some((l.split(' ').next()?, l.rsplit(' ').next()?)))
        .collect();
    let named = needed.values().flat_map(|n| n.verbs.iter());
    for function in named.collect::<BTreeSet<_>>() {
        match answered.get(function.as_str()) {
            Some(&"served") => {}
            Some(_) => out_line!("{function:<45} answers ENOSYS"),
            // Those for vendors' libraries.
            None if EXPORTS.lines().any(|l| l.split(' ').next() == Some(function)) => {}
            None => {
                out_line!("{function:<45} is missing: the program will not start");
                missing = true;
            }
        }
    }
    if !INTERFACES.iter().any(|(soname, ..)| loaded.contains(soname)) {
        let text = format!(
            "{shown} loads none of the libraries that Longhaul takes the place of; it may open one while it runs"
        );
        return Err(Failure::new(Code::Partial, text));
    }
    if missing { Err(Failure::new(Code::Partial, "")) } else { Ok(()) }
}

/// What a file wants of others.
#[derive(Default)]
struct Needed {
    libraries: Vec<String>,
    /// Functions of verbs.
    verbs: Vec<String>,
}

/// Folders in which libraries are looked for besides the loader's own cache.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
];

fn collect(file: &Path, all: &mut BTreeMap<PathBuf, Needed>) -> Outcome<()> {
    if all.contains_key(file) {
        return Ok(());
    }
    let fail = |why: String| Failure::usage(format!("cannot read {}: {why}", file.display()));
    let len = std::fs::metadata(file).map_err(|e| fail(e.to_string()))?.len();
    if len > MAX_PROGRAM {
        return Err(fail("it is too large for a program".into()));
    }
    let bytes = std::fs::read(file).map_err(|e| fail(e.to_string()))?;
    let elf = object::File::parse(&*bytes)
        .map_err(|_| fail("it is no program that the system's loader runs".into()))?;
    let mut needed = Needed::default();
    for symbol in elf.dynamic_symbols().filter(|s| s.is_undefined()) {
        let name = symbol.name().unwrap_or_default();
        if name.starts_with("ibv_") || name.starts_with("_ibv_") {
            needed.verbs.push(name.to_owned());
        }
    }
    needed.libraries = needed_libraries(&elf);
    let libraries = needed.libraries.clone();
    all.insert(file.to_owned(), needed);
    for name in libraries.iter().filter(|n| *n != VERBS) {
        // Those of the C library and the like name no verbs, wherever they are.
        if let Some(path) = FOLDERS.iter().map(|f| Path::new(f).join(name)).find(|p| p.is_file()) {
            collect(&path, all)?;
        }
    }
    Ok(())
}

/// The names in the dynamic section.
fn needed_libraries(elf: &object::File<'_>) -> Vec<String> {
    use object::ObjectSection as _;
    let data = |name| elf.section_by_name(name).and_then(|s| s.data().ok());
    let (Some(dynamic), Some(names)) = (data(".dynamic"), data(".dynstr")) else { return Vec::new() };
    /// DT_NEEDED of the ELF specification.
    const NEEDED: u64 = 1;
    let entries = dynamic.chunks_exact(16).filter_map(|e| {
        let (tag, value) = (e.first_chunk::<8>()?, e.last_chunk::<8>()?);
        (u64::from_le_bytes(*tag) == NEEDED).then_some(u64::from_le_bytes(*value) as usize)
    });
    let name = |at: usize| {
        let rest = names.get(at..)?;
        let end = rest.iter().position(|b| *b == 0)?;
        core::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
    };
    entries.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_folder_is_first_in_the_search_path() {
        let path = |before: Option<&str>| search_path(Path::new("/l"), before.map(OsStr::new));
        assert_eq!(path(None), "/l");
        assert_eq!(path(Some("")), "/l");
        assert_eq!(path(Some("/a:/b")), "/l:/a:/b");
    }

    #[test]
    fn libraries_beside_the_program_are_found() {
        let me = std::env::current_exe().expect("a name");
        let mut all = BTreeMap::new();
        collect(&me, &mut all).expect("readable");
        assert!(all[&me].libraries.iter().any(|l| l.starts_with("libc.so")), "{:?}", all[&me].libraries);
        let text = std::env::temp_dir().join(format!("longhaul-run-{}", std::process::id()));
        std::fs::write(&text, "#!/bin/sh\n").expect("written");
        let refused = collect(&text, &mut BTreeMap::new());
        std::fs::remove_file(&text).expect("removed");
        assert!(refused.is_err_and(|e| e.text.contains("no program")));
    }
}
