//! `longhaul cc build` and `test`, and programs for the commands that send.

use crate::args::{Build, Test};
use crate::exit::{Code, Failure, Outcome};
use admin::watch::whole;
use lhio::clock::WallTime;
use lhio::identity::check_for_root;
use programs::{Options, compile, load_bytes, manifest};
use sim::card::{self, Row};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Headers that a program may include, for the kernel's build.
const HEADERS: [(&str, &str); 2] =
    [("opencc.h", programs::HEADER), ("opencc_window.h", programs::WINDOW_HEADER)];

/// Makes of a source what Longhaul and the kernel's TCP load.
pub fn build(b: &Build) -> Outcome<()> {
    let folder = b.out.clone().unwrap_or_else(|| PathBuf::from("."));
    let stem = b.source.file_stem().ok_or_else(|| {
        Failure::usage(
            "cannot build the program: its path names no file; \
             try ALG.c",
        )
    })?;
    std::fs::create_dir_all(&folder).map_err(|e| {
        Failure::system(format!(
            "cannot create the folder {}: {e}; try \
             another one with --out",
            folder.display()
        ))
    })?;
    if b.headers {
        compile::write_headers(&folder).map_err(Failure::system)?;
    }
    let place = |ending: &str| folder.join(stem).with_extension(ending);
    let wasm = place("wasm");
    let manifest = compile::wasm(&b.source, &wasm).map_err(Failure::usage)?;
    out_line!("{}: {}, for Longhaul", wasm.display(), manifest.name);
    if manifest.needs.telemetry {
        out_line!("not for the kernel's TCP: it needs telemetry, which TCP does not have");
        return Ok(());
    }
    let object = kernel::build(&b.source, &HEADERS)
        .map_err(|e| Failure::new(Code::Partial, format!("cannot build it for the kernel's TCP: {e}")))?;
    let path = place("bpf.o");
    std::fs::write(&path, object).map_err(|e| {
        Failure::system(format!(
            "cannot create the folder {}: {e}; try another \
             one with --out",
            path.display()
        ))
    })?;
    out_line!("{}: {}, for the kernel's TCP", path.display(), manifest.name);
    Ok(())
}

/// Loads a program from a WebAssembly module or a source into this process; its name.
pub fn load(file: &Path) -> Result<&'static str, String> {
    let options = Options { source: place(file), since: WallTime::now().unix_secs(), ..Options::default() };
    let loaded = load_bytes(&module(file)?, &options);
    loaded
        .map(|d| d.name)
        .map_err(|e| format!("cannot create the folder {}: {e}; try another one with --out", file.display()))
}

/// Where a program is from: its file with its whole path, or that it comes with Longhaul.
pub fn place(file: &Path) -> String {
    let shipped = file.to_str().filter(|_| !file.exists()).and_then(programs::shipped::module);
    match shipped {
        Some(_) => format!("{} of Longhaul", file.display()),
        None => whole(file).display().to_string(),
    }
}

/// The WebAssembly module in a file, or what a source is built into; of a name that is no file, the shipped program.
pub fn module(file: &Path) -> Result<Vec<u8>, String> {
    let say = |e: &dyn core::fmt::Display| {
        format!("cannot create the folder {}: {e}; try another one with --out", file.display())
    };
    if let Some(shipped) = file.to_str().filter(|_| !file.exists()).and_then(programs::shipped::module) {
        return Ok(shipped.to_vec());
    }
    check_for_root(file).map_err(|e| e.to_string())?;
    if file.extension().is_none_or(|e| e != "c") {
        return read(file).map_err(|e| say(&e));
    }
    let folder = tempfile::tempdir().map_err(|e| say(&e))?;
    let wasm = folder.path().join("program.wasm");
    compile::wasm(file, &wasm).map_err(|e| e.to_string())?;
    read(&wasm).map_err(|e| say(&e))
}

/// The bytes of a file, as many as a module may have and one.
fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(manifest::MAX_MODULE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The selection that `cc test` is asked for: a file is loaded first.
fn selection(text: &str) -> Outcome<String> {
    let (file, params) = text.split_once(':').map_or((text, None), |(f, p)| (f, Some(p)));
    let is_file = |e: &std::ffi::OsStr| e == "c" || e == "wasm";
    let shipped = ::cc::registry::find(file).is_err() && programs::shipped::module(file).is_some();
    if !shipped && !Path::new(file).extension().is_some_and(is_file) {
        return Ok(text.to_owned());
    }
    let name = load(Path::new(file)).map_err(Failure::usage)?;
    Ok(params.map_or_else(|| name.to_owned(), |p| format!("{name}:{p}")))
}

/// Why the program that is graded decides no more, if so: the first fault of it.
fn ended(name: &str) -> Option<String> {
    let event = programs::events(0).into_iter().find(|e| e.program == name)?;
    Some(format!(
        "cannot test {name}: it {} in call {} of a flow, {}, and {} replaces it from there on; try to fix its \
         function {}",
        event.fault, event.calls, event.call, event.fallback, event.call
    ))
}

/// Grades an algorithm. A program that misbehaves has no grades: those would be its fallback's.
pub fn test(t: &Test) -> Outcome<()> {
    let selection = selection(&t.algorithm)?;
    let name = selection.split(':').next().unwrap_or_default();
    // Told once, below, and not for each of a thousand flows.
    programs::log_no_faults();
    let line = |r: &Row| out_line!("  {:<12} {:<44} {:<6}  {}", r.section, r.what, r.grade.name(), r.found);
    if !t.json {
        out_line!("{selection}");
    }
    let say = |r: &Row| {
        if !t.json {
            line(r)
        }
    };
    let card = match card::grade(&selection, &|| ended(name), say) {
        Ok(card) => card,
        Err(why) => {
            let Some(fault) = ended(name) else { return Err(Failure::usage(why)) };
            if t.json {
                crate::out::json(&serde_json::json!({
                    "algorithm": selection, "passed": false, "fault": fault, "rows": [],
                }));
            }
            return Err(Failure::new(Code::Partial, fault));
        }
    };
    if t.json {
        crate::out::json(&json(&card));
    } else {
        out_line!("{}", card.summary());
    }
    if card.passed() { Ok(()) } else { Err(Failure::new(Code::Partial, String::new())) }
}

fn json(card: &card::ReportCard) -> serde_json::Value {
    let row = |r: &Row| {
        serde_json::json!({
            "section": r.section, "check": r.what, "measured": r.found, "value": r.value, "grade": r.grade.name(),
        })
    };
    serde_json::json!({
        "algorithm": card.algorithm,
        "passed": card.passed(),
        "rows": card.rows.iter().map(row).collect::<Vec<_>>(),
    })
}
