//! A parser of BTF, the BPF type format: structures, and the offsets of their members.
//!
//! Source: the kernel's Documentation/bpf/btf.rst. Neither the running kernel's types nor those of an
//! object are trusted: every access is checked and every walk is bounded.

use super::Error;

const MAGIC: u16 = 0xeb9f;
/// Bytes of a type's fixed part: name, kind and count, size or type.
const FIXED: usize = 12;
/// Types that a file may have; kernels have some 150,000.
const MAX_TYPES: usize = 4_000_000;
/// Longest chain of typedefs, pointers and qualifiers that is followed; and deepest nesting of anonymous members.
const MAX_CHAIN: usize = 32;

/// What a type is. The numbers are the format's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Int = 1,
    Ptr,
    Array,
    Struct,
    Union,
    Enum,
    Fwd,
    Typedef,
    Volatile,
    Const,
    Restrict,
    Func,
    FuncProto,
    Var,
    Datasec,
    Float,
    DeclTag,
    TypeTag,
    Enum64,
}

impl Kind {
    fn from_number(n: u32) -> Option<Kind> {
        use Kind::*;
        const ALL: [Kind; 19] = [
            Int, Ptr, Array, Struct, Union, Enum, Fwd, Typedef, Volatile, Const, Restrict, Func, FuncProto,
            Var, Datasec, Float, DeclTag, TypeTag, Enum64,
        ];
        ALL.get((n as usize).checked_sub(1)?).copied()
    }

    /// Bytes behind the fixed part, for `count` members.
    fn rest(self, count: usize) -> usize {
        match self {
            Kind::Int | Kind::Var | Kind::DeclTag => 4,
            Kind::Array => 12,
            Kind::Struct | Kind::Union | Kind::Datasec | Kind::Enum64 => 12 * count,
            Kind::Enum | Kind::FuncProto => 8 * count,
            _ => 0,
        }
    }
}

/// A type by its number; 0 is `void`.
pub(crate) type Id = u32;

/// A member of a structure or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member<'a> {
    /// Empty of anonymous ones.
    pub(crate) name: &'a str,
    pub(crate) of: Id,
    /// Bits from the structure's start.
    pub(crate) bits: u32,
    /// Bits of a bit field, else 0.
    pub(crate) width: u32,
}

/// All types of one file.
pub(crate) struct Btf {
    data: Vec<u8>,
    /// Where each type begins; the first is number 1.
    types: Vec<usize>,
    strings: std::ops::Range<usize>,
}

