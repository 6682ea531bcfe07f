//! Translates patterns of program names to comparisons of the kernel's 16-byte command name (`comm`).

/// Bytes of such a name, the zero byte at its end included (`TASK_COMM_LEN`).
pub(crate) const ROOM: usize = 16;
/// Most comparisons that a pattern may take.
const MAX_WAYS: usize = 128;

/// One way to fit: the bytes under the mask are these, and those named are not zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameMatch {
    pub(crate) mask: [u8; ROOM],
    pub(crate) value: [u8; ROOM],
    pub(crate) some: Vec<usize>,
}

impl NameMatch {
    /// The same with a piece of the pattern at this place; the last byte is no part of a name.
    fn with(&self, piece: &str, at: usize) -> Option<NameMatch> {
        let mut way = self.clone();
        for (i, byte) in piece.bytes().enumerate().map(|(i, b)| (at + i, b)) {
            if i + 1 >= ROOM {
                return None;
            }
            if byte == b'?' {
                way.some.push(i);
            } else {
                (way.mask[i], way.value[i]) = (0xff, byte);
            }
        }
        Some(way)
    }

    /// The same, where the name ends at this place.
    fn ending(mut self, at: usize) -> NameMatch {
        (self.mask[at], self.value[at]) = (0xff, 0);
        self
    }
}

/// All ways in which a name can fit the pattern: `*` stands for any bytes, `?` for one. `None` where they are too many, or
/// a name would have to be longer than the kernel keeps.
pub(crate) fn ways(pattern: &str) -> Option<Vec<NameMatch>> {
    let pieces: Vec<&str> = pattern.split('*').collect();
    // Each with the place behind what was laid already.
    let mut open = vec![(NameMatch::default(), 0)];
    for (n, piece) in pieces.iter().enumerate() {
        let (first, last) = (n == 0, n + 1 == pieces.len());
        let mut next = Vec::new();
        for (way, from) in &open {
            if last && piece.is_empty() && !first {
                next.push((way.clone(), *from));
                continue;
            }
            let to = if first { *from } else { ROOM - 1 };
            for at in *from..=to {
                let Some(way) = way.with(piece, at) else { break };
                let end = at + piece.len();
                next.push((if last { way.ending(end) } else { way }, end));
                if next.len() > MAX_WAYS {
                    return None;
                }
                // Two stars are as one.
                if piece.is_empty() && !last {
                    break;
                }
            }
        }
        open = next;
    }
    (!open.is_empty()).then(|| open.into_iter().map(|(way, _)| way).collect())
}
