//! Commands that librdmacm writes: their bytes become values, with the errors of the kernel's `ucma_write`.

use crate::Errno;
use crate::abi::{self, Address, Reader, address};
use crate::message::Parameters;

/// A command as it was written, before anything is known about it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    number: u32,
    /// The command's structure.
    input: &'a [u8],
    /// How many bytes the answer may have.
    pub room: usize,
}

/// What a program is to find at an address of its memory, once the command has been done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Where; 0 for commands without an answer.
    pub at: u64,
    /// What.
    pub bytes: Vec<u8>,
    /// The identifier that was made, which goes again if the program cannot be told of it.
    pub made: Option<u32>,
    /// The membership of a group, likewise.
    pub joined: Option<u32>,
}

/// What a program gives with CONNECT and ACCEPT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// The queue pair.
    pub parameters: Parameters,
    /// Private data.
    pub private: Vec<u8>,
    /// False in an ACCEPT that only says that the own queue pair is ready.
    pub is_valid: bool,
}

/// A command. `at` is where the answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the kernel's structures")]
pub enum Command {
    /// CREATE_ID.
    CreateId { at: u64, uid: u64, space: u16, qp_type: u8 },
    /// DESTROY_ID.
    DestroyId { at: u64, id: u32 },
    /// BIND_IP and BIND.
    Bind { id: u32, to: Address },
    /// RESOLVE_IP and RESOLVE_ADDR.
    ResolveAddress { id: u32, from: Address, to: Address },
    /// RESOLVE_ROUTE.
    ResolveRoute { id: u32 },
    /// QUERY_ROUTE.
    QueryRoute { at: u64, id: u32 },
    /// QUERY: addresses, path or GIDs.
    Query { at: u64, id: u32, option: u32 },
    /// CONNECT.
    Connect { id: u32, with: Connection },
    /// LISTEN.
    Listen { id: u32, backlog: u32 },
    /// ACCEPT.
    Accept { id: u32, uid: u64, with: Connection },
    /// REJECT.
    Reject { id: u32, reason: u8, private: Vec<u8> },
    /// DISCONNECT.
    Disconnect { id: u32 },
    /// INIT_QP_ATTR.
    QueuePairAttributes { at: u64, id: u32, state: u32 },
    /// GET_EVENT.
    GetEvent { at: u64 },
    /// SET_OPTION; the value is in the program's memory.
    SetOption { id: u32, level: u32, name: u32, value: u64, len: u32 },
    /// NOTIFY.
    Notify { id: u32, event: u32 },
    /// JOIN_IP_MCAST and JOIN_MCAST.
    Join { at: u64, uid: u64, id: u32, to: Address, flags: u16 },
    /// LEAVE_MCAST: the identifier is the membership's.
    Leave { at: u64, id: u32 },
    /// MIGRATE_ID: from the channel with this descriptor.
    MigrateId { at: u64, id: u32, descriptor: u32 },
}

const INVALID: Errno = Errno(libc::EINVAL);
const NO_ROOM: Errno = Errno(libc::ENOSPC);
/// Bytes of `struct rdma_ucm_cmd_hdr`.
const HEADER: usize = 8;
/// The highest command's number.
const LAST: u32 = 22;
const GET_OPTION: u32 = 13;

