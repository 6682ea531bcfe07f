//! Messages by which a client arranges and watches a transfer between two servers ([`Record::Copy`](super::Record::Copy)).

use super::codec::{Put, Reader};
use super::decode::{counts, flag, hello as read_hello, path, totals as read_totals};
use super::encode::{counts as put_counts, hello as put_hello, put_path, totals as put_totals};
use super::{Hello, MAX_ROOTS, Op, ProtoError, SourceCounts, Totals};
use crate::error::{Cause, Error, MAX_TEXT};
use crate::path::{MAX_PATH, RelPath};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest time that a message may name: a day for an invitation, in seconds.
const MAX_SECONDS: u64 = 86_400;

/// A key of 32 bytes that nobody may see.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretSeed(pub [u8; 32]);

impl fmt::Debug for SecretSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretSeed(..)")
    }
}

/// What a server is asked to send where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// The put that the other server was told to expect; its transfer number is the sending server's to choose.
    pub put: Hello,
    /// What to send, below the served folder; whether the contents are meant (`DIR/`).
    pub sources: Vec<(RelPath, bool)>,
    /// Where the other server is.
    pub to: SocketAddr,
    /// SHA-256 of the key that it shows: its fingerprint.
    pub fingerprint: [u8; 32],
    /// Seed of the key (Ed25519) that it was told to let in.
    pub seed: SecretSeed,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum JobPhase {
    /// It runs.
    Running = 0,
    /// The connection was lost; another attempt follows.
    Waiting = 1,
    /// It is over, well or not.
    Ended = 2,
}

/// What is to be known of a copy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct JobStatus {
    /// Its number at the server that sends.
    pub job: u64,
    /// How far it is.
    pub phase: JobPhase,
    /// Which attempt it is, from 1 on.
    pub attempt: u64,
    /// Time since it was asked for; of one that has ended, until then. In nanoseconds.
    pub nanos: u64,
    /// What goes where, for people.
    pub what: String,
    /// The file at work, for people.
    pub current: String,
    /// Whether `found` is all there is.
    pub complete: bool,
    /// What was found, and left out as it is the same.
    #[serde(skip)]
    pub found: SourceCounts,
    /// Files in place.
    pub files_confirmed: u64,
    /// Bytes verified at the destination.
    pub bytes_confirmed: u64,
    /// Bytes of them that were there from an earlier attempt.
    pub bytes_resumed: u64,
    /// Payload sent.
    pub bytes_sent: u64,
    /// Payload sent again.
    pub bytes_retransmitted: u64,
    /// Bytes a second at present; 0 where it is not known.
    pub bytes_per_second: u64,
    /// Files a second at present; 0 where it is not known.
    pub files_per_second: u64,
    /// Milliseconds left, estimated; 0 where it is not known.
    pub millis_left: u64,
    /// What could not be transferred.
    pub failed: u64,
    /// What the receiving end counted, once it has.
    pub totals: Totals,
    /// Why it ended, where that was not success.
    pub error: Option<Error>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyMessage {
    /// Client, after a Hello of [`Op::Invite`]: the key (Ed25519) that may do this put.
    Invite {
        /// The public key.
        guest: [u8; 32],
    },
    /// Server: it may.
    Invited {
        /// It has to begin within so many seconds.
        seconds: u64,
    },
    /// Client, after a Hello of [`Op::Copy`], as all that follow: start this, and tell of it.
    Start(Box<CopyRequest>),
    /// Client: tell of all copies that this client has asked for.
    List,
    /// Client: tell of this one until it ends.
    Follow {
        /// The copy.
        job: u64,
    },
    /// Client: stop this one, and tell of it until it ends.
    Cancel {
        /// The copy.
        job: u64,
    },
    /// Server: how far a copy is. The first answer to [`CopyMessage::Start`] has its number.
    Status(Box<JobStatus>),
    /// Server: a file of the copy that is followed was not transferred.
    Failed {
        /// Its name, for people.
        path: String,
        /// A [`Cause`].
        cause: u8,
        /// What happened.
        text: String,
    },
    /// Server: that was all.
    End,
}

