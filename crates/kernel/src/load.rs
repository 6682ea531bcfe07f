//! Loads the functions of an object into the kernel and registers them as a TCP congestion control.

use super::btf::{Btf, Id, Kind};
use super::object::{Function, MapDef, Object, Reference, Value};
use super::sys::{self, Insn, Purpose, Queue};
use super::{Error, MAX_NAME, adapt};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Where the kernel shows its types.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";
/// Room for what the verifier says, and how much of its end is shown.
const LOG: usize = 4 << 20;
const LOG_SHOWN: usize = 12;
/// Any process may choose it (`TCP_CONG_NON_RESTRICTED`), and any network namespace make it its default.
const NON_RESTRICTED: u32 = 1;
/// In an instruction that loads an address: of a map, of a place in a map's value; in a call: of a kernel's function.
pub(crate) const PSEUDO_MAP: u8 = 1;
pub(crate) const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_KERNEL_CALL: u8 = 2;

/// The running kernel's types.
pub(crate) struct Kernel {
    types: Btf,
    /// `tcp_congestion_ops`, and the structure around it that a table of functions is given to the kernel in.
    ops: Id,
    value: Id,
}

impl Kernel {
    /// Reads them.
    ///
    /// # Errors
    /// [`Error::Kernel`] where it has none, or no congestion control by programs.
    pub(crate) fn read() -> Result<Kernel, Error> {
        let types = types()?;
        let find = |name: &str| {
            let text = "its TCP takes no programs (struct_ops for tcp_congestion_ops, Linux 5.6 with CONFIG_BPF_JIT)";
            types.find(name, Kind::Struct).ok_or_else(|| Error::Kernel(text.into()))
        };
        let (ops, value) = (find("tcp_congestion_ops")?, find("bpf_struct_ops_tcp_congestion_ops")?);
        Ok(Kernel { types, ops, value })
    }

    /// The member of `tcp_congestion_ops` of this name: its number, and its place in bytes.
    fn member(&self, name: &str) -> Option<(u32, usize, Id)> {
        let (n, m) = self.types.members(self.ops).enumerate().find(|(_, m)| m.name == name)?;
        Some((u32::try_from(n).ok()?, m.bits as usize / 8, m.of))
    }

    /// An empty table, and where in it the `tcp_congestion_ops` begins.
    fn table(&self) -> Option<(Vec<u8>, usize)> {
        let data = self.types.find_member(self.value, "data")?;
        let size = usize::try_from(self.types.size(self.value)?).ok()?;
        Some((vec![0; size], data.bits as usize / 8))
    }
}

/// The running kernel's types.
///
/// # Errors
/// [`Error::Kernel`] if it has none.
pub(crate) fn types() -> Result<Btf, Error> {
    match std::fs::read(KERNEL_TYPES) {
        Ok(data) => Btf::parse(data),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Error::Kernel(format!("it shows no types in {KERNEL_TYPES} (CONFIG_DEBUG_INFO_BTF)")))
        }
        Err(e) => Err(Error::io(format!("cannot read {KERNEL_TYPES}"))(e)),
    }
}

/// The maps of an object's programs, created in the kernel.
struct ObjectMaps {
    constants: Option<OwnedFd>,
    maps: Vec<Map>,
}

enum Map {
    Storage(OwnedFd),
    Queue(Queue),
}

impl ObjectMaps {
    fn make(object: &Object, constants: &[u8]) -> Result<ObjectMaps, Error> {
        let make = |m: &MapDef| {
            Ok(match m.queue {
                Some(entries) => Map::Queue(Queue::new(m.value, entries, &m.name)?),
                None => Map::Storage(sys::storage(m.value, &m.name, false)?),
            })
        };
        let what = "making a BPF map";
        let maps = object.maps.iter().map(make).collect::<io::Result<_>>().map_err(Error::call(what))?;
        let constants = (!constants.is_empty()).then(|| sys::constants(constants)).transpose();
        Ok(ObjectMaps { constants: constants.map_err(Error::call(what))?, maps })
    }

    /// Writes into a function's instructions what its references mean.
    fn resolve(&self, f: &mut Function, kernel: &Btf) -> Result<(), Error> {
        for (at, reference) in &f.references {
            let (source, value, next) = match reference {
                Reference::Constant(offset) => match &self.constants {
                    Some(fd) => (PSEUDO_MAP_VALUE, fd.as_raw_fd(), *offset as i32),
                    None => return Err(Error::BadObject("it has no constants, but uses one".into())),
                },
                Reference::Map(n) => match &self.maps[*n] {
                    Map::Storage(fd) => (PSEUDO_MAP, fd.as_raw_fd(), 0),
                    Map::Queue(queue) => (PSEUDO_MAP, queue.map.as_raw_fd(), 0),
                },
                Reference::Kernel(name) => match kernel.find(name, Kind::Func) {
                    Some(id) => (PSEUDO_KERNEL_CALL, id as i32, 0),
                    None => return Err(Error::Kernel(format!("it has no function {name}"))),
                },
                // Of calls within the object `Object::linked` has taken care.
                Reference::Function(_) => continue,
            };
            let call = matches!(reference, Reference::Kernel(_));
            let bad =
                || Error::BadObject(format!("{} refers to something in a way that is not known", f.name));
            let insn = f.code.get_mut(*at).ok_or_else(bad)?;
            *insn = Insn { regs: insn.regs & 0x0f | source << 4, imm: value, ..*insn };
            if !call {
                f.code.get_mut(at + 1).ok_or_else(bad)?.imm = next;
            }
        }
        Ok(())
    }
}

/// A congestion control that is registered until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) link: OwnedFd,
    pub(crate) trace: Option<Queue>,
}

