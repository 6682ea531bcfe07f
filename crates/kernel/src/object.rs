//! A parser of BPF objects (ELF): the functions, and the table that assigns them to callbacks.
//!
//! The format is that of libbpf (`.struct_ops.link`, `.maps`, `.ksyms`, `.BTF.ext`), so that objects are interchangeable with
//! those of other tools. Only the parts that congestion control needs are supported; errors name unsupported ones.

use super::Error;
use super::btf::{Btf, Id, Kind, word};
use super::sys::Insn;
use object::read::elf::ElfFile64;
use object::{
    Architecture, Object as _, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionIndex,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CString;

type File<'a> = ElfFile64<'a, object::Endianness>;
type Symbol<'a> = object::read::elf::ElfSymbol64<'a, 'a, object::Endianness>;
type Section<'a, 'b> = object::read::elf::ElfSection64<'a, 'b, object::Endianness>;

/// Largest object that is read, in bytes.
pub(crate) const MAX_OBJECT: usize = 16 << 20;
/// Most constants that an object may have, in bytes.
const MAX_CONSTANTS: usize = 1 << 20;
/// Largest value of a map in bytes, most values of a queue, and most maps.
const MAX_VALUE: u32 = 4096;
const MAX_ENTRIES: u32 = 1 << 16;
const MAX_MAPS: usize = 8;
/// Most instructions of a callback, with what it calls; the kernel's limit (`BPF_COMPLEXITY_LIMIT_INSNS`).
const MAX_CODE: usize = 1_000_000;
/// `BPF_MAP_TYPE_QUEUE` and `BPF_MAP_TYPE_SK_STORAGE`.
const QUEUE: u32 = 22;
const SK_STORAGE: u32 = 24;
/// Loads 64 bits, in two instructions.
pub(crate) const LOAD_WIDE: u8 = 0x18;
const CALL: u8 = 0x85;

/// Something outside of a function that one of its instructions means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// This byte of the constants.
    Constant(u32),
    /// The map of this number.
    Map(usize),
    /// A function of the kernel.
    Kernel(String),
    /// The function of this number in the object, which was not inlined.
    Function(usize),
}

/// A request to adapt an instruction to the running kernel's types (CO-RE).
#[derive(Clone, Debug)]
pub(crate) struct Adaptation {
    pub(crate) insn: usize,
    pub(crate) of: Id,
    pub(crate) path: String,
    pub(crate) kind: u32,
}

/// A function.
#[derive(Clone, Debug, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) code: Vec<Insn>,
    pub(crate) references: Vec<(usize, Reference)>,
    pub(crate) adaptations: Vec<Adaptation>,
    /// Where instructions come from: the first one, and ` (FILE:LINE: text)`.
    pub(crate) lines: Vec<(usize, String)>,
}

impl Function {
    /// Where this instruction comes from.
    pub(crate) fn line(&self, insn: usize) -> Option<String> {
        self.lines.iter().rev().find(|(from, _)| *from <= insn).map(|(_, text)| text.clone())
    }
}

/// Memory that programs share with each other or with us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MapDef {
    pub(crate) name: String,
    /// Bytes of a value; a multiple of 4.
    pub(crate) value: u32,
    /// Of a queue: how many values wait at most. Other maps keep one for each socket.
    pub(crate) queue: Option<u32>,
}

/// A member of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Function(String),
    Bytes(Vec<u8>),
}

/// An object, taken apart.
pub(crate) struct Object {
    pub(crate) types: Btf,
    pub(crate) functions: Vec<Function>,
    /// Members of the `tcp_congestion_ops` by their names; those that are zero left out.
    pub(crate) table: BTreeMap<String, Value>,
    pub(crate) constants: Vec<u8>,
    /// Where in the constants each parameter's value is, by the parameter's name.
    pub(crate) params: BTreeMap<String, usize>,
    pub(crate) maps: Vec<MapDef>,
    pub(crate) licence: CString,
}

fn bad(what: impl Into<String>) -> Error {
    Error::BadObject(what.into())
}
fn broken(e: object::Error) -> Error {
    bad(format!("it is not a sound ELF file ({e})"))
}

