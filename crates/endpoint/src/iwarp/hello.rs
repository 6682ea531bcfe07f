//! MPA private data by which two Longhaul ends recognise each other and group streams into connections.
//!
//! ```text
//! request:  | "LHiw" | version 3 | flags | index, 16 bits | count, 16 bits | farewell, 32 bits | connection, 128 bits | the application's ... |
//! reply:    | "LHiw" | version 3 | flags | farewell, 32 bits | the application's ... |
//! ```
//!
//! "Farewell" is the key of a small region (see [`super::conn`]) to which the peer writes why it closes, before it does;
//! 0 for none.
//!
//! Flags: 1, records with CRCs should hold [`SHORT_WRITE`] bytes of a write at most, since this end checks them before it places
//! them; 2 (of a request), the stream is for queue pairs that both applications have created already, so that the server's is asked
//! which; others are 0, and not looked at.
//!
//! The number of the connection is drawn at random by the client. Whoever knows it and speaks from the same address may add
//! streams to the connection while it is being set up, so it is as good a secret as the stream that carries it: under TLS
//! the peers' identities must agree as well.

/// Bytes of a connection's number.
pub const ID: usize = 16;
const MAGIC: [u8; 4] = *b"LHiw";
const VERSION: u8 = 3;
const SHORT_WRITES: u8 = 1;
const FOR_OWN_QP: u8 = 2;
/// Bytes of a write in a record for an end that says so: what was checked is in a processor's first cache of 32 KiB still when it
/// is copied. Records of 64 KiB, which are not, cost such a receiver more, and those of 16 KiB cost the sender (docs/performance.md).
pub const SHORT_WRITE: u32 = 24 << 10;
const REQUEST: usize = MAGIC.len() + 2 + 2 + 2 + 4 + ID;
const REPLY: usize = MAGIC.len() + 2 + 4;

/// The private data of a client's request.
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
    /// This end wants records of writes to be short.
    pub short_writes: bool,
    /// The server's application is to say for which of its queue pairs this is.
    pub for_own_qp: bool,
}

impl Hello {
    /// Private data of a request.
    pub fn put(&self, private: &[u8]) -> Vec<u8> {
        let mut b = Vec::with_capacity(REQUEST + private.len());
        b.extend(MAGIC);
        b.extend([VERSION, flags(self.short_writes) | if self.for_own_qp { FOR_OWN_QP } else { 0 }]);
        b.extend(self.index.to_be_bytes());
        b.extend(self.count.to_be_bytes());
        b.extend(self.farewell.to_be_bytes());
        b.extend(self.id);
        b.extend(private);
        b
    }

    /// Parses a request's private data into ours and the application's part. `None`: another kind of peer, whose
    /// application has it all.
    pub fn parse(b: &[u8]) -> Option<(Hello, &[u8])> {
        let (head, private) = b.split_at_checked(REQUEST)?;
        let (magic, rest) = head.split_at(MAGIC.len());
        let &[VERSION, flags, i1, i2, c1, c2, f1, f2, f3, f4, ref id @ ..] = rest else { return None };
        let hello = Hello {
            id: id.try_into().ok()?,
            index: u16::from_be_bytes([i1, i2]),
            count: u16::from_be_bytes([c1, c2]),
            farewell: u32::from_be_bytes([f1, f2, f3, f4]),
            short_writes: flags & SHORT_WRITES != 0,
            for_own_qp: flags & FOR_OWN_QP != 0,
        };
        (magic == MAGIC && hello.index < hello.count && hello.count <= super::MAX_STREAMS)
            .then_some((hello, private))
    }
}

fn flags(short_writes: bool) -> u8 {
    if short_writes { SHORT_WRITES } else { 0 }
}

/// The private data of a server's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Key of the region for the client's farewell.
    pub farewell: u32,
    /// This end wants records of writes to be short.
    pub short_writes: bool,
}

impl Reply {
    /// Private data of a reply.
    pub fn put(&self) -> Vec<u8> {
        let mut b = MAGIC.to_vec();
        b.extend([VERSION, flags(self.short_writes)]);
        b.extend(self.farewell.to_be_bytes());
        b
    }

    /// What a reply says, and the application's part. `None`: another kind of peer.
    pub fn parse(b: &[u8]) -> Option<(Reply, &[u8])> {
        let (head, private) = b.split_at_checked(REPLY)?;
        let (magic, rest) = head.split_at(MAGIC.len());
        let &[VERSION, flags, f1, f2, f3, f4] = rest else { return None };
        let farewell = u32::from_be_bytes([f1, f2, f3, f4]);
        (magic == MAGIC).then_some((Reply { farewell, short_writes: flags & SHORT_WRITES != 0 }, private))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_round_trips_and_other_data_is_rejected() {
        let h = Hello {
            id: [7; ID],
            index: 3,
            count: 5,
            farewell: 0x0102_0304,
            short_writes: true,
            for_own_qp: true,
        };
        let mut b = h.put(b"more");
        assert_eq!(Hello::parse(&b), Some((h, &b"more"[..])));
        let reply = Reply { farewell: 9, short_writes: true };
        let mut r = reply.put();
        r.extend(b"yes");
        assert_eq!(Reply::parse(&r), Some((reply, &b"yes"[..])));
        // Flags that are not known yet mean nothing.
        (b[MAGIC.len() + 1], r[MAGIC.len() + 1]) = (0xfc, 0xfe);
        assert_eq!(
            Hello::parse(&b),
            Some((Hello { short_writes: false, for_own_qp: false, ..h }, &b"more"[..]))
        );
        assert_eq!(Reply::parse(&r), Some((Reply { short_writes: false, ..reply }, &b"yes"[..])));
        for n in 0..REQUEST {
            assert_eq!(Hello::parse(&b[..n]), None);
        }
        for n in 0..REPLY {
            assert_eq!(Reply::parse(&r[..n]), None);
        }
        // Another program, another version.
        for at in 0..=MAGIC.len() {
            let (mut b, mut r) = (b.clone(), r.clone());
            b[at] ^= 0x40;
            r[at] ^= 0x40;
            assert_eq!((Hello::parse(&b), Reply::parse(&r)), (None, None));
        }
        for (index, count) in [(5, 5), (0, 0), (0, super::super::MAX_STREAMS + 1)] {
            assert_eq!(Hello::parse(&Hello { index, count, ..h }.put(b"")), None);
        }
    }
}
