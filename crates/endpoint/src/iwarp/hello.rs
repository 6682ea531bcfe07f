//! Private data of the start-up by which two ends of Longhaul know each other, and which streams are one connection.
//!
//! ```text
//! request:  | "LHiw" | version 2 | 0 | index, 16 bits | count, 16 bits | farewell, 32 bits | connection, 128 bits | the application's ... |
//! reply:    | "LHiw" | version 2 | farewell, 32 bits | the application's ... |
//! ```
//!
//! "Farewell" is the key of a small region (see [`super::bundle`]) to which the peer writes why it closes, before it does;
//! 0 for none.
//!
//! The number of the connection is drawn at random by the client. Whoever knows it and speaks from the same address may add
//! streams to the connection while it is being set up, so it is as good a secret as the stream that carries it: under TLS
//! the peers' identities must agree as well.

/// Bytes of a connection's number.
pub const ID: usize = 16;
const MAGIC: [u8; 4] = *b"LHiw";
const VERSION: u8 = 2;
const REQUEST: usize = MAGIC.len() + 2 + 2 + 2 + 4 + ID;
const REPLY: usize = MAGIC.len() + 1 + 4;

/// What a client's request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The connection.
    pub id: [u8; ID],
    /// Which of its streams this is.
    pub index: u16,
    /// How many there are.
    pub count: u16,
    /// Key of the region for the server's farewell.
    pub farewell: u32,
}

impl Hello {
    /// Private data of a request.
    pub fn put(&self, private: &[u8]) -> Vec<u8> {
        let mut b = Vec::with_capacity(REQUEST + private.len());
        b.extend(MAGIC);
        b.extend([VERSION, 0]);
        b.extend(self.index.to_be_bytes());
        b.extend(self.count.to_be_bytes());
        b.extend(self.farewell.to_be_bytes());
        b.extend(self.id);
        b.extend(private);
        b
    }

    /// What a request says, and the application's part of it. `None`: another kind of peer, whose application has it all.
    pub fn parse(b: &[u8]) -> Option<(Hello, &[u8])> {
        let (head, private) = b.split_at_checked(REQUEST)?;
        let (magic, rest) = head.split_at(MAGIC.len());
        let &[VERSION, _, i1, i2, c1, c2, f1, f2, f3, f4, ref id @ ..] = rest else { return None };
        let hello = Hello {
            id: id.try_into().ok()?,
            index: u16::from_be_bytes([i1, i2]),
            count: u16::from_be_bytes([c1, c2]),
            farewell: u32::from_be_bytes([f1, f2, f3, f4]),
        };
        (magic == MAGIC && hello.index < hello.count && hello.count <= super::MAX_STREAMS)
            .then_some((hello, private))
    }
}

/// Private data of a reply.
pub fn reply(farewell: u32, private: &[u8]) -> Vec<u8> {
    let mut b = MAGIC.to_vec();
    b.push(VERSION);
    b.extend(farewell.to_be_bytes());
    b.extend(private);
    b
}

/// What a reply says: the key for this end's farewell, and the application's part. `None`: another kind of peer.
pub fn parse_reply(b: &[u8]) -> Option<(u32, &[u8])> {
    let (head, private) = b.split_at_checked(REPLY)?;
    let (magic, rest) = head.split_at(MAGIC.len());
    let &[VERSION, f1, f2, f3, f4] = rest else { return None };
    (magic == MAGIC).then_some((u32::from_be_bytes([f1, f2, f3, f4]), private))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let h = Hello { id: [7; ID], index: 3, count: 5, farewell: 0x0102_0304 };
        let b = h.put(b"more");
        assert_eq!(Hello::parse(&b), Some((h, &b"more"[..])));
        let r = reply(9, b"yes");
        assert_eq!(parse_reply(&r), Some((9, &b"yes"[..])));
        for n in 0..REQUEST {
            assert_eq!(Hello::parse(&b[..n]), None);
        }
        for n in 0..REPLY {
            assert_eq!(parse_reply(&r[..n]), None);
        }
        // Another program, another version.
        for at in 0..=MAGIC.len() {
            let (mut b, mut r) = (b.clone(), r.clone());
            b[at] ^= 0x40;
            r[at] ^= 0x40;
            assert_eq!((Hello::parse(&b), parse_reply(&r)), (None, None));
        }
        for (index, count) in [(5, 5), (0, 0), (0, super::super::MAX_STREAMS + 1)] {
            assert_eq!(Hello::parse(&Hello { index, count, ..h }.put(b"")), None);
        }
    }
}