impl Object {
    /// The function of this number with all that it calls behind it, which is what the kernel takes.
    pub(crate) fn linked(&self, number: usize) -> Result<Function, Error> {
        let mut parts = vec![number];
        let mut starts = Vec::new();
        let mut out = Function { name: self.functions[number].name.clone(), ..Function::default() };
        // Grows while it is walked: by each function once.
        while let Some(f) = parts.get(starts.len()).map(|n| &self.functions[*n]) {
            let start = out.code.len();
            if start + f.code.len() > MAX_CODE {
                return Err(bad(format!("{} has more than {MAX_CODE} instructions", out.name)));
            }
            starts.push(start);
            out.code.extend_from_slice(&f.code);
            out.adaptations
                .extend(f.adaptations.iter().map(|a| Adaptation { insn: a.insn + start, ..a.clone() }));
            out.lines.extend(f.lines.iter().map(|(at, line)| (at + start, line.clone())));
            for (at, reference) in &f.references {
                if let Reference::Function(n) = reference
                    && !parts.contains(n)
                {
                    parts.push(*n);
                }
                out.references.push((at + start, reference.clone()));
            }
        }
        // Calls are by their distance.
        let place = |n: usize| parts.iter().position(|p| *p == n).and_then(|part| starts.get(part)).copied();
        for (at, reference) in &out.references {
            let Reference::Function(n) = reference else { continue };
            let distance = place(*n).map(|to| to as i64 - *at as i64 - 1).and_then(|d| i32::try_from(d).ok());
            let (Some(distance), Some(insn)) = (distance, out.code.get_mut(*at)) else {
                return Err(bad("a call leads nowhere"));
            };
            *insn = Insn { regs: insn.regs & 0x0f | 1 << 4, imm: distance, ..*insn };
        }
        out.references.retain(|(_, r)| !matches!(r, Reference::Function(_)));
        Ok(out)
    }

    /// Takes an object apart.
    pub(crate) fn parse(data: &[u8]) -> Result<Object, Error> {
        if data.len() > MAX_OBJECT {
            return Err(bad(format!("it has {} bytes; at most {MAX_OBJECT} are read", data.len())));
        }
        let file = File::parse(data).map_err(broken)?;
        if file.architecture() != Architecture::Bpf
            || file.is_little_endian() != cfg!(target_endian = "little")
        {
            return Err(bad("it was not compiled for BPF (clang -target bpf)"));
        }
        let types = section_data(&file, ".BTF")?
            .ok_or_else(|| bad("it has no type information: compile it with -g"))?;
        let types = Btf::parse(types.to_vec())?;
        refuse_variables(&file)?;
        let (constants, places) = constants(&file)?;
        let params = params(&file, &places)?;
        let maps = maps(&types)?;
        let reader = Reader { file: &file, types: &types, places, maps: &maps };
        let functions = reader.functions()?;
        let table = reader.table()?;
        let licence = section_data(&file, "license")?.unwrap_or_default();
        let licence: Vec<u8> = licence.iter().copied().take_while(|b| *b != 0).collect();
        let licence = CString::new(licence).map_err(|_| bad("its licence is not a text"))?;
        Ok(Object { functions, table, constants, params, maps, licence, types })
    }
}

fn section_data<'a>(file: &File<'a>, name: &str) -> Result<Option<&'a [u8]>, Error> {
    file.section_by_name(name).map(|s| s.data().map_err(broken)).transpose()
}

/// Flows share nothing: what would be shared is refused with a remedy.
fn refuse_variables(file: &File<'_>) -> Result<(), Error> {
    let variables = |name: &str| {
        name == ".data" || name == ".bss" || name.starts_with(".data.") || name.starts_with(".bss.")
    };
    match file.sections().find(|s| s.size() > 0 && s.name().is_ok_and(variables)) {
        Some(s) => Err(bad(format!(
            "it has variables that all flows would share ({}): keep them in the algorithm's state",
            s.name().unwrap_or_default()
        ))),
        None => Ok(()),
    }
}

/// All constants one behind the other, and where each section of them begins.
fn constants(file: &File<'_>) -> Result<(Vec<u8>, HashMap<SectionIndex, usize>), Error> {
    let (mut all, mut places) = (Vec::<u8>::new(), HashMap::new());
    for section in file.sections().filter(|s| s.name().is_ok_and(|n| n.starts_with(".rodata"))) {
        all.resize(all.len().next_multiple_of(16), 0);
        places.insert(section.index(), all.len());
        all.extend_from_slice(section.data().map_err(broken)?);
    }
    if all.len() > MAX_CONSTANTS {
        return Err(bad(format!("it has {} bytes of constants; at most {MAX_CONSTANTS}", all.len())));
    }
    Ok((all, places))
}