mod ty {
    pub const INVITE: u8 = 0;
    pub const INVITED: u8 = 1;
    pub const START: u8 = 2;
    pub const LIST: u8 = 3;
    pub const FOLLOW: u8 = 4;
    pub const CANCEL: u8 = 5;
    pub const STATUS: u8 = 6;
    pub const FAILED: u8 = 7;
    pub const END: u8 = 8;
}

/// Appends the body of a record.
pub(super) fn put(b: &mut Vec<u8>, m: &CopyMessage) {
    match m {
        CopyMessage::Invite { guest } => {
            b.push(ty::INVITE);
            b.extend_from_slice(guest);
        }
        CopyMessage::Invited { seconds } => {
            b.push(ty::INVITED);
            b.num(*seconds);
        }
        CopyMessage::Start(r) => {
            b.push(ty::START);
            put_hello(b, &r.put);
            b.num(r.sources.len() as u64);
            for (p, contents) in &r.sources {
                put_path(b, p);
                b.push(u8::from(*contents));
            }
            match r.to.ip() {
                IpAddr::V4(a) => b.blob(&a.octets()),
                IpAddr::V6(a) => b.blob(&a.octets()),
            }
            b.num(u64::from(r.to.port()));
            b.extend_from_slice(&r.fingerprint);
            b.extend_from_slice(&r.seed.0);
        }
        CopyMessage::List => b.push(ty::LIST),
        CopyMessage::Follow { job } => {
            b.push(ty::FOLLOW);
            b.num(*job);
        }
        CopyMessage::Cancel { job } => {
            b.push(ty::CANCEL);
            b.num(*job);
        }
        CopyMessage::Status(s) => {
            b.push(ty::STATUS);
            put_status(b, s);
        }
        CopyMessage::Failed { path, cause, text } => {
            b.push(ty::FAILED);
            b.blob(path.as_bytes());
            b.push(*cause);
            b.blob(text.as_bytes());
        }
        CopyMessage::End => b.push(ty::END),
    }
}

/// Reads the body of a record.
pub(super) fn read(r: &mut Reader<'_>) -> Result<CopyMessage, ProtoError> {
    Ok(match r.u8()? {
        ty::INVITE => CopyMessage::Invite { guest: r.array()? },
        ty::INVITED => CopyMessage::Invited { seconds: r.num_max(MAX_SECONDS, "time")? },
        ty::START => CopyMessage::Start(Box::new(read_request(r)?)),
        ty::LIST => CopyMessage::List,
        ty::FOLLOW => CopyMessage::Follow { job: r.num()? },
        ty::CANCEL => CopyMessage::Cancel { job: r.num()? },
        ty::STATUS => CopyMessage::Status(Box::new(read_status(r)?)),
        ty::FAILED => {
            CopyMessage::Failed { path: r.text(4 * MAX_PATH)?, cause: r.u8()?, text: r.text(MAX_TEXT)? }
        }
        ty::END => CopyMessage::End,
        _ => return Err(ProtoError::Range("kind of a message about copies")),
    })
}

fn read_request(r: &mut Reader<'_>) -> Result<CopyRequest, ProtoError> {
    let put = read_hello(r)?;
    if put.op != Op::Put || put.paths.len() != 1 {
        return Err(ProtoError::Range("put of a copy"));
    }
    let n = r.num_max(MAX_ROOTS as u64, "number of sources")?;
    let sources = (0..n).map(|_| Ok((path(r)?, flag(r)?))).collect::<Result<_, ProtoError>>()?;
    let ip = match *r.blob(16, "address")? {
        [a, b, c, d] => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        ref a => {
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(a).map_err(|_| ProtoError::Range("address"))?))
        }
    };
    let port = r.num_max(u64::from(u16::MAX), "port")? as u16;
    let (fingerprint, seed) = (r.array()?, SecretSeed(r.array()?));
    Ok(CopyRequest { put, sources, to: SocketAddr::new(ip, port), fingerprint, seed })
}

fn put_status(b: &mut Vec<u8>, s: &JobStatus) {
    b.num(s.job);
    b.push(s.phase as u8);
    b.num(s.attempt);
    b.num(s.nanos);
    b.blob(s.what.as_bytes());
    b.blob(s.current.as_bytes());
    b.push(u8::from(s.complete));
    put_counts(b, &s.found);
    for v in numbers(s) {
        b.num(v);
    }
    put_totals(b, &s.totals);
    put_error(b, s.error.as_ref());
}

