//! `longhaul cc attach` and `detach`: programs as congestion control of the kernel's TCP.

use crate::args::Attach;
use crate::exit::{Code, Failure, Outcome};
use kernel::{Error, Header, Scope};
use lhio::identity::check_for_root;
use std::path::Path;

/// The headers that programs include.
const HEADERS: [Header<'static>; 2] =
    [("opencc.h", programs::HEADER), ("opencc_window.h", programs::WINDOW_HEADER)];
/// Largest object that is read, in bytes.
const MAX_OBJECT: u64 = 16 << 20;

/// Builds the program if it is a source, and gives it to the kernel.
pub fn attach(a: &Attach, program: &Path) -> Outcome<()> {
    // What the kernel lacks is said before the compiler is asked for.
    kernel::check_support().map_err(failure)?;
    let object = object(program)?;
    let own = kernel::program_info(&object).map_err(failure)?.name;
    let params: Vec<(&str, u64)> = a.params.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let scope = match &a.cgroup {
        Some(group) => Scope::Group(group),
        None if a.default => Scope::Namespace,
        None => Scope::Asked,
    };
    let keep = |name: &str| kernel::attach_pinned(&object, name, &params, scope);
    // Called like the algorithm that it decides as, unless the kernel has one of that name.
    let mut names = ::cc::registry::kernel_names(&own);
    let plain = names.pop().unwrap_or(own);
    let (name, taken) = match (&a.name, names.pop()) {
        (Some(name), _) => (name.clone(), keep(name).map(|()| false)),
        (None, Some(other)) => match keep(&plain) {
            Err(Error::NameTaken(_)) if kernel::pinned_name(&plain).is_none() => {
                (other.clone(), keep(&other).map(|()| true))
            }
            done => (plain.clone(), done.map(|()| false)),
        },
        (None, None) => (plain.clone(), keep(&plain).map(|()| false)),
    };
    let taken = taken.map_err(failure)?;
    let name = &name;
    let whom = match scope {
        Scope::Asked => format!("sockets choose it by TCP_CONGESTION \"{name}\""),
        Scope::Namespace => "new connections of this network namespace use it".to_owned(),
        Scope::Group(group) => format!("new connections of {} use it", group.display()),
    };
    out_line!("{name} is attached: {whom}; `longhaul cc detach {name}` removes it");
    if taken {
        out_line!(
            "  the kernel has a {plain} of its own: this one is {name}, and policies that name {plain} mean it"
        );
    }
    Ok(())
}

/// Takes a program away from the kernel.
pub fn detach(name: &str) -> Outcome<()> {
    let name = kernel::detach(name).map_err(failure)?;
    out_line!("{name} is detached");
    Ok(())
}

/// The programs that the kernel has from us.
pub fn list() -> Outcome<()> {
    let all = match kernel::pinned_programs() {
        // Only root may look, and where nothing can be attached nothing is.
        Err(Error::NotPermitted(_)) => return Ok(()),
        all => all.map_err(failure)?,
    };
    if !all.is_empty() {
        out_text!("\nIn the kernel's TCP:\n");
    }
    for k in all {
        let default = if k.default { " (default of this network namespace)" } else { "" };
        let group = if k.group { " (default of a cgroup)" } else { "" };
        out_line!("{}{default}{group}", k.name);
    }
    Ok(())
}

/// The object in a file, or of a source, or of a shipped program.
fn object(path: &Path) -> Outcome<Vec<u8>> {
    let is_source = path.extension().is_some_and(|e| e == "c");
    let unreadable = |e: std::io::Error| {
        Failure::usage(format!(
            "cannot read the program {}: {e}; try ALG.c, an \
             object, or the name of a shipped program",
            path.display()
        ))
    };
    check_for_root(path)?;
    if is_source {
        std::fs::metadata(path).map_err(unreadable)?;
        return kernel::build(path, &HEADERS).map_err(failure);
    }
    let shipped = path.to_str().filter(|_| !path.exists()).and_then(programs::shipped::source);
    if let Some(source) = shipped {
        let folder = tempfile::tempdir().map_err(Failure::system)?;
        let file = folder.path().join(path).with_extension("c");
        std::fs::write(&file, source).map_err(Failure::system)?;
        return kernel::build(&file, &HEADERS).map_err(failure);
    }
    let len = std::fs::metadata(path).map_err(unreadable)?.len();
    if len > MAX_OBJECT {
        return Err(Failure::usage(format!(
            "cannot read the program {}: {len} bytes are too many for one; try another \
             file",
            path.display()
        )));
    }
    std::fs::read(path).map_err(unreadable)
}

pub fn failure(e: Error) -> Failure {
    let code = match e {
        Error::NotPermitted(_) | Error::Kernel(_) | Error::NoGroups | Error::Io { .. } => Code::System,
        _ => Code::Usage,
    };
    Failure::new(code, e.to_string())
}
