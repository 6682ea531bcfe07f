//! Parses a program's manifest: text records that the macros of `opencc.h` write into a section of the module.
//!
//! A record is a line whose fields each end with a tab. WebAssembly modules have the custom section `opencc`
//! ([`Manifest::of_wasm`]), BPF objects the ELF section `opencc` ([`Manifest::parse`] parses its bytes).

use base::{Rate, Span};
use cc::Marks;
use cc::registry::{Kind, Needs, ParamDef, check_name, intern};
use std::collections::BTreeSet;

/// The version of `opencc.h` that this crate supports (`OC_ABI`).
pub const ABI: u64 = 1;
/// Name of the section.
pub const SECTION: &str = "opencc";
/// Longest section, in bytes.
pub const MAX_SECTION: usize = 16 * 1024;
/// Longest module, in bytes.
pub const MAX_MODULE: usize = 256 * 1024;
/// Longest field, in bytes.
pub const MAX_FIELD: usize = 240;
/// Most parameters (`OC_MAX_PARAMS`).
pub const MAX_PARAMS: usize = 16;
/// Most named states.
pub const MAX_STATES: usize = 16;

/// Why a module or its manifest is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// It is not WebAssembly.
    #[error("it is not a WebAssembly module: build it with `longhaul cc build`")]
    NotWasm,
    /// It is too long.
    #[error("it is {len} bytes long; at most {max} are read")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// The most bytes allowed.
        max: usize,
    },
    /// A section of the module extends beyond its end.
    #[error("the module is cut off or damaged at byte {at}: build it again")]
    Damaged {
        /// The offset in the module.
        at: usize,
    },
    /// It has no manifest.
    #[error("it has no section \"opencc\": begin the source with OC_PROGRAM of opencc.h")]
    NoManifest,
    /// It was built against another version of the header.
    #[error(
        "it was built for version {theirs} of opencc.h, and this is version {ABI}: build it again from its source"
    )]
    Abi {
        /// The version it names; empty if none.
        theirs: String,
    },
    /// A record is invalid.
    #[error("the record \"{record}\" of its section \"opencc\" {wrong}")]
    Record {
        /// The beginning of the record.
        record: String,
        /// What is wrong with it, and what to do.
        wrong: &'static str,
    },
    /// Its name is not allowed, or this process has no room for more texts of programs.
    #[error(transparent)]
    Registry(#[from] cc::Error),
}

/// A program's description of itself.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The name it is selected by.
    pub name: String,
    /// What it is, in a line.
    pub summary: String,
    /// The signals it needs from the path.
    pub needs: Needs,
    /// Its parameters, in the order of their values in memory.
    pub params: Vec<ParamDef>,
    /// Names of its states.
    pub states: Vec<&'static str>,
}

impl Manifest {
    /// Parses the manifest of a WebAssembly module.
    ///
    /// # Errors
    /// Any [`Bad`].
    pub fn of_wasm(module: &[u8]) -> Result<Manifest, Bad> {
        Manifest::parse(&section(module)?)
    }

    /// Parses the bytes of a section `opencc`.
    ///
    /// # Errors
    /// [`Bad::Abi`], [`Bad::Record`], [`Bad::NoManifest`], [`Bad::TooLong`], [`Bad::Registry`].
    pub fn parse(section: &[u8]) -> Result<Manifest, Bad> {
        if section.len() > MAX_SECTION {
            return Err(Bad::TooLong { len: section.len(), max: MAX_SECTION });
        }
        let Ok(text) = core::str::from_utf8(section) else {
            return Err(Bad::Record { record: String::new(), wrong: "is not text in UTF-8" });
        };
        let records: Vec<Vec<&str>> =
            text.lines().map(|line| line.strip_suffix('\t').unwrap_or(line).split('\t').collect()).collect();
        // The version first, since it determines what the other records mean.
        check_abi(&records)?;
        let name = single_field(&records, "name")?.ok_or(Bad::NoManifest)?;
        // Names that cannot be loaded, of built-in and kernel algorithms, are refused when building, too.
        check_name(name)?;
        let mut manifest = Manifest {
            name: name.to_owned(),
            summary: single_field(&records, "summary")?.unwrap_or("").to_owned(),
            needs: needs(single_field(&records, "needs")?.unwrap_or("nothing"))?,
            params: Vec::new(),
            states: states(single_field(&records, "states")?.unwrap_or(""))?,
        };
        for record in &records {
            match record[0] {
                "abi" | "name" | "summary" | "needs" | "states" | "" => {}
                "param" => manifest.add_param(record)?,
                _ => return Err(bad_record(record, "is of a kind that this version does not know")),
            }
        }
        Ok(manifest)
    }

    fn add_param(&mut self, record: &[&str]) -> Result<(), Bad> {
        let &[_, kind, name, unit, min, max, default, help] = record else {
            return Err(bad_record(
                record,
                "has another number of fields than a parameter: use the macros of opencc.h",
            ));
        };
        if self.params.len() == MAX_PARAMS {
            return Err(bad_record(record, "is one parameter more than the 16 a program may have"));
        }
        if name.is_empty() || self.params.iter().any(|p| p.name == name) {
            return Err(bad_record(record, "has no name, or that of another parameter"));
        }
        let kind = param_kind(record, kind, unit, [min, max, default])?;
        self.params.push(ParamDef { name: intern(name)?, help: intern(help)?, kind });
        Ok(())
    }