/// Constants that are called `oc_param_...` and have 8 bytes.
fn params(file: &File<'_>, places: &HashMap<SectionIndex, usize>) -> Result<BTreeMap<String, usize>, Error> {
    let mut out = BTreeMap::new();
    for symbol in file.symbols().filter(|s| s.size() == 8) {
        let name = symbol.name().map_err(broken)?.strip_prefix("oc_param_");
        let start = symbol.section_index().and_then(|i| places.get(&i));
        let (Some(name), Some(start), Ok(at)) = (name, start, usize::try_from(symbol.address())) else {
            continue;
        };
        out.insert(name.to_owned(), start.saturating_add(at));
    }
    Ok(out)
}

/// The maps: structures whose members are pointers to arrays of as many elements as the attribute's value (libbpf's
/// `__uint`), or to the value's type (`__type`).
fn maps(types: &Btf) -> Result<Vec<MapDef>, Error> {
    let mut out = Vec::new();
    for (variable, _) in types.section(".maps") {
        let name = types.name(variable).to_owned();
        let definition = types.bare(types.size_or_type(variable));
        let pointee = |member: &str| {
            let pointer = types.bare(types.find_member(definition, member)?.of);
            (types.kind(pointer)? == Kind::Ptr).then(|| types.size_or_type(pointer))
        };
        let number = |member: &str| types.array(types.bare(pointee(member)?)).map(|(_, n)| n);
        let value =
            pointee("value").and_then(|id| types.size(id)).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let queue = match (number("type"), number("max_entries")) {
            (Some(QUEUE), Some(entries @ 1..=MAX_ENTRIES)) => Some(entries),
            (Some(SK_STORAGE), _) => None,
            _ => {
                return Err(bad(format!(
                    "its map {name} is neither a small queue nor the storage of sockets"
                )));
            }
        };
        if !(4..=MAX_VALUE).contains(&value) || value % 4 != 0 || out.len() >= MAX_MAPS {
            return Err(bad(format!("its map {name} has values of {value} bytes, or is one too many")));
        }
        out.push(MapDef { name, value, queue });
    }
    Ok(out)
}

struct Reader<'a> {
    file: &'a File<'a>,
    types: &'a Btf,
    places: HashMap<SectionIndex, usize>,
    maps: &'a [MapDef],
}

/// What a relocation is about: the symbol's name, section and address there.
struct Target<'a> {
    name: &'a str,
    section: Option<SectionIndex>,
    address: u64,
}

impl<'a> Reader<'a> {
    /// The functions of all sections of code.
    fn functions(&self) -> Result<Vec<Function>, Error> {
        let extra = Extra::parse(section_data(self.file, ".BTF.ext")?.unwrap_or_default(), self.types)?;
        let mut out = Vec::new();
        let all: Vec<_> = self.function_symbols().collect();
        for section in self.file.sections() {
            let title = section.name().map_err(broken)?;
            if !is_code(title) {
                continue;
            }
            let code = instructions(section.data().map_err(broken)?)?;
            let references = self.references(&section, &code, &all)?;
            for symbol in all.iter().filter(|s| s.section_index() == Some(section.index())) {
                let (from, to) = (symbol.address() / 8, (symbol.address().saturating_add(symbol.size())) / 8);
                let range =
                    usize::try_from(from).unwrap_or(usize::MAX)..usize::try_from(to).unwrap_or(usize::MAX);
                let name = symbol.name().map_err(broken)?;
                let body =
                    code.get(range.clone()).ok_or_else(|| bad(format!("{name} is not in its section")))?;
                let within = |insn: &usize| range.contains(insn).then(|| insn - range.start);
                out.push(Function {
                    name: name.into(),
                    code: body.to_vec(),
                    references: references
                        .iter()
                        .filter_map(|(at, r)| Some((within(at)?, r.clone())))
                        .collect(),
                    adaptations: extra
                        .adaptations(title)
                        .filter_map(|a| Some(Adaptation { insn: within(&a.insn)?, ..a.clone() }))
                        .collect(),
                    lines: extra.lines(title).filter_map(|(at, l)| Some((within(at)?, l.clone()))).collect(),
                });
            }
        }
        Ok(out)
    }