/// Registers the object's congestion control under `name`.
///
/// # Errors
/// Says what the kernel or its verifier does not accept.
pub(crate) fn register(object: &Object, name: &str, params: &[(&str, u64)]) -> Result<Registered, Error> {
    check_name(name)?;
    let kernel = Kernel::read()?;
    let places = ObjectMaps::make(object, &object.with_params(params)?)?;
    let (mut table, start) =
        kernel.table().ok_or_else(|| Error::Kernel("its table of functions is unknown".into()))?;
    let mut put = |at: usize, bytes: &[u8]| -> Result<(), Error> {
        let room = table.get_mut(start + at..start + at + bytes.len());
        room.ok_or_else(|| Error::Kernel("its table of functions has no room".into()))?
            .copy_from_slice(bytes);
        Ok(())
    };
    // Held until the table is made: it then holds them itself.
    let mut functions = Vec::new();
    let mut flags = NON_RESTRICTED;
    for (member, value) in &object.table {
        let known = kernel.member(member);
        match (member.as_str(), value, known) {
            ("name", ..) => {}
            ("flags", Value::Bytes(bytes), _) => flags |= super::btf::word(bytes, 0).unwrap_or(0),
            (_, Value::Function(function), Some((number, at, pointer))) => {
                let f = object.linked(object.callback(function, kernel.types.arguments(pointer))?)?;
                let fd = load(object, f, &kernel, number, &places)?;
                put(at, &(fd.as_raw_fd() as u64).to_ne_bytes())?;
                functions.push(fd);
            }
            (_, _, None) => return Err(Error::Kernel(format!("its congestion controls have no {member}"))),
            (_, Value::Bytes(_), _) => {
                return Err(Error::BadObject(format!(
                    "it sets {member} of the table, which programs cannot"
                )));
            }
        }
    }
    if let Some((_, at, _)) = kernel.member("flags") {
        put(at, &flags.to_ne_bytes())?;
    }
    let (_, at, _) =
        kernel.member("name").ok_or_else(|| Error::Kernel("its congestion controls have no name".into()))?;
    put(at, name.as_bytes())?;
    let map =
        sys::table(&table, kernel.value, name).map_err(Error::call("making a table of TCP's functions"))?;
    let link = sys::register(map.as_fd()).map_err(|e| match e.raw_os_error() {
        Some(libc::EEXIST) => Error::NameTaken(name.to_owned()),
        _ => Error::call("registering a congestion control")(e),
    })?;
    let queue = |m| if let Map::Queue(queue) = m { Some(queue) } else { None };
    Ok(Registered { link, trace: places.maps.into_iter().find_map(queue) })
}

/// The kernel takes such names only (`bpf_obj_name_cpy`).
pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    let good = !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(fits);
    if good { Ok(()) } else { Err(Error::BadName(name.chars().take(4 * MAX_NAME).collect())) }
}

fn load(
    object: &Object,
    mut f: Function,
    kernel: &Kernel,
    member: u32,
    places: &ObjectMaps,
) -> Result<OwnedFd, Error> {
    adapt::adapt(&mut f.code, &f.adaptations, &object.types, &kernel.types)?;
    places.resolve(&mut f, &kernel.types)?;
    let purpose = Purpose::Member { of: kernel.ops, member };
    load_verified(&f, purpose, &object.licence)
}

/// Loads a function; when that fails, again with a log to tell why.
pub(crate) fn load_verified(f: &Function, purpose: Purpose, licence: &CStr) -> Result<OwnedFd, Error> {
    let refused = match sys::load(&f.code, &f.name, purpose, licence, &mut []) {
        Ok(fd) => return Ok(fd),
        Err(e) => e,
    };
    let mut log = vec![0; LOG];
    // A log that is too short for all that is said fails the call as well; then its beginning has to do.
    let again = sys::load(&f.code, &f.name, purpose, licence, &mut log);
    if let Ok(fd) = again {
        return Ok(fd);
    }
    let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    if text.trim().is_empty() {
        return Err(Error::call("loading a BPF program")(refused));
    }
    if adapt::is_missing_field(&text) {
        return Err(Error::Kernel(format!("{} needs a field of TCP's state that it does not have", f.name)));
    }
    let lines: Vec<&str> = text.lines().collect();
    let at =
        lines.iter().rev().find_map(|l| l.split_once(": (")?.0.trim().parse().ok()).and_then(|n| f.line(n));
    let log = lines[lines.len().saturating_sub(LOG_SHOWN)..].join("\n");
    Err(Error::Verifier { program: f.name.clone(), at, log })
}

impl Object {
    /// The constants with these parameters instead of their defaults.
    fn with_params(&self, params: &[(&str, u64)]) -> Result<Vec<u8>, Error> {
        let mut all = self.constants.clone();
        for (name, value) in params {
            let at = self.params.get(*name).copied();
            let room = at.and_then(|at| all.get_mut(at..at.checked_add(8)?));
            let names: Vec<_> = self.params.keys().map(String::as_str).collect();
            let list = if names.is_empty() { "none".into() } else { names.join(", ") };
            room.ok_or_else(|| Error::BadObject(format!("it has no parameter \"{name}\"; it has: {list}")))?
                .copy_from_slice(&value.to_ne_bytes());
        }
        Ok(all)
    }

    /// The function of this name; where the kernel's callback takes two arguments (`cong_control` before Linux 6.10),
    /// the one with `_2` behind its name if there is one.
    fn callback(&self, name: &str, arguments: Option<usize>) -> Result<usize, Error> {
        let find = |name: &str| self.functions.iter().position(|f| f.name == name);
        let older = (arguments == Some(2)).then(|| find(&format!("{name}_2"))).flatten();
        older
            .or_else(|| find(name))
            .ok_or_else(|| Error::BadObject(format!("its function {name} is not there")))
    }
}