    /// The values of `params` in the order and encoding that the program expects: switches 0 or 1, shares in
    /// parts per 100,000, spans in nanoseconds, rates in bytes per second with 0 for `auto`.
    pub fn values(&self, params: &cc::Params) -> [u64; MAX_PARAMS] {
        use cc::registry::Value;
        let mut values = [0; MAX_PARAMS];
        for (value, p) in values.iter_mut().zip(&self.params) {
            *value = match params.get(p.name).unwrap_or(p.kind.default()) {
                Value::Switch(on) => u64::from(on),
                Value::Count(n) | Value::Share(n) => n,
                Value::Rate(rate) => rate.map_or(0, Rate::bytes_per_sec),
                Value::Span(span) => span.as_nanos(),
            };
        }
        values
    }
}

fn bad_record(record: &[&str], wrong: &'static str) -> Bad {
    Bad::Record { record: record.join(" ").chars().take(60).collect(), wrong }
}

/// The field of the only record of a kind.
fn single_field<'a>(records: &[Vec<&'a str>], kind: &str) -> Result<Option<&'a str>, Bad> {
    let mut found = records.iter().filter(|r| r[0] == kind);
    let Some(record) = found.next() else { return Ok(None) };
    match record[..] {
        _ if found.next().is_some() => Err(bad_record(record, "is there twice")),
        [_, field] if field.len() <= MAX_FIELD => Ok(Some(field)),
        _ => Err(bad_record(record, "has not one field of 240 bytes at most")),
    }
}

fn check_abi(records: &[Vec<&str>]) -> Result<(), Bad> {
    match single_field(records, "abi")? {
        None => Err(Bad::NoManifest),
        Some(version) if version == ABI.to_string() => Ok(()),
        Some(version) => Err(Bad::Abi { theirs: version.chars().take(20).collect() }),
    }
}

fn needs(text: &str) -> Result<Needs, Bad> {
    match text {
        "nothing" => Ok(Needs::NOTHING),
        "step" => Ok(Needs { marks: Marks::Step, telemetry: false }),
        "l4s" => Ok(Needs { marks: Marks::L4s, telemetry: false }),
        "telemetry" => Ok(Needs { marks: Marks::Optional, telemetry: true }),
        _ => Err(bad_record(&["needs", text], "is none of OC_NEEDS_NOTHING, _STEP, _L4S and _TELEMETRY")),
    }
}

fn states(list: &str) -> Result<Vec<&'static str>, Bad> {
    let names: BTreeSet<&str> = list.split(',').collect();
    if list.split(',').count() > MAX_STATES || names.len() != list.split(',').count() {
        return Err(bad_record(&["states", list], "names more than 16 states, or one of them twice"));
    }
    list.split(',').filter(|s| !s.is_empty()).map(|s| Ok(intern(s)?)).collect()
}

fn param_kind(record: &[&str], kind: &str, unit: &str, range: [&str; 3]) -> Result<Kind, Bad> {
    let mut numbers = [0; 3];
    for (number, text) in numbers.iter_mut().zip(range) {
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        *number = text.parse().ok().filter(|_| digits).ok_or_else(|| {
            bad_record(record, "has a minimum, maximum or default that is no plain decimal number (write 1000, not 10*100 or 1000u)")
        })?;
    }
    let [min, max, default] = numbers;
    if min > max || (kind != "rate" && !(min..=max).contains(&default)) {
        return Err(bad_record(record, "has a default out of its range"));
    }
    if record.iter().any(|field| field.len() > MAX_FIELD) {
        return Err(bad_record(record, "has a field of more than 240 bytes"));
    }
    Ok(match kind {
        "switch" if max == 1 => Kind::Switch { default: default == 1 },
        "count" => Kind::Count { unit: intern(unit)?, min, max, default },
        "share" => Kind::Share { min, max, default },
        "span" => Kind::Span {
            min: Span::from_nanos(min),
            max: Span::from_nanos(max),
            default: Span::from_nanos(default),
        },
        "rate" => Kind::Rate { min: Rate::from_bytes_per_sec(min), max: Rate::from_bytes_per_sec(max) },
        _ => return Err(bad_record(record, "is a parameter of a kind that this version does not know")),
    })
}

/// The contents of all custom sections `opencc` of a module (WebAssembly core specification, 5.5.2 and 5.5.3).
fn section(module: &[u8]) -> Result<Vec<u8>, Bad> {
    if module.len() > MAX_MODULE {
        return Err(Bad::TooLong { len: module.len(), max: MAX_MODULE });
    }
    if !module.starts_with(b"\0asm\x01\0\0\0") {
        return Err(Bad::NotWasm);
    }
    let (mut at, mut found) = (8, Vec::new());
    while let Some(id) = module.get(at) {
        let (size, start) = leb128(module, at + 1)?;
        let end = start.checked_add(size).filter(|end| *end <= module.len()).ok_or(Bad::Damaged { at })?;
        if *id == 0 {
            let (len, name) = leb128(module, start)?;
            let body = name.checked_add(len).filter(|body| *body <= end).ok_or(Bad::Damaged { at: start })?;
            if &module[name..body] == SECTION.as_bytes() {
                found.extend_from_slice(&module[body..end]);
            }
        }
        at = end;
    }
    if found.is_empty() { Err(Bad::NoManifest) } else { Ok(found) }
}

/// Decodes an unsigned 32-bit number (specification, 5.2.2) and returns its end.
fn leb128(bytes: &[u8], at: usize) -> Result<(usize, usize), Bad> {
    let mut value = 0u64;
    for (i, byte) in bytes.get(at..).unwrap_or_default().iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let value = usize::try_from(value).map_err(|_| Bad::Damaged { at })?;
            return Ok((value, at + i + 1));
        }
    }
    Err(Bad::Damaged { at })
}

// A path attribute, since the fuzz target includes this file as a module of its own.
#[cfg(test)]
#[path = "manifest/tests.rs"]
mod tests;