    /// The symbols of functions, section by section: the order in which functions are numbered.
    fn function_symbols(&self) -> impl Iterator<Item = Symbol<'a>> {
        let sections = self.file.sections().filter(|s| s.name().is_ok_and(is_code)).map(|s| s.index());
        sections.flat_map(|index| {
            let here = move |s: &Symbol<'a>| s.section_index() == Some(index) && s.size() > 0;
            self.file.symbols().filter(here)
        })
    }

    fn target(&self, relocation: &object::Relocation) -> Result<Target<'a>, Error> {
        let RelocationTarget::Symbol(index) = relocation.target() else {
            return Err(bad("a relocation without a symbol"));
        };
        let symbol = self.file.symbol_by_index(index).map_err(broken)?;
        Ok(Target {
            name: symbol.name().map_err(broken)?,
            section: symbol.section_index(),
            address: symbol.address(),
        })
    }

    fn references(
        &self,
        section: &Section<'a, '_>,
        code: &[Insn],
        functions: &[Symbol<'a>],
    ) -> Result<Vec<(usize, Reference)>, Error> {
        let called = |section: Option<SectionIndex>, address: i64| {
            let is =
                |s: &Symbol<'a>| s.section_index() == section && i64::try_from(s.address()) == Ok(address);
            let n =
                functions.iter().position(is).ok_or_else(|| bad("it calls a function that is not there"))?;
            Ok::<_, Error>(Reference::Function(n))
        };
        let mut out = Vec::new();
        let related: BTreeSet<u64> = section.relocations().map(|(offset, _)| offset / 8).collect();
        for (at, insn) in code.iter().enumerate() {
            // A call within the section: its distance is known already.
            if insn.code == CALL && insn.regs >> 4 == 1 && !related.contains(&(at as u64)) {
                out.push((at, called(Some(section.index()), (at as i64 + 1 + i64::from(insn.imm)) * 8)?));
            }
        }
        for (offset, relocation) in section.relocations() {
            let target = self.target(&relocation)?;
            let at = usize::try_from(offset / 8).unwrap_or(usize::MAX);
            let insn = code.get(at).ok_or_else(|| bad("a relocation outside of its section"))?;
            let title =
                target.section.and_then(|i| self.file.section_by_index(i).ok()).and_then(|s| s.name().ok());
            let place = target.section.and_then(|i| self.places.get(&i));
            let reference = match (insn.code, place, title) {
                (LOAD_WIDE, Some(start), _) => {
                    // The addend stands in the instruction.
                    let within = target.address.wrapping_add_signed(i64::from(insn.imm));
                    let at = u32::try_from(within.wrapping_add(*start as u64));
                    Reference::Constant(at.map_err(|_| bad("a constant outside of its section"))?)
                }
                (LOAD_WIDE, None, Some(".maps")) => {
                    let which = self.maps.iter().position(|m| m.name == target.name);
                    Reference::Map(
                        which.ok_or_else(|| bad(format!("the map {} is not described", target.name)))?,
                    )
                }
                (CALL, None, None) => Reference::Kernel(target.name.into()),
                (CALL, ..) => {
                    let start = i64::try_from(target.address)
                        .map_err(|_| bad("a function outside of its section"))?;
                    called(target.section, start.saturating_add((i64::from(insn.imm) + 1) * 8))?
                }
                _ => return Err(bad(format!("`{}` is used in a way that is not known here", target.name))),
            };
            out.push((at, reference));
        }
        Ok(out)
    }

    /// The one `tcp_congestion_ops` of the object.
    fn table(&self) -> Result<BTreeMap<String, Value>, Error> {
        let title =
            [".struct_ops.link", ".struct_ops"].into_iter().find(|t| self.file.section_by_name(t).is_some());
        let title = title
            .ok_or_else(|| bad("it has no tcp_congestion_ops in .struct_ops.link: it is not for TCP"))?;
        let variables = self.types.section(title);
        let [(variable, offset)] = variables[..] else {
            return Err(bad(format!("it has {} tables of functions in {title}, not one", variables.len())));
        };
        let of = self.types.bare(self.types.size_or_type(variable));
        if self.types.name(of) != "tcp_congestion_ops" {
            return Err(bad(format!("its table is a {}, not a tcp_congestion_ops", self.types.name(of))));
        }
        let section = self.file.section_by_name(title).ok_or_else(|| bad("its table is gone"))?;
        let data = section.data().map_err(broken)?;
        let mut functions = BTreeMap::new();
        for (at, relocation) in section.relocations() {
            if !matches!(relocation.flags(), RelocationFlags::Elf { .. }) {
                return Err(bad("a relocation of its table is unknown"));
            }
            functions.insert(at, self.function_name(self.target(&relocation)?, data, at)?);
        }
        let mut out = BTreeMap::new();
        for member in self.types.members(of).filter(|m| !m.name.is_empty()) {
            let at = u64::from(offset) + u64::from(member.bits / 8);
            if let Some(name) = functions.remove(&at) {
                out.insert(member.name.to_owned(), Value::Function(name));
                continue;
            }
            let size = self.types.size(member.of).unwrap_or(0);
            let range = usize::try_from(at).unwrap_or(usize::MAX)
                ..usize::try_from(at.saturating_add(size)).unwrap_or(usize::MAX);
            let bytes = data.get(range).ok_or_else(|| bad("its table is shorter than its type"))?;
            if bytes.iter().any(|b| *b != 0) {
                out.insert(member.name.to_owned(), Value::Bytes(bytes.to_vec()));
            }
        }
        Ok(out)
    }

    /// The function that a pointer in the table is to: the symbol itself, or a section and the place in it.
    fn function_name(&self, target: Target<'a>, data: &[u8], at: u64) -> Result<String, Error> {
        let addend = usize::try_from(at).ok().and_then(|at| word(data, at)).unwrap_or(0);
        let address = target.address.wrapping_add(u64::from(addend));
        let is =
            |s: &Symbol<'a>| s.section_index() == target.section && s.address() == address && s.size() > 0;
        let symbol = self
            .file
            .symbols()
            .find(is)
            .ok_or_else(|| bad("its table names a function that is not there"))?;
        Ok(symbol.name().map_err(broken)?.to_owned())
    }
}

