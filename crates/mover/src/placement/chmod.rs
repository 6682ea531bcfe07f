//! Changes of permissions in the syntax of `rsync --chmod`: `D755,F644,u+w,go-w,Dg+s,+X,g=u`.

use crate::proto::Kind;

/// Most changes of one transfer.
pub const MAX_CHANGES: usize = 64;
/// All permission bits, with set-user-id, set-group-id and sticky.
const ALL: u32 = 0o7777;

/// What a change applies to. Symbolic links have no permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AppliesTo {
    /// Everything.
    #[default]
    All = 0,
    /// Folders (`D`).
    Folders = 1,
    /// All but folders (`F`).
    Files = 2,
}

/// Whose permissions are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// `u`
    User = 0,
    /// `g`
    Group = 1,
    /// `o`
    Other = 2,
}

/// How the bits of a change are combined with those that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// `+`
    Add = 0,
    /// `-`
    Remove = 1,
    /// `=`, and octal numbers.
    Set = 2,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeChange {
    /// What it applies to.
    pub applies_to: AppliesTo,
    /// How.
    pub operation: Operation,
    /// Bits that [`Operation::Set`] clears first.
    pub clear: u32,
    /// The bits; where permissions of a class are copied, those that may be changed.
    pub bits: u32,
    /// Execute bits are given only to folders and to files that have one (`X`).
    pub keep_x: bool,
    /// The permissions of this class stand instead of those of `bits`.
    pub copy_of: Option<Class>,
}

impl ModeChange {
    /// The mode behind it; `had_x`: the file had an execute bit before the first change.
    fn apply(&self, mode: u32, folder: bool, had_x: bool) -> u32 {
        if self.applies_to == AppliesTo::Folders && !folder || self.applies_to == AppliesTo::Files && folder {
            return mode;
        }
        let bits = match self.copy_of {
            Some(class) => {
                let of_class = mode >> (6 - 3 * class as u32) & 7;
                self.bits & (of_class * 0o111)
            }
            None if self.keep_x && !had_x && !folder => self.bits & !0o111,
            None => self.bits,
        };
        match self.operation {
            Operation::Add => mode | bits,
            Operation::Remove => mode & !bits,
            Operation::Set => mode & !self.clear | bits,
        }
    }
}

/// Applies changes in their order to the mode of something.
pub fn apply(changes: &[ModeChange], mode: u32, kind: Kind) -> u32 {
    if kind == Kind::Link {
        return mode;
    }
    let had_x = mode & 0o111 != 0;
    changes.iter().fold(mode, |m, c| c.apply(m, kind == Kind::Dir, had_x)) & ALL
}

/// Reads changes that commas part. `umask` takes bits away from those that name no class (`+w`).
///
/// # Errors
/// The first that is none, and what to write instead.
pub fn parse(text: &str, umask: u32) -> Result<Vec<ModeChange>, String> {
    text.split(',')
        .map(|item| {
            parse_one(item, umask & 0o777).ok_or_else(|| {
                format!("{item:?} is no change of permissions; try D755, F644, u+w, go-w, Dg+s or g=u")
            })
        })
        .collect()
}

