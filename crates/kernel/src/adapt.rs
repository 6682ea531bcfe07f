//! CO-RE relocations ("compile once, run everywhere"): field offsets in a program are replaced by those of the running kernel.
//!
//! The compiler records the field of each access in its own types: a type number and a path of member numbers ("0:2:1":
//! element 0 of the pointer's target, its third member, and that member's second). The names along that path are then
//! looked up in the kernel's types. Source: the kernel's Documentation/bpf/btf.rst, "BPF CO-RE Relocations", and llvm's
//! BPFCORE.h for the kinds.

use super::Error;
use super::btf::{Btf, Id};
use super::object::{Adaptation, LOAD_WIDE};
use super::sys::Insn;
use std::collections::BTreeMap;

/// Longest path to a field.
const MAX_PATH: usize = 16;

const BYTE_OFFSET: u32 = 0;
const BYTE_SIZE: u32 = 1;
const EXISTS: u32 = 2;
const SIGNED: u32 = 3;
const SHIFT_LEFT: u32 = 4;
const SHIFT_RIGHT: u32 = 5;
const TYPE_EXISTS: u32 = 8;
const TYPE_SIZE: u32 = 9;

/// A field of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    of: Id,
    /// From the start of the outermost type.
    bits: u64,
    /// Of a bit field, else 0.
    width: u32,
}

/// A step of a path, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Element(u64),
}

/// A type's name without the suffix that tells versions of it apart (`tcp_sock___old`).
fn plain(name: &str) -> &str {
    name.split_once("___").map_or(name, |(name, _)| name)
}

/// Follows a path in the object's own types.
fn resolve_path(types: &Btf, root: Id, path: &str) -> Option<(Vec<Step>, Field)> {
    let mut numbers = path.split(':').map(str::parse::<u64>);
    let mut of = types.bare(root);
    let first = numbers.next()?.ok()?;
    let mut bits = types.size(of)?.checked_mul(8)?.checked_mul(first)?;
    let (mut steps, mut width) = (vec![Step::Element(first)], 0);
    for number in numbers {
        let n = usize::try_from(number.ok()?).ok()?;
        if steps.len() >= MAX_PATH {
            return None;
        }
        if let Some((element, _)) = types.array(of) {
            steps.push(Step::Element(n as u64));
            of = types.bare(element);
            bits = bits.checked_add(types.size(of)?.checked_mul(8)?.checked_mul(n as u64)?)?;
            continue;
        }
        let member = types.members(of).nth(n)?;
        if !member.name.is_empty() {
            steps.push(Step::Member(member.name.to_owned()));
        }
        (of, width) = (types.bare(member.of), member.width);
        bits = bits.checked_add(u64::from(member.bits))?;
    }
    Some((steps, Field { of, bits, width }))
}

/// Follows names in the kernel's types.
fn lookup(kernel: &Btf, root: Id, steps: &[Step]) -> Option<Field> {
    let mut field = Field { of: kernel.bare(root), bits: 0, width: 0 };
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Element(number) => {
                if n > 0 {
                    field.of = kernel.bare(kernel.array(field.of)?.0);
                }
                let size = kernel.size(field.of)?.checked_mul(8)?;
                field.bits = field.bits.checked_add(size.checked_mul(*number)?)?;
            }
            Step::Member(name) => {
                let member = kernel.find_member(field.of, name)?;
                let bits = field.bits.checked_add(u64::from(member.bits))?;
                field = Field { of: kernel.bare(member.of), bits, width: member.width };
            }
        }
    }
    Some(field)
}

/// Where a field is read from, in bytes: the start and the length; for bit fields of the unit around it.
fn unit(types: &Btf, f: Field) -> Option<(u64, u64)> {
    let mut size = types.size(f.of)?;
    if f.width == 0 {
        return Some((f.bits / 8, size));
    }
    let end = f.bits.checked_add(u64::from(f.width))?.div_ceil(8);
    loop {
        let start = (f.bits / 8).checked_div(size)?.checked_mul(size)?;
        if end <= start.checked_add(size)? {
            return Some((start, size));
        }
        size = size.checked_mul(2).filter(|s| *s <= 8)?;
    }
}