/// The counters, in the order of the wire.
fn numbers(s: &JobStatus) -> [u64; 9] {
    [
        s.files_confirmed,
        s.bytes_confirmed,
        s.bytes_resumed,
        s.bytes_sent,
        s.bytes_retransmitted,
        s.bytes_per_second,
        s.files_per_second,
        s.millis_left,
        s.failed,
    ]
}

fn read_status(r: &mut Reader<'_>) -> Result<JobStatus, ProtoError> {
    let job = r.num()?;
    let phase = match r.u8()? {
        0 => JobPhase::Running,
        1 => JobPhase::Waiting,
        2 => JobPhase::Ended,
        _ => return Err(ProtoError::Range("phase")),
    };
    let (attempt, nanos) = (r.num()?, r.num()?);
    let (what, current) = (r.text(2 * MAX_TEXT)?, r.text(4 * MAX_PATH)?);
    let (complete, found) = (flag(r)?, counts(r)?);
    let mut n = [0; 9];
    for v in &mut n {
        *v = r.num()?;
    }
    let [files_confirmed, bytes_confirmed, bytes_resumed, bytes_sent, bytes_retransmitted, ..] = n;
    let [.., bytes_per_second, files_per_second, millis_left, failed] = n;
    let (totals, error) = (read_totals(r)?, read_error(r)?);
    Ok(JobStatus {
        job,
        phase,
        attempt,
        nanos,
        what,
        current,
        complete,
        found,
        files_confirmed,
        bytes_confirmed,
        bytes_resumed,
        bytes_sent,
        bytes_retransmitted,
        bytes_per_second,
        files_per_second,
        millis_left,
        failed,
        totals,
        error,
    })
}

/// A number for its kind, then what it holds.
fn put_error(b: &mut Vec<u8>, e: Option<&Error>) {
    let (kind, text) = match e {
        None => return b.push(0),
        Some(Error::Refused { text }) => (1, text),
        Some(Error::OtherService { text }) => (2, text),
        Some(Error::Protocol { text }) => (3, text),
        Some(Error::Connection { text, code }) => {
            b.push(4);
            b.push(u8::from(code.is_some()));
            code.iter().for_each(|c| b.num(*c));
            return b.blob(text.as_bytes());
        }
        Some(Error::Interrupted) => return b.push(5),
        Some(Error::Local { text }) => (6, text),
        Some(Error::Unusable { text }) => (7, text),
        Some(Error::Peer { text }) => (8, text),
        Some(Error::DeleteLimit { stay }) => {
            b.push(10);
            return b.num(*stay);
        }
        Some(Error::Partial { failed, system }) => {
            b.push(9);
            b.num(*failed);
            b.push(u8::from(system.is_some()));
            return b.extend(system.map(|c| c as u8));
        }
    };
    b.push(kind);
    b.blob(text.as_bytes());
}