impl<'a> Request<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// EINVAL for what is too short or unknown.
    pub fn new(bytes: &'a [u8]) -> Result<Request<'a>, Errno> {
        let mut r = Reader(bytes);
        let head = (r.u32(), r.u16(), r.u16());
        let (Some(number), Some(len), Some(room)) = head else { return Err(INVALID) };
        let input = bytes.get(HEADER..HEADER + usize::from(len)).ok_or(INVALID)?;
        if number > LAST { Err(INVALID) } else { Ok(Request { number, input, room: room.into() }) }
    }

    /// Reads the command.
    ///
    /// # Errors
    /// EINVAL where its structure is cut off, ENOSPC where its answer does not fit, ENOSYS for GET_OPTION, which the kernel does not
    /// have either.
    pub fn command(&self) -> Result<Command, Errno> {
        if self.number == GET_OPTION {
            return Err(Errno(libc::ENOSYS));
        }
        if self.room < self.least_room() {
            return Err(NO_ROOM);
        }
        self.parse().ok_or(INVALID)?
    }

    /// How long the answer is at least.
    const fn least_room(&self) -> usize {
        match self.number {
            // An identifier, or the number of events.
            0 | 1 | 16..=18 | 22 => 4,
            5 => abi::QUERY_ROUTE - 8,
            11 => abi::QP_ATTR,
            12 => abi::EVENT - 12,
            _ => 0,
        }
    }

    fn parse(&self) -> Option<Result<Command, Errno>> {
        let mut r = Reader(self.input);
        Some(Ok(match self.number {
            0 => {
                let (uid, at) = (r.u64()?, r.u64()?);
                let (space, qp_type) = (r.u16()?, r.u8()?);
                r.bytes(5)?;
                Command::CreateId { at, uid, space, qp_type }
            }
            1 => {
                let (at, id) = at_and_id(&mut r)?;
                r.u32()?;
                Command::DestroyId { at, id }
            }
            2 => {
                r.u64()?;
                let to = address(r.bytes(abi::SOCKADDR)?)?;
                Command::Bind { id: r.u32()?, to }
            }
            3 => {
                let (from, to) = (address(r.bytes(abi::SOCKADDR)?)?, address(r.bytes(abi::SOCKADDR)?)?);
                let id = r.u32()?;
                r.u32()?;
                Command::ResolveAddress { id, from, to }
            }
            4 => Command::ResolveRoute { id: id_and_word(&mut r)?.0 },
            5 => {
                let (at, id) = at_and_id(&mut r)?;
                Command::QueryRoute { at, id }
            }
            6 => {
                let with = connection(&mut r)?;
                Command::Connect { id: id_and_word(&mut r)?.0, with }
            }
            7 => {
                let (id, backlog) = id_and_word(&mut r)?;
                Command::Listen { id, backlog }
            }
            8 => {
                let uid = r.u64()?;
                let with = connection(&mut r)?;
                Command::Accept { id: id_and_word(&mut r)?.0, uid, with }
            }
            9 => reject(&mut r)?,
            10 => Command::Disconnect { id: r.u32()? },
            11 => {
                let (at, id) = at_and_id(&mut r)?;
                Command::QueuePairAttributes { at, id, state: r.u32()? }
            }
            12 => Command::GetEvent { at: r.u64()? },
            _ => return self.parse_later(&mut r),
        }))
    }

    fn parse_later(&self, r: &mut Reader<'_>) -> Option<Result<Command, Errno>> {
        Some(Ok(match self.number {
            14 => {
                let value = r.u64()?;
                let (id, level) = id_and_word(r)?;
                let (name, len) = id_and_word(r)?;
                Command::SetOption { id, level, name, value, len }
            }
            15 => {
                let (id, event) = id_and_word(r)?;
                Command::Notify { id, event }
            }
            16 => {
                let (at, uid) = (r.u64()?, r.u64()?);
                let to = address(r.bytes(abi::SOCKADDR)?)?;
                Command::Join { at, uid, id: r.u32()?, to, flags: 0 }
            }
            17 => {
                let (at, id) = at_and_id(r)?;
                Command::Leave { at, id }
            }
            18 => {
                let (at, id) = at_and_id(r)?;
                Command::MigrateId { at, id, descriptor: r.u32()? }
            }
            19 => {
                let (at, id) = at_and_id(r)?;
                let option = r.u32()?;
                let least = if option == 1 { 8 } else { abi::QUERY_ADDR - 8 };
                if self.room < least {
                    return Some(Err(NO_ROOM));
                }
                Command::Query { at, id, option }
            }
            20 => {
                let id = r.u32()?;
                let len = r.u16()?;
                r.u16()?;
                Command::Bind { id, to: sized(r.bytes(abi::STORAGE)?, len)? }
            }
            21 => {
                let id = id_and_word(r)?.0;
                let (from, to) = (r.u16()?, r.u16()?);
                r.u32()?;
                let (source, target) = (r.bytes(abi::STORAGE)?, r.bytes(abi::STORAGE)?);
                let from = if from == 0 { Address::None } else { sized(source, from)? };
                Command::ResolveAddress { id, from, to: sized(target, to)? }
            }
            22 => {
                let (at, uid) = (r.u64()?, r.u64()?);
                let (id, len, flags) = (r.u32()?, r.u16()?, r.u16()?);
                Command::Join { at, uid, id, to: sized(r.bytes(abi::STORAGE)?, len)?, flags }
            }
            _ => return None,
        }))
    }
}

/// An address whose length must be that of its family.
fn sized(storage: &[u8], len: u16) -> Option<Address> {
    let a = address(storage)?;
    let wanted = match a {
        Address::Ip(a) if a.is_ipv4() => 16,
        Address::Ip(_) => abi::SOCKADDR,
        _ => len.into(),
    };
    (wanted == usize::from(len)).then_some(a)
}

fn at_and_id(r: &mut Reader<'_>) -> Option<(u64, u32)> {
    Some((r.u64()?, r.u32()?))
}