fn value(kind: u32, types: &Btf, f: Field) -> Option<u64> {
    let (start, size) = unit(types, f)?;
    let width = if f.width == 0 { size.checked_mul(8)? } else { u64::from(f.width) };
    Some(match kind {
        BYTE_OFFSET => start,
        BYTE_SIZE => size,
        EXISTS => 1,
        SIGNED => u64::from(types.is_signed(f.of)),
        // The machine's bytes are in little-endian order: bits count from the unit's lowest.
        SHIFT_LEFT => 64u64.checked_sub(f.bits.checked_sub(start.checked_mul(8)?)?.checked_add(width)?)?,
        SHIFT_RIGHT => 64u64.checked_sub(width)?,
        _ => return None,
    })
}

/// Adapts a function's instructions.
///
/// # Errors
/// Names the field or type that the kernel does not have.
pub(crate) fn adapt(
    code: &mut [Insn],
    wanted: &[Adaptation],
    object: &Btf,
    kernel: &Btf,
) -> Result<(), Error> {
    // The kernel's types are many, and those that a function uses few.
    let mut known = BTreeMap::new();
    for a in wanted {
        let name = plain(object.name(object.bare(a.of))).to_owned();
        let composite = object.kind(object.bare(a.of));
        let same = |id: &Id| kernel.kind(*id) == composite && plain(kernel.name(*id)) == name;
        let found = *known.entry(a.of).or_insert_with(|| kernel.ids().find(same));
        let unknown =
            || Error::BadObject(format!("an access to {name} is described in a way that is not known here"));
        let (new, access) = match a.kind {
            TYPE_EXISTS => (u64::from(found.is_some()), None),
            TYPE_SIZE => (found.and_then(|id| kernel.size(id)).unwrap_or(0), None),
            BYTE_OFFSET..=SHIFT_RIGHT => {
                let (steps, own) = resolve_path(object, a.of, &a.path).ok_or_else(unknown)?;
                let theirs = found.and_then(|id| lookup(kernel, id, &steps));
                match theirs {
                    None if a.kind == EXISTS => (0, None),
                    // Unreachable code may name what is not there; the rest ends here (libbpf's way as well).
                    None => {
                        poison(code, a.insn).ok_or_else(unknown)?;
                        continue;
                    }
                    Some(f) => {
                        let new = value(a.kind, kernel, f).ok_or_else(unknown)?;
                        (new, Some((size_of(object, own), size_of(kernel, f))))
                    }
                }
            }
            _ => return Err(unknown()),
        };
        patch(code, a.insn, new, access).ok_or_else(unknown)?;
    }
    Ok(())
}

fn size_of(types: &Btf, f: Field) -> Option<u64> {
    unit(types, f).map(|(_, size)| size)
}

/// An instruction that the verifier refuses if it can be reached: a call of a function with this number, which says why.
const MISSING_FIELD_CALL: i32 = 0x0bad_f1e1;

fn poison(code: &mut [Insn], at: usize) -> Option<()> {
    let wide = code.get(at)?.code == LOAD_WIDE;
    for n in 0..=usize::from(wide) {
        *code.get_mut(at + n)? = Insn { code: 0x85, regs: 0, off: 0, imm: MISSING_FIELD_CALL };
    }
    Some(())
}

/// Whether the verifier's words mean a field that this kernel does not have.
pub(crate) fn is_missing_field(log: &str) -> bool {
    log.contains(&format!("#{MISSING_FIELD_CALL}"))
}