fn read_error(r: &mut Reader<'_>) -> Result<Option<Error>, ProtoError> {
    // A reason may have words of the third end within words of the second.
    let text = |r: &mut Reader<'_>| r.text(4 * MAX_TEXT);
    Ok(Some(match r.u8()? {
        0 => return Ok(None),
        1 => Error::Refused { text: text(r)? },
        2 => Error::OtherService { text: text(r)? },
        3 => Error::Protocol { text: text(r)? },
        4 => {
            let code = if flag(r)? { Some(r.num()?) } else { None };
            Error::Connection { text: text(r)?, code }
        }
        5 => Error::Interrupted,
        6 => Error::Local { text: text(r)? },
        7 => Error::Unusable { text: text(r)? },
        8 => Error::Peer { text: text(r)? },
        10 => Error::DeleteLimit { stay: r.num()? },
        9 => {
            let failed = r.num()?;
            let system = if flag(r)? { Some(Cause::from_wire(r.u8()?)) } else { None };
            Error::Partial { failed, system }
        }
        _ => return Err(ProtoError::Range("kind of an error")),
    }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Flags, NotPreserved, Sending, VERSION};
    use super::*;
    use proptest::prelude::*;

    /// Words that have nothing to escape.
    fn words() -> impl Strategy<Value = String> {
        "[ -\\[\\]-~äΩ中]{0,20}"
    }

    fn request() -> impl Strategy<Value = CopyMessage> {
        let to = prop_oneof![
            any::<([u8; 4], u16)>().prop_map(|(a, port)| SocketAddr::from((a, port))),
            any::<([u8; 16], u16)>().prop_map(|(a, port)| SocketAddr::from((a, port))),
        ];
        let names = proptest::collection::vec(("[a-z]{1,9}", any::<bool>()), 0..5);
        (names, to, any::<([u8; 32], [u8; 32], [u8; 16])>(), 0..128u64).prop_map(
            |(names, to, keys, flags)| {
                let path = |n: &str| RelPath::parse(n.as_bytes()).unwrap();
                let put = Hello {
                    version: VERSION,
                    op: Op::Put,
                    flags: Flags::from_bits(flags).unwrap(),
                    transfer: keys.2,
                    paths: vec![path("there")],
                    into: true,
                    contents: vec![false],
                    sending: Sending::default(),
                    link_targets: false,
                    data_reduction: Default::default(),
                    keep: Default::default(),
                };
                let sources = names.iter().map(|(n, contents)| (path(n), *contents)).collect();
                let (fingerprint, seed) = (keys.0, SecretSeed(keys.1));
                CopyMessage::Start(Box::new(CopyRequest { put, sources, to, fingerprint, seed }))
            },
        )
    }

    fn error() -> impl Strategy<Value = Option<Error>> {
        let text = |kind: fn(String) -> Error| words().prop_map(move |t| Some(kind(t)));
        prop_oneof![
            Just(None),
            Just(Some(Error::Interrupted)),
            text(|text| Error::Refused { text }),
            text(|text| Error::OtherService { text }),
            text(|text| Error::Protocol { text }),
            text(|text| Error::Local { text }),
            text(|text| Error::Unusable { text }),
            text(|text| Error::Peer { text }),
            (words(), any::<Option<u64>>()).prop_map(|(text, code)| Some(Error::Connection { text, code })),
            (any::<u64>(), proptest::option::of(0..24u8))
                .prop_map(|(failed, c)| { Some(Error::Partial { failed, system: c.map(Cause::from_wire) }) }),
        ]
    }

    fn status() -> impl Strategy<Value = CopyMessage> {
        let phase = proptest::sample::select(vec![JobPhase::Running, JobPhase::Waiting, JobPhase::Ended]);
        (any::<[u64; 19]>(), phase, any::<bool>(), words(), words(), error()).prop_map(
            |(n, phase, complete, what, current, error)| {
                let not_preserved = NotPreserved { hard_links: n[0], ..NotPreserved::default() };
                CopyMessage::Status(Box::new(JobStatus {
                    job: n[1],
                    phase,
                    attempt: n[2],
                    nanos: n[3],
                    what,
                    current,
                    complete,
                    found: SourceCounts {
                        files: n[4],
                        bytes: n[5],
                        same_files: n[6],
                        same_bytes: n[7],
                        not_preserved,
                    },
                    files_confirmed: n[8],
                    bytes_confirmed: n[9],
                    bytes_resumed: n[10],
                    bytes_sent: n[11],
                    bytes_retransmitted: n[12],
                    bytes_per_second: n[13],
                    files_per_second: n[14],
                    millis_left: n[15],
                    failed: n[16],
                    totals: Totals { files: n[17], bytes: n[18], ..Totals::default() },
                    error,
                }))
            },
        )
    }

    /// Any message.
    pub fn arb() -> impl Strategy<Value = CopyMessage> {
        prop_oneof![
            any::<[u8; 32]>().prop_map(|guest| CopyMessage::Invite { guest }),
            (0..MAX_SECONDS).prop_map(|seconds| CopyMessage::Invited { seconds }),
            Just(CopyMessage::List),
            Just(CopyMessage::End),
            any::<u64>().prop_map(|job| CopyMessage::Follow { job }),
            any::<u64>().prop_map(|job| CopyMessage::Cancel { job }),
            (words(), any::<u8>(), words()).prop_map(|(path, cause, text)| CopyMessage::Failed {
                path,
                cause,
                text
            }),
            request(),
            status(),
        ]
    }
}