/// The four bytes at `at`, as a number of this machine.
pub(crate) fn word(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

impl Btf {
    /// Reads a `.BTF` section.
    pub(crate) fn parse(data: Vec<u8>) -> Result<Btf, Error> {
        let bad = |what: &str| Error::BadObject(format!("its type information (BTF) {what}"));
        let magic = data.get(..2).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
        if magic != Some(MAGIC) {
            return Err(bad("does not begin as it should, or is of the other byte order"));
        }
        let at = |n: usize| word(&data, n).map(|w| w as usize).ok_or_else(|| bad("ends early"));
        let (header, type_off, type_len, str_off, str_len) = (at(4)?, at(8)?, at(12)?, at(16)?, at(20)?);
        let part = |off: usize, len: usize| {
            let from = header.checked_add(off)?;
            let to = from.checked_add(len)?;
            (to <= data.len()).then_some(from..to)
        };
        let (Some(types), Some(strings)) = (part(type_off, type_len), part(str_off, str_len)) else {
            return Err(bad("ends early"));
        };
        let mut starts = Vec::new();
        let mut next = types.start;
        while next < types.end {
            let info = word(&data, next + 4).ok_or_else(|| bad("ends early"))?;
            let kind = Kind::from_number(info >> 24 & 0x1f)
                .ok_or_else(|| bad("has a kind of type that is unknown"))?;
            starts.push(next);
            next += FIXED + kind.rest(info as usize & 0xffff);
            if starts.len() > MAX_TYPES {
                return Err(bad("has too many types"));
            }
        }
        if next != types.end {
            return Err(bad("ends early"));
        }
        Ok(Btf { data, types: starts, strings })
    }

    /// The string at this offset; empty when it is none.
    pub(crate) fn string(&self, offset: u32) -> &str {
        let all = self.data.get(self.strings.clone()).unwrap_or_default();
        let text = all.get(offset as usize..).unwrap_or_default();
        let len = text.iter().position(|b| *b == 0).unwrap_or(0);
        std::str::from_utf8(&text[..len]).unwrap_or_default()
    }

    fn start(&self, id: Id) -> Option<usize> {
        self.types.get((id as usize).checked_sub(1)?).copied()
    }
    fn info(&self, id: Id) -> Option<u32> {
        word(&self.data, self.start(id)? + 4)
    }
    fn count(&self, id: Id) -> usize {
        self.info(id).map_or(0, |info| info as usize & 0xffff)
    }
    fn extra(&self, id: Id, n: usize) -> Option<u32> {
        word(&self.data, self.start(id)? + FIXED + 4 * n)
    }

    /// What it is; none of `void` and of numbers that are no type's.
    pub(crate) fn kind(&self, id: Id) -> Option<Kind> {
        Kind::from_number(self.info(id)? >> 24 & 0x1f)
    }
    /// Its name; empty of anonymous types.
    pub(crate) fn name(&self, id: Id) -> &str {
        self.start(id).and_then(|at| word(&self.data, at)).map_or("", |offset| self.string(offset))
    }
    /// The last word of the fixed part: the size, or the type that this one refers to.
    pub(crate) fn size_or_type(&self, id: Id) -> u32 {
        self.start(id).and_then(|at| word(&self.data, at + 8)).unwrap_or(0)
    }

    /// The type behind typedefs and qualifiers.
    pub(crate) fn bare(&self, mut id: Id) -> Id {
        for _ in 0..MAX_CHAIN {
            match self.kind(id) {
                Some(Kind::Typedef | Kind::Volatile | Kind::Const | Kind::Restrict | Kind::TypeTag) => {
                    id = self.size_or_type(id);
                }
                _ => break,
            }
        }
        id
    }

    /// Its size in bytes.
    pub(crate) fn size(&self, id: Id) -> Option<u64> {
        let mut of = self.bare(id);
        let mut times = 1u64;
        for _ in 0..MAX_CHAIN {
            match self.kind(of)? {
                Kind::Ptr => return times.checked_mul(8),
                Kind::Array => {
                    times = times.checked_mul(u64::from(self.extra(of, 2)?))?;
                    of = self.bare(self.extra(of, 0)?);
                }
                Kind::Int
                | Kind::Struct
                | Kind::Union
                | Kind::Enum
                | Kind::Enum64
                | Kind::Float
                | Kind::Datasec => {
                    return times.checked_mul(u64::from(self.size_or_type(of)));
                }
                _ => return None,
            }
        }
        None
    }

    /// Of an array: the type of its elements, and how many there are.
    pub(crate) fn array(&self, id: Id) -> Option<(Id, u32)> {
        (self.kind(id)? == Kind::Array).then_some(())?;
        Some((self.extra(id, 0)?, self.extra(id, 2)?))
    }

    /// Whether it is an integer with a sign.
    pub(crate) fn is_signed(&self, id: Id) -> bool {
        self.kind(id) == Some(Kind::Int) && self.extra(id, 0).is_some_and(|n| n >> 24 & 1 == 1)
    }

    /// The members of a structure or union, in order.
    pub(crate) fn members(&self, id: Id) -> impl Iterator<Item = Member<'_>> {
        let composite = matches!(self.kind(id), Some(Kind::Struct | Kind::Union));
        let count = if composite { self.count(id) } else { 0 };
        // With this flag an offset has the width of the bit field in its highest byte.
        let packed = self.info(id).is_some_and(|info| info >> 31 == 1);
        (0..count).filter_map(move |n| {
            let (name, of, at) =
                (self.extra(id, 3 * n)?, self.extra(id, 3 * n + 1)?, self.extra(id, 3 * n + 2)?);
            let (bits, width) = if packed { (at & 0xff_ffff, at >> 24) } else { (at, 0) };
            Some(Member { name: self.string(name), of, bits, width })
        })
    }

    /// The member of this name, those of anonymous members included, and its distance in bits from the structure's start.
    pub(crate) fn find_member(&self, id: Id, name: &str) -> Option<Member<'_>> {
        self.member_within(self.bare(id), name, MAX_CHAIN)
    }
    fn member_within(&self, id: Id, name: &str, depth: usize) -> Option<Member<'_>> {
        let depth = depth.checked_sub(1)?;
        self.members(id).find_map(|m| {
            if m.name == name {
                return Some(m);
            }
            let inner = if m.name.is_empty() {
                self.member_within(self.bare(m.of), name, depth)?
            } else {
                return None;
            };
            Some(Member { bits: m.bits.checked_add(inner.bits)?, ..inner })
        })
    }

    /// The variables of a section: each one's type and where it begins.
    pub(crate) fn section(&self, name: &str) -> Vec<(Id, u32)> {
        let Some(id) = self.find(name, Kind::Datasec) else { return Vec::new() };
        (0..self.count(id))
            .filter_map(|n| Some((self.extra(id, 3 * n)?, self.extra(id, 3 * n + 1)?)))
            .collect()
    }

    /// How many arguments a function takes, given a pointer to its type.
    pub(crate) fn arguments(&self, pointer: Id) -> Option<usize> {
        let id = self.bare(pointer);
        let proto = if self.kind(id)? == Kind::Ptr { self.bare(self.size_or_type(id)) } else { id };
        (self.kind(proto)? == Kind::FuncProto).then(|| self.count(proto))
    }

    /// All type numbers.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        1..=u32::try_from(self.types.len()).unwrap_or(u32::MAX)
    }

    /// The first type of this name and kind.
    pub(crate) fn find(&self, name: &str, kind: Kind) -> Option<Id> {
        self.ids().find(|id| self.kind(*id) == Some(kind) && self.name(*id) == name)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Puts types together.
    #[derive(Default)]
    pub(crate) struct Types {
        words: Vec<u32>,
        count: u32,
        strings: Vec<u8>,
    }

    pub(crate) fn member(name: &str, of: Id, bits: u32) -> (&str, Id, u32) {
        (name, of, bits)
    }

    impl Types {
        fn name(&mut self, text: &str) -> u32 {
            if self.strings.is_empty() || text.is_empty() {
                self.strings.resize(self.strings.len().max(1), 0);
            }
            if text.is_empty() {
                return 0;
            }
            let at = self.strings.len();
            self.strings.extend(text.bytes().chain([0]));
            at as u32
        }
        fn add(&mut self, name: &str, kind: Kind, count: usize, size: u32, rest: &[u32]) -> Id {
            let name = self.name(name);
            self.words.extend([name, (kind as u32) << 24 | count as u32, size]);
            self.words.extend(rest);
            self.count += 1;
            self.count
        }
        pub(crate) fn int(&mut self, name: &str, size: u32) -> Id {
            self.add(name, Kind::Int, 0, size, &[size * 8])
        }
        pub(crate) fn array(&mut self, of: Id, count: u32) -> Id {
            self.add("", Kind::Array, 0, 0, &[of, of, count])
        }
        pub(crate) fn structure(&mut self, name: &str, size: u32, members: &[(&str, Id, u32)]) -> Id {
            let rest: Vec<u32> =
                members.iter().flat_map(|(n, of, bits)| [self.name(n), *of, *bits]).collect();
            self.add(name, Kind::Struct, members.len(), size, &rest)
        }
        pub(crate) fn bytes(&self) -> Vec<u8> {
            let len = self.words.len() as u32 * 4;
            let header = [u32::from(MAGIC) | 1 << 16, 24, 0, len, len, self.strings.len() as u32];
            let words = header.iter().chain(&self.words).flat_map(|w| w.to_ne_bytes());
            words.chain(self.strings.iter().copied()).collect()
        }
        pub(crate) fn btf(&self) -> Btf {
            Btf::parse(self.bytes()).expect("sound types")
        }
    }

    #[test]
    fn sizes_and_members_are_read() {
        let mut t = Types::default();
        let int = t.int("int", 4);
        let array = t.array(int, 5);
        let s = t.structure("s", 24, &[member("a", int, 0), member("b", array, 32)]);
        let btf = t.btf();
        assert_eq!(
            (btf.size(array), btf.size(s), btf.size(0), btf.size(99)),
            (Some(20), Some(24), None, None)
        );
        assert_eq!(btf.find("s", Kind::Struct), Some(s));
        assert_eq!(btf.find_member(s, "b").map(|m| (m.of, m.bits)), Some((array, 32)));
        assert_eq!(btf.find_member(s, "c"), None);
    }

    #[test]
    fn recursive_structure_lookup_terminates() {
        let mut t = Types::default();
        let s = t.structure("s", 8, &[member("", 1, 0)]);
        let btf = t.btf();
        assert_eq!(btf.find_member(s, "c"), None);
        assert_eq!(btf.size(s), Some(8));
        let mut t = Types::default();
        let array = t.array(1, u32::MAX);
        assert_eq!(t.btf().size(array), None);
    }

    #[test]
    fn truncated_or_mutated_btf_causes_no_panic() {
        let mut t = Types::default();
        let int = t.int("int", 4);
        let array = t.array(int, 5);
        t.structure("s", 24, &[member("a", int, 0), member("b", array, 32)]);
        let whole = t.bytes();
        for len in 0..whole.len() {
            assert!(Btf::parse(whole[..len].to_vec()).is_err(), "{len} bytes");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                let Ok(btf) = Btf::parse(changed) else { continue };
                for id in btf.ids() {
                    let _ = (btf.size(id), btf.find_member(id, "b"), btf.arguments(id), btf.name(id));
                }
            }
        }
    }
}