/// Whether a section has functions: callbacks, or what they call.
fn is_code(title: &str) -> bool {
    title == ".text" || title.starts_with("struct_ops")
}

fn instructions(data: &[u8]) -> Result<Vec<Insn>, Error> {
    if !data.len().is_multiple_of(8) {
        return Err(bad("a function ends amidst an instruction"));
    }
    let insn = |c: &[u8]| Insn {
        code: c[0],
        regs: c[1],
        off: i16::from_ne_bytes([c[2], c[3]]),
        imm: i32::from_ne_bytes([c[4], c[5], c[6], c[7]]),
    };
    Ok(data.chunks_exact(8).map(insn).collect())
}

/// The `.BTF.ext` section: by section of code, what is to be adapted, and where it comes from.
#[derive(Default)]
struct Extra {
    adaptations: BTreeMap<String, Vec<Adaptation>>,
    lines: BTreeMap<String, Vec<(usize, String)>>,
}

impl Extra {
    fn adaptations(&self, section: &str) -> impl Iterator<Item = &Adaptation> {
        self.adaptations.get(section).into_iter().flatten()
    }
    fn lines(&self, section: &str) -> impl Iterator<Item = &(usize, String)> {
        self.lines.get(section).into_iter().flatten()
    }

    fn parse(data: &[u8], types: &Btf) -> Result<Extra, Error> {
        let mut out = Extra::default();
        if data.is_empty() {
            return Ok(out);
        }
        let at = |n: usize| word(data, n).ok_or_else(|| bad("its .BTF.ext ends early"));
        let header = at(4)?;
        records(data, (header, at(16)?, at(20)?), &mut |section, r| {
            let [insn, file, text, place] = r else { return };
            let file = types.string(*file).rsplit('/').next().unwrap_or_default();
            // Line and column: 22 and 10 bits.
            let line = format!(" ({file}:{}: {})", place >> 10, types.string(*text).trim());
            out.lines.entry(types.string(section).into()).or_default().push((*insn as usize / 8, line));
        })?;
        // Older compilers wrote no third part.
        if header >= 32 {
            records(data, (header, at(24)?, at(28)?), &mut |section, r| {
                let [insn, of, path, kind] = r else { return };
                let path = types.string(*path).to_owned();
                let a = Adaptation { insn: *insn as usize / 8, of: *of, path, kind: *kind };
                out.adaptations.entry(types.string(section).into()).or_default().push(a);
            })?;
        }
        Ok(out)
    }
}

/// Calls `take` with the section's name and the first four words of each record of one part of `.BTF.ext`.
fn records(
    data: &[u8],
    (header, offset, len): (u32, u32, u32),
    take: &mut dyn FnMut(u32, &[u32]),
) -> Result<(), Error> {
    if len == 0 {
        return Ok(());
    }
    let early = || bad("its .BTF.ext ends early");
    let at = |n: usize| word(data, n).ok_or_else(early);
    let mut next = header as usize + offset as usize;
    let end = next + len as usize;
    let size = at(next)? as usize;
    if size < 16 {
        return Err(bad("its .BTF.ext has records that are too short"));
    }
    next += 4;
    while next < end {
        let (section, count) = (at(next)?, at(next + 4)?);
        next += 8;
        for _ in 0..count {
            take(section, &[at(next)?, at(next + 4)?, at(next + 8)?, at(next + 12)?]);
            next += size;
        }
    }
    Ok(())
}
