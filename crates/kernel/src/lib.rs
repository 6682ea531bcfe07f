//! Loads OpenCC programs into the kernel as TCP congestion control, and policies that choose it for the sockets of a cgroup.
//!
//! A program written against `opencc.h` is compiled to eBPF ([`build`]) together with `opencc_bpf.h`, which fills the signals
//! from TCP's state and applies the decision. [`attach`] registers it in the kernel as a `tcp_congestion_ops` (BPF
//! `struct_ops`); any socket may then choose it by `TCP_CONGESTION`. [`attach_pinned`] also pins it in the BPF file system, so
//! that it outlives this process. [`attach_policy`] attaches the [`Rules`] of a policy to a cgroup.
//!
//! The loader is our own, since congestion control needs little of libbpf, and libbpf needs libelf (autotools to build, LGPL
//! to link), while the rest of the workspace builds with a Rust toolchain alone.

mod adapt;
mod asm;
mod btf;
mod cgroup_policy;
mod compile;
mod error;
mod load;
mod object;
mod pins;
mod rules;
mod sys;

pub use cgroup_policy::{AttachedPolicy, attach_policy, attached_policies, detach_policy, root_cgroup};
pub use compile::{Header, TCP_HEADER, build, build_traced};
pub use error::Error;
pub use pins::{PinnedProgram, Scope, attach_pinned, detach, pinned_name, pinned_programs};
pub use rules::{Rules, Selection, select_algorithm};

use load::{Kernel, Registered};
use object::Object;

/// Longest name of a congestion control, in bytes: `TCP_CA_NAME_MAX` (16) less its zero byte.
pub const MAX_NAME: usize = 15;

/// Checks that this kernel accepts congestion control by BPF programs. Permissions are not checked.
///
/// # Errors
/// [`Error::Kernel`] with the missing feature.
pub fn check_support() -> Result<(), Error> {
    Kernel::read().map(drop)
}

/// Names of the congestion controls that this kernel has loaded, those of attached programs included.
pub fn available_algorithms() -> Vec<String> {
    let text =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Whether the kernel has a congestion control of this name. Setting it on a socket makes the kernel load a module of that
/// name, if this process has the rights.
pub fn is_available(name: &str) -> bool {
    use rustix::net::{AddressFamily, SocketType, socket, sockopt};
    let asked = socket(AddressFamily::INET, SocketType::STREAM, None)
        .and_then(|s| sockopt::set_tcp_congestion(s, name));
    asked.is_ok() || available_algorithms().iter().any(|n| n == name)
}

/// Name and parameters that a compiled program declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The declared name, in the form that the kernel accepts (`-` becomes `_`).
    pub name: String,
    /// The names of the declared parameters.
    pub params: Vec<String>,
}

/// Reads name and parameters from a compiled program.
///
/// # Errors
/// [`Error::BadObject`].
pub fn program_info(object: &[u8]) -> Result<ProgramInfo, Error> {
    let object = Object::parse(object)?;
    let name = match object.table.get("name") {
        Some(object::Value::Bytes(bytes)) => bytes.iter().copied().take_while(|b| *b != 0).collect(),
        _ => Vec::new(),
    };
    let name = String::from_utf8_lossy(&name).replace('-', "_");
    Ok(ProgramInfo { name, params: object.params.keys().cloned().collect() })
}

/// A program registered with the kernel's TCP; dropping this unregisters it. Connections that use it continue to.
#[derive(Debug)]
pub struct Attached {
    name: String,
    registered: Registered,
}

impl Attached {
    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the oldest unread trace record of a program built by [`build_traced`], a `struct oc_record` of `opencc_bpf.h`.
    /// `None`: there is no unread record, or the program is not traced.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn next_record(&self) -> Result<Option<Vec<u8>>, Error> {
        let queue = self.registered.trace.as_ref();
        queue.map_or(Ok(None), |q| q.take().map_err(Error::call("reading a trace")))
    }
}

/// Registers a program with the kernel's TCP under `name`, in all network namespaces, until the result is dropped. `params`
/// replace the program's defaults, in the units of `opencc.h`.
///
/// # Errors
/// Any [`Error`] but those of compiling.
pub fn attach(object: &[u8], name: &str, params: &[(&str, u64)]) -> Result<Attached, Error> {
    let registered = load::register(&Object::parse(object)?, name, params)?;
    Ok(Attached { name: name.to_owned(), registered })
}