/// Writes the value where the instruction has its own: an immediate, or the offset of a load or store; then with the
/// size of the kernel's field, if it has another one.
fn patch(code: &mut [Insn], at: usize, new: u64, access: Option<(Option<u64>, Option<u64>)>) -> Option<()> {
    const WIDTHS: [(u64, u8); 4] = [(1, 0x10), (2, 0x08), (4, 0x00), (8, 0x18)];
    let insn = code.get_mut(at)?;
    match insn.code & 7 {
        // Arithmetic on an immediate.
        4 | 7 => insn.imm = i32::try_from(new).ok()?,
        0 if insn.code == LOAD_WIDE => {
            insn.imm = new as u32 as i32;
            code.get_mut(at + 1)?.imm = (new >> 32) as i32;
        }
        class @ 1..=3 => {
            insn.off = i16::try_from(new).ok()?;
            if let Some((Some(own), Some(theirs))) = access.filter(|(own, theirs)| own != theirs) {
                // Only what is read grows or shrinks with the kernel's field, and only plain numbers.
                let (_, bits) = WIDTHS.iter().find(|(size, _)| *size == theirs).filter(|_| class == 1)?;
                if WIDTHS.iter().any(|(size, bits)| *size == own && insn.code & 0x18 == *bits) {
                    insn.code = insn.code & !0x18 | bits;
                }
            }
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btf::tests::{Types, member};

    /// The object's structure has other members in another order; its access is to `b.c[1]`, a word of 4 bytes.
    fn object() -> Btf {
        let mut t = Types::default();
        let int = t.int("unsigned int", 4);
        let array = t.array(int, 3);
        let inner = t.structure("inner", 12, &[member("c", array, 0)]);
        t.structure("outer___mine", 16, &[member("a", int, 0), member("b", inner, 32)]);
        t.btf()
    }
    fn kernel() -> Btf {
        let mut t = Types::default();
        let int = t.int("unsigned int", 4);
        let long = t.int("unsigned long", 8);
        let array = t.array(long, 3);
        let inner = t.structure("", 32, &[member("x", int, 0), member("c", array, 64)]);
        let hidden = t.structure("", 40, &[member("y", long, 0), member("b", inner, 64)]);
        t.structure("outer", 48, &[member("z", long, 0), member("", hidden, 64)]);
        t.btf()
    }
    fn wanted(path: &str, kind: u32) -> [Adaptation; 1] {
        [Adaptation { insn: 0, of: 4, path: path.into(), kind }]
    }
    /// r1 = *(u32 *)(r2 + 8)
    const LOAD: Insn = Insn { code: 0x61, regs: 0x21, off: 8, imm: 0 };

    #[test]
    fn load_is_relocated_and_widened() {
        let mut code = [LOAD];
        adapt(&mut code, &wanted("0:1:0:1", BYTE_OFFSET), &object(), &kernel()).expect("it is there");
        // z, y, x and its padding, c[0]: 32 bytes; the kernel's are of 8 bytes each.
        assert_eq!(code, [Insn { code: 0x79, off: 32, ..LOAD }]);
    }

    #[test]
    fn missing_field_is_reported_and_not_read() {
        let mut code = [LOAD];
        adapt(&mut code, &wanted("0:0", BYTE_OFFSET), &object(), &kernel()).expect("it may be unreachable");
        assert_eq!((code[0].code, code[0].imm), (0x85, MISSING_FIELD_CALL));
        let mut code = [Insn { code: 0xb7, regs: 0, off: 0, imm: 1 }];
        adapt(&mut code, &wanted("0:0", EXISTS), &object(), &kernel()).expect("a question");
        assert_eq!(code[0].imm, 0);
        adapt(&mut code, &wanted("0:1", EXISTS), &object(), &kernel()).expect("a question");
        assert_eq!(code[0].imm, 1);
    }

    #[test]
    fn invalid_paths_are_errors() {
        for (path, kind) in [("", 0), ("0:9", 0), ("0:1:0:x", 0), ("0:0", 99), ("0:1:0", BYTE_SIZE)] {
            let mut code = [Insn { code: 0x95, regs: 0, off: 0, imm: 0 }];
            let e = adapt(&mut code, &wanted(path, kind), &object(), &kernel());
            assert!(matches!(e, Err(Error::BadObject(_))), "{path} {kind}: {e:?}");
        }
    }
}
