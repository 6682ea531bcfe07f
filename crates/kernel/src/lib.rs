//! OpenCC programs as congestion control of the kernel's TCP.
//!
//! A program against `opencc.h` is compiled for eBPF ([`build`]) together with `opencc_bpf.h`, which fills the signals from TCP's
//! state and carries the decision out. [`attach`] gives it to the kernel as a `tcp_congestion_ops` (BPF `struct_ops`); any
//! socket may then choose it by `TCP_CONGESTION`. [`keep`] leaves it there when this process ends.
//!
//! The loader is our own: what congestion control needs of libbpf is small, and libbpf comes with libelf (autotools to build, LGPL
//! to link), which a program that otherwise needs nothing but a Rust toolchain would have to ask of everybody.

mod adapt;
mod asm;
mod btf;
mod compile;
mod error;
mod govern;
mod load;
mod object;
mod pins;
mod rules;
mod sys;

pub use compile::{GLUE, Include, build, build_traced};
pub use error::Error;
pub use govern::{Holding, all_processes, govern, holding, release};
pub use pins::{Kept, Scope, detach, keep, kept_as, list};
pub use rules::{Found, Rules, found};

use load::{Kernel, Registered};
use object::Object;

/// Longest name of a congestion control, in bytes (`TCP_CA_NAME_MAX` with its zero byte).
pub const MAX_NAME: usize = 15;

/// Whether this kernel takes congestion control by programs. Says nothing about rights.
///
/// # Errors
/// [`Error::Kernel`] says what is missing.
pub fn supported() -> Result<(), Error> {
    Kernel::read().map(drop)
}

/// The congestion controls that the kernel has, those of programs included.
pub fn available() -> Vec<String> {
    let text =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Whether the kernel has a congestion control of this name. One that is a module is loaded, where the rights suffice.
pub fn has(name: &str) -> bool {
    use rustix::net::{AddressFamily, SocketType, socket, sockopt};
    let asked = socket(AddressFamily::INET, SocketType::STREAM, None)
        .and_then(|s| sockopt::set_tcp_congestion(s, name));
    asked.is_ok() || available().iter().any(|n| n == name)
}

/// What an object says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The name it gives itself, as the kernel can take it (`-` becomes `_`).
    pub name: String,
    /// Its parameters' names.
    pub params: Vec<String>,
}

/// Reads what an object says of itself.
///
/// # Errors
/// [`Error::BadObject`].
pub fn about(object: &[u8]) -> Result<About, Error> {
    let object = Object::parse(object)?;
    let name = match object.table.get("name") {
        Some(object::Value::Bytes(bytes)) => bytes.iter().copied().take_while(|b| *b != 0).collect(),
        _ => Vec::new(),
    };
    let name = String::from_utf8_lossy(&name).replace('-', "_");
    Ok(About { name, params: object.params.keys().cloned().collect() })
}

/// A congestion control that the kernel's TCP has until this is dropped. Connections that use it then keep it.
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

    /// The oldest record that a program built by [`build_traced`] has written and nobody has read: `struct oc_record`
    /// of `opencc_bpf.h`.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn next_record(&self) -> Result<Option<Vec<u8>>, Error> {
        let queue = self.registered.trace.as_ref();
        queue.map_or(Ok(None), |q| q.take().map_err(Error::call("reading a trace")))
    }
}

/// Gives a program to the kernel's TCP under `name`, for all network namespaces, until the result is dropped. `params` are
/// used instead of its defaults, in the units of `opencc.h`.
///
/// # Errors
/// Any [`Error`] but those of compiling.
pub fn attach(object: &[u8], name: &str, params: &[(&str, u64)]) -> Result<Attached, Error> {
    let registered = load::register(&Object::parse(object)?, name, params)?;
    Ok(Attached { name: name.to_owned(), registered })
}