fn id_and_word(r: &mut Reader<'_>) -> Option<(u32, u32)> {
    Some((r.u32()?, r.u32()?))
}

fn connection(r: &mut Reader<'_>) -> Option<Connection> {
    let (number, q_key) = (r.u32()?, r.u32()?);
    let private = r.bytes(abi::PRIVATE_LEN)?;
    let (len, srq) = (r.u8()?, r.u8()?);
    let (responder_resources, initiator_depth, flow_control) = (r.u8()?, r.u8()?, r.u8()?);
    let (retries, rnr_retries) = (r.u8()?, r.u8()?);
    let is_valid = r.u8()? != 0;
    let private = private.get(..len.into())?.to_vec();
    let parameters = Parameters {
        number,
        q_key,
        responder_resources,
        initiator_depth,
        flow_control,
        retries: retries.min(7),
        rnr_retries: rnr_retries.min(7),
        srq,
    };
    Some(Connection { parameters, private, is_valid })
}

fn reject(r: &mut Reader<'_>) -> Option<Command> {
    let id = r.u32()?;
    let (len, reason) = (r.u8()?, r.u8()?);
    r.u16()?;
    let private = r.bytes(abi::PRIVATE_LEN)?.get(..len.into())?.to_vec();
    Some(Command::Reject { id, reason, private })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sizes of the commands' structures by number (`offsetofend(reserved)` of those that grew), and of their answers.
    pub(crate) const SIZES: [(u32, usize, usize); 22] = [
        (0, 24, 4),
        (1, 16, 4),
        (2, 40, 0),
        (3, 64, 0),
        (4, 8, 0),
        (5, 12, 200),
        (6, 280, 0),
        (7, 8, 0),
        (8, 288, 0),
        (9, 264, 0),
        (10, 4, 0),
        (11, 16, 144),
        (12, 8, 324),
        (14, 24, 0),
        (15, 8, 0),
        (16, 48, 4),
        (17, 12, 4),
        (18, 16, 4),
        (19, 16, 272),
        (20, 136, 0),
        (21, 272, 0),
        (22, 152, 4),
    ];

    pub(crate) fn written(number: u32, input: &[u8], room: u16) -> Vec<u8> {
        let mut all = number.to_ne_bytes().to_vec();
        all.extend((input.len() as u16).to_ne_bytes());
        all.extend(room.to_ne_bytes());
        all.extend(input);
        all
    }

    #[test]
    fn every_command_is_read_whole_and_refused_when_a_byte_is_missing() {
        for (number, size, room) in SIZES {
            let input = vec![0; size];
            let read = |input: &[u8], room: usize| {
                let bytes = written(number, input, room as u16);
                Request::new(&bytes).and_then(|r| r.command())
            };
            assert!(read(&input, room).is_ok(), "{number}");
            assert!(
                read(&[&input[..], &[0; 8]].concat(), room + 8).is_ok(),
                "{number}: longer ones are fine"
            );
            assert_eq!(read(&input[1..], room), Err(INVALID), "{number}");
            if room > 0 {
                assert_eq!(read(&input, room - 1), Err(NO_ROOM), "{number}");
            }
        }
    }

    #[test]
    fn headers_that_lie_are_refused() {
        assert_eq!(Request::new(&[0; 7]).err(), Some(INVALID));
        assert_eq!(Request::new(&written(23, &[], 0)).err(), Some(INVALID));
        let mut bytes = written(10, &[1, 0, 0, 0], 0);
        bytes.pop();
        assert_eq!(Request::new(&bytes).err(), Some(INVALID), "less than the header says");
        let get_option = written(13, &[0; 24], 100);
        let read = Request::new(&get_option).and_then(|r| r.command());
        assert_eq!(read, Err(Errno(libc::ENOSYS)));
    }

    #[test]
    fn an_address_must_be_as_long_as_its_family_is() {
        let mut bind = vec![0; 136];
        bind[..4].copy_from_slice(&7u32.to_ne_bytes());
        bind[8..10].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        for (len, good) in [(16u16, true), (15, false), (28, false), (0, false)] {
            bind[4..6].copy_from_slice(&len.to_ne_bytes());
            let bytes = written(20, &bind, 0);
            let read = Request::new(&bytes).and_then(|r| r.command());
            assert_eq!(read.is_ok(), good, "{len}: {read:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400), n in 0u32..24) {
            let _ = Request::new(&bytes).and_then(|r| r.command());
            let bytes = written(n, &bytes, 400);
            let _ = Request::new(&bytes).and_then(|r| r.command());
        }
    }
}