fn parse_one(item: &str, umask: u32) -> Option<ModeChange> {
    // As rsync reads it, the letter may stand among those of the classes, too (`gD+s`).
    let head = item.find(['+', '-', '=']).unwrap_or(1.min(item.len()));
    let letter = item.get(..head)?.find(['D', 'F']);
    let (applies_to, rest) = match letter {
        Some(at) => {
            let of = if item.as_bytes()[at] == b'D' { AppliesTo::Folders } else { AppliesTo::Files };
            (of, [&item[..at], &item[at + 1..]].concat())
        }
        None => (AppliesTo::All, item.to_owned()),
    };
    let change = |operation, clear, bits| ModeChange {
        applies_to,
        operation,
        clear,
        bits,
        keep_x: false,
        copy_of: None,
    };
    if !rest.is_empty() && rest.bytes().all(|b| matches!(b, b'0'..=b'7')) {
        let mode = u32::from_str_radix(&rest, 8).ok().filter(|m| *m <= ALL)?;
        return Some(change(Operation::Set, ALL, mode));
    }
    let at = rest.find(['+', '-', '='])?;
    // Bits of one permission for each class, and the special bits of the classes.
    let (mut classes, mut special) = (0, 0);
    for b in rest[..at].bytes() {
        match b {
            b'u' => (classes, special) = (classes | 0o100, special | 0o4000),
            b'g' => (classes, special) = (classes | 0o010, special | 0o2000),
            b'o' => classes |= 0o001,
            b'a' => (classes, special) = (classes | 0o111, special | 0o6000),
            _ => return None,
        }
    }
    let operation = match rest.as_bytes()[at] {
        b'+' => Operation::Add,
        b'-' => Operation::Remove,
        _ => Operation::Set,
    };
    let masked = if classes == 0 { umask } else { 0 };
    let classes = if classes == 0 { 0o111 } else { classes };
    let what = &rest[at + 1..];
    if let Some(class) = class_of(what) {
        // As GNU chmod does, a copy clears the special bit of each class that it is for.
        let of_classes = [(0o100, 0o4000), (0o010, 0o2000), (0o001, 0o1000)];
        let special: u32 = of_classes.iter().filter(|(c, _)| classes & c != 0).map(|(_, bit)| bit).sum();
        let bits = (classes * 7) & !masked;
        return Some(ModeChange { copy_of: Some(class), ..change(operation, (classes * 7) | special, bits) });
    }
    let (mut permission, mut top, mut keep_x) = (0, 0, false);
    for b in what.bytes() {
        match b {
            b'r' => permission |= 4,
            b'w' => permission |= 2,
            b'x' => permission |= 1,
            b'X' => (permission, keep_x) = (permission | 1, true),
            b's' => top |= if special == 0 { 0o4000 } else { special },
            b't' => top |= 0o1000,
            _ => return None,
        }
    }
    let bits = ((classes * permission) & !masked) | top;
    let cleared = (classes * 7) | if top == 0 { 0 } else { special };
    Some(ModeChange { keep_x, ..change(operation, cleared, bits) })
}

/// The class whose permissions are copied.
fn class_of(what: &str) -> Option<Class> {
    match what {
        "u" => Some(Class::User),
        "g" => Some(Class::Group),
        "o" => Some(Class::Other),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_change_as_the_manual_of_rsync_says() {
        let of = |text: &str, mode, kind| apply(&parse(text, 0o022).unwrap(), mode, kind);
        let (file, folder) = (Kind::File, Kind::Dir);
        assert_eq!(of("D755,F644", 0o600, file), 0o644);
        assert_eq!(of("D755,F644", 0o700, folder), 0o755);
        assert_eq!(of("u+w,go-w", 0o466, file), 0o644);
        assert_eq!(of("Dg+s,ug+w,Fo-w,+X", 0o2, folder), 0o2333);
        assert_eq!(of("Dg+s,ug+w,Fo-w,+X", 0o446, file), 0o664);
        assert_eq!(of("Dg+s,ug+w,Fo-w,+X", 0o546, file), 0o775);
        assert_eq!((of("gD+s", 0o755, folder), of("gD+s", 0o755, file)), (0o2755, 0o755));
        // Without a class the umask counts.
        assert_eq!(of("+w", 0o444, file), 0o644);
        assert_eq!(of("a+w", 0o444, file), 0o666);
        assert_eq!(of("ugo=rwX", 0o100, file), 0o777);
        assert_eq!(of("g=u,o=", 0o750, file), 0o770);
        assert_eq!(of("777", 0o777, Kind::Link), 0o777);
        for bad in [
            "", "u", "D", "u+q", "8", "77777", "u+r-w", "u=gr", ",u+w", "u+w,", "Fq+r", "DF755", "DFu+r",
            "gD", "é",
        ] {
            assert!(parse(bad, 0).is_err(), "{bad}");
        }
    }
}
