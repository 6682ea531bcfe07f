//! A client of the file server that says whatever it wants: it asks, offers, lists, sends files, links and hashes out of
//! turn, with names that lead elsewhere, and Writes where it was let and where not. No panic, nothing outside of the
//! folder that is served is read or changed, and a limit to the memory held.
//!
//! Jobs of the server's run on threads, so an input need not take the same way each time.
//!
//! Input: operations, a byte each with its arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;
mod count;
mod scratch;

use base::Span;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_endpoint::{App as _, ConnId, Event};
use mover::hash::{ChunkHasher, Digest, HOLE, chunk_log2, root};
use mover::path::RelPath;
use mover::proto::{
    Entry, Flags, Hello, Kind, MAX_MESSAGE, Meta, Name, Offer, Op, Record, Root, Sending, VERSION, decode,
    put,
};
use mover::{ServeOptions, ServerApp};
use pair::{Pair, config, server_config};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;
use verbs::{Access, Data, Memory, Mr, Opcode, QpId, RecvWr, SendOp, SendWr, Sge, Sges, Status};
use wire::Module;

/// Operations of one input at most.
const MAX_OPS: usize = 64;
/// Receives of the client, a message each.
const RECEIVES: u64 = 16;
/// Bytes of one Write.
const PIECE: usize = 60_000;
/// Longest file that is offered.
const MAX_OFFER: u64 = 1 << 20;
/// What the contents of large files are.
const FILLING: u8 = 0x5a;
/// Bytes that all of this may take at most: buffers for messages, and mapped files.
const MAX_GROWTH: usize = 96 << 20;
/// Bytes of a file at most, as the system limits it: nothing here fills the memory that the files are in.
const MAX_FILE: u64 = 64 << 20;
/// What is outside of the folder, for nobody to see.
const SECRET: &[u8] = b"nobody outside of this house is to read these words";
/// How long the server's threads are waited for; longer where an input must have its effect on a busy machine too.
const PATIENCE: Duration = Duration::from_micros(200);
const LONG_PATIENCE: Duration = Duration::from_millis(40);
/// How often they are waited for after one operation.
const MAX_WAITS: usize = 8;
/// Parts that names are made of. What no path may have is put in later: see `FORBIDDEN`.
const PARTS: [&str; 11] =
    ["a", "b", "dir", "out", "link", "secret", "@@", "@", "b#", "x%y", ".a.longhaul-part"];
/// What stands for bytes that lead elsewhere.
const FORBIDDEN: [(u8, u8); 3] = [(b'@', b'.'), (b'#', b'/'), (b'%', 0)];

/// Rung by the server's threads.
#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

/// The folder of this process: `served` inside, and beside it what the server must not touch.
fn house() -> &'static PathBuf {
    static HOUSE: OnceLock<PathBuf> = OnceLock::new();
    HOUSE.get_or_init(|| {
        let limit = rustix::process::Rlimit { current: Some(MAX_FILE), maximum: Some(MAX_FILE) };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("a limit");
        // SAFETY: no handler is called; writing beyond the limit is an error then.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        scratch::folder().join("house")
    })
}

fn build_house() {
    let house = house();
    let _ = fs::remove_dir_all(house);
    let make = || {
        fs::create_dir_all(house.join("served/dir"))?;
        fs::create_dir(house.join("outside"))?;
        fs::write(house.join("outside/secret"), SECRET)?;
        fs::write(house.join("served/a"), b"contents of a")?;
        fs::write(house.join("served/dir/b"), vec![FILLING; 3_000])?;
        std::os::unix::fs::symlink("../outside", house.join("served/out"))?;
        std::os::unix::fs::symlink("../outside/secret", house.join("served/link"))
    };
    make().expect("memory");
}

/// What is outside is as it was.
fn check_house() {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).expect("is there").map(|e| e.expect("is there").file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(house()), ["outside", "served"]);
    assert_eq!(names(&house().join("outside")), ["secret"]);
    assert_eq!(fs::read(house().join("outside/secret")).expect("is there"), SECRET);
}

struct World {
    pair: Pair,
    app: ServerApp,
    bell: Arc<Bell>,
    client: ConnId,
    qp: QpId,
    inbox: Mr,
    /// Memory that the server granted: key, length.
    grants: Vec<(u32, u64)>,
    /// Large files offered: size.
    offered: Vec<u64>,
    alive: bool,
    patience: Duration,
}

impl World {
    fn new(patience: Duration) -> World {
        build_house();
        let (mut c, mut s) = (config(2), server_config(&[2]));
        (c.options.module, s.options.module) = (Module::Crc32c, Module::Crc32c);
        let mut pair = Pair::with(c, s);
        let bell = Arc::new(Bell::default());
        let ring = bell.clone();
        let wake = move || {
            *ring.0.lock().expect("not poisoned") = true;
            ring.1.notify_one();
        };
        let options = ServeOptions { durable: false, ..ServeOptions::new(house().join("served")) };
        let mut app = ServerApp::new(options, Arc::new(wake)).expect("the folder is there");
        let client = pair.connect();
        pair.run(Span::from_millis(100));
        assert!(pair.client_events().contains(&Event::Connected { conn: client }));
        app.drive(pair.now, &mut pair.server);
        let info = pair.client.connection(client).expect("open").clone();
        let a = pair.client.adapter();
        let len = RECEIVES as usize * MAX_MESSAGE;
        let inbox =
            a.reg_mr(info.pd, Memory::zeroed(len), Access::LOCAL_WRITE).map_err(|e| e.0).expect("room");
        let (qp, grants, offered) = (info.qps[0], Vec::new(), Vec::new());
        let mut world = World { pair, app, bell, client, qp, inbox, grants, offered, alive: true, patience };
        (0..RECEIVES).for_each(|i| world.receive(i));
        world
    }

    fn receive(&mut self, i: u64) {
        let len = MAX_MESSAGE as u64;
        let sges = Sges::from(Sge { lkey: self.inbox.lkey, offset: i * len, len });
        let _ = self.pair.client.adapter().post_recv(self.qp, RecvWr { wr_id: i, sges });
    }

    /// Lets the server work until it has nothing to do for a moment.
    fn turn(&mut self) {
        for _ in 0..MAX_WAITS {
            self.pair.run(Span::from_millis(25));
            self.app.drive(self.pair.now, &mut self.pair.server);
            self.hear();
            let rung = self.bell.0.lock().expect("not poisoned");
            let (mut rung, _) =
                self.bell.1.wait_timeout_while(rung, self.patience, |rung| !*rung).expect("not poisoned");
            if !core::mem::take(&mut *rung) {
                break;
            }
        }
    }

    /// Takes what the server says.
    fn hear(&mut self) {
        for e in self.pair.client_events() {
            self.alive &= !matches!(e, Event::Closed { .. });
        }
        let Some(cq) = self.pair.client.connection(self.client).map(|c| c.cq) else { return };
        while let Some(wc) = self.pair.client.adapter().poll_cq(cq) {
            if wc.opcode != Opcode::Recv || wc.status != Status::Success {
                continue;
            }
            let mut message = vec![0; wc.byte_len as usize];
            let at = wc.wr_id * MAX_MESSAGE as u64;
            self.pair.client.adapter().read_mr(self.inbox.id, at, &mut message).expect("registered");
            self.receive(wc.wr_id);
            assert!(!message.windows(SECRET.len()).any(|w| w == SECRET), "what is outside was read");
            for record in decode(&message).expect("the server writes sound records") {
                if let Record::Grant { rkey, len, .. } = record {
                    self.grants.push((rkey, len));
                }
            }
        }
    }

    fn post(&mut self, op: SendOp, data: Vec<u8>) {
        let _ = self.pair.client.adapter().post_send(self.qp, SendWr::new(1, op, Data::Inline(data.into())));
    }

    /// Writes all of what was granted.
    fn fill(&mut self, which: usize) {
        let Some((rkey, len)) = self.grants.get(which).copied() else { return };
        for offset in (0..len.min(MAX_OFFER)).step_by(PIECE) {
            let n = (len - offset).min(PIECE as u64);
            self.post(SendOp::Write { rkey, offset }, vec![FILLING; n as usize]);
        }
    }

    /// Carries out the next operation; `None` when the input has ended.
    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let op = b.u8()?;
        match op & 15 {
            0..=10 => {
                let mut message = Vec::new();
                for _ in 0..1 + (op >> 6) {
                    put(&mut message, &self.record(op & 15, b)?);
                }
                if op & 0x20 != 0 {
                    let (at, xor) = (usize::from(b.u16()?), b.u8()?);
                    match message.get_mut(at) {
                        Some(byte) => *byte ^= xor,
                        None => forbid(&mut message),
                    }
                }
                self.post(SendOp::Send, message);
            }
            11 => {
                let n = usize::from(b.u16()?);
                let message = b.take(n).to_vec();
                self.post(SendOp::Send, message);
            }
            12 => self.fill(usize::from(b.u8()?)),
            13 => {
                // Somewhere in granted memory, or beside it.
                let (which, len, offset) = (usize::from(b.u8()?), usize::from(b.u16()?), b.number()?);
                let (rkey, _) = self.grants.get(which).copied().unwrap_or((u32::from(op), 0));
                self.post(SendOp::Write { rkey, offset }, vec![FILLING; len]);
            }
            14 => self.pair.run(Span::from_millis(u64::from(b.u16()?))),
            _ => {}
        }
        if op & 0x10 == 0 {
            self.turn();
        }
        Some(())
    }

    fn record(&mut self, kind: u8, b: &mut Bytes<'_>) -> Option<Record<'static>> {
        let file = u64::from(b.u8()?);
        Some(match kind {
            0 => Record::Hello(hello(b)?),
            1 => {
                let kind = [Kind::File, Kind::Dir, Kind::Link, Kind::Other][(file & 3) as usize];
                Record::Roots(vec![Root { name: path(b)?, kind }; 1 + usize::from(file > 250)])
            }
            2 => Record::Dir { name: name(b)?, meta: meta(b)? },
            3 => {
                let targets: [&'static [u8]; 4] = [b"../outside", b"/", b"a", b""];
                Record::Link { name: name(b)?, meta: meta(b)?, target: targets[(file & 3) as usize] }
            }
            4 => {
                let data: &'static [u8] = if file & 1 == 0 { b"small" } else { &[FILLING; 5_000] };
                let hash = if file & 2 == 0 { *blake3::hash(data).as_bytes() } else { [7; 32] };
                Record::Small { name: name(b)?, meta: meta(b)?, hash, data }
            }
            5 => {
                let size = b.number()? % MAX_OFFER;
                let name = name(b)?;
                let file = if file & 0x80 == 0 { self.offered.len() as u64 } else { file };
                let half = size / 2;
                let extents = match file & 3 {
                    0 | 1 if size > 0 => one(0..size),
                    2 if half > 0 => one(0..half),
                    _ => Vec::new(),
                };
                self.offered.push(size);
                Record::Offer(Offer { file, name, meta: meta(b)?, size, extents })
            }
            6 => {
                let hashes = self.hashes(file);
                let first = if file & 0x80 == 0 { 0 } else { b.number()? };
                Record::Hashes { file: file & 0x7f, first, hashes }
            }
            7 => {
                let size = self.offered.get(usize::from(file as u8 & 0x7f)).copied().unwrap_or_default();
                let hash = root(&self.hashes(file), size, chunk_log2(size)).unwrap_or(HOLE);
                Record::End { file: file & 0x7f, hash }
            }
            8 => match file & 3 {
                0 | 1 => Record::SourceEnd,
                2 => Record::ListCredit(b.number()?),
                _ => Record::Drop { file: file >> 2, cause: b.u8()?, text: "gone".into() },
            },
            9 => Record::Touch { name: name(b)?, meta: meta(b)? },
            _ => match file & 7 {
                0 => Record::ListEnd,
                1 => Record::Accept { file: file >> 3, have: one(0..b.number()? >> 1) },
                2 => Record::Grant { file: file >> 3, start: b.number()?, len: b.number()?, rkey: 5 },
                3 => Record::Again { file: file >> 3, chunk: b.number()? },
                4 => Record::Done { file: file >> 3, failed: None },
                5 => Record::SinkEnd(Default::default()),
                6 => {
                    let (name, meta, size) = (name(b)?, meta(b)?, b.number()?);
                    let (root, path, kind, hash) = (name.root, name.path, Kind::File, None);
                    Record::Entry(Entry { root, path, kind, size, meta, hash })
                }
                _ => Record::Abort { refused: false, text: "enough".into() },
            },
        })
    }

    /// The true hashes of an offered file whose contents are all filling.
    fn hashes(&self, file: u64) -> Vec<Digest> {
        let size = self.offered.get(usize::from(file as u8 & 0x7f)).copied().unwrap_or(1);
        let chunk = 1u64 << chunk_log2(size);
        let hash = |at: u64| {
            let mut h = ChunkHasher::new(at, size <= chunk);
            h.update(&vec![FILLING; chunk.min(size - at) as usize]);
            h.finish()
        };
        (0..size.div_ceil(chunk)).map(|n| hash(n * chunk)).collect()
    }
}

fn one(range: Range<u64>) -> Vec<Range<u64>> {
    core::iter::once(range).collect()
}

/// Puts what no path may have into all names.
fn forbid(message: &mut [u8]) {
    for byte in message {
        if let Some((_, real)) = FORBIDDEN.iter().find(|(mark, _)| mark == byte) {
            *byte = *real;
        }
    }
}

fn hello(b: &mut Bytes<'_>) -> Option<Hello> {
    let (kind, flags) = (b.u8()?, b.u8()?);
    let paths = (0..1 + usize::from(kind >> 6)).map(|_| path(b)).collect::<Option<Vec<_>>>()?;
    let bit = |n: u8| flags >> n & 1 == 1;
    Some(Hello {
        version: VERSION,
        op: [Op::Put, Op::Get, Op::List, Op::Put][usize::from(kind & 3)],
        flags: Flags {
            skip_same: bit(0),
            checksum: bit(1),
            overwrite: bit(2),
            dry_run: bit(3) && bit(6),
            recursive: bit(4),
            fresh: bit(5),
        },
        transfer: [kind & 4; 16],
        contents: vec![bit(7); paths.len()],
        paths,
        into: kind & 8 != 0,
        sending: Sending { cc: (kind & 0x30 == 0x30).then(|| "cubic".to_owned()), ..Sending::default() },
    })
}

fn meta(b: &mut Bytes<'_>) -> Option<Meta> {
    let secs = i64::from(b.u8()?);
    Some(Meta {
        mode: 0o700 | (secs as u32 & 0o77),
        secs: if secs == 255 { i64::MIN } else { secs },
        nanos: 5,
    })
}

fn name(b: &mut Bytes<'_>) -> Option<Name> {
    let path = path(b)?;
    Some(Name { root: u32::from(b.u8()? & 1), path })
}

/// A path of up to three parts.
fn path(b: &mut Bytes<'_>) -> Option<RelPath> {
    let n = b.u8()? % 4;
    let parts =
        (0..n).map(|_| Some(PARTS[usize::from(b.u8()?) % PARTS.len()])).collect::<Option<Vec<_>>>()?;
    Some(RelPath::parse(parts.join("/").as_bytes()).unwrap_or_default())
}

fn run(input: &[u8], patience: Duration) {
    let before = count::live();
    let mut world = World::new(patience);
    let mut b = Bytes(input);
    for _ in 0..MAX_OPS {
        if world.operation(&mut b).is_none() || !world.alive {
            break;
        }
        let growth = count::live().saturating_sub(before);
        assert!(growth < MAX_GROWTH, "{growth} bytes are held for one client");
    }
    world.turn();
    // The threads end with it; what they still do must not go astray either.
    drop(world);
    check_house();
}

/// An honest client's files are put in place, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let folder = house().join("served/dir");
        for (input, name, contents) in [
            (&include_bytes!("../seeds/session/put_small")[..], "b", &[FILLING; 5_000][..]),
            (include_bytes!("../seeds/session/put_large"), "a", &[FILLING; 300_000]),
        ] {
            // Threads may be slow on a busy machine; not every time.
            let arrived = (0..5).any(|_| {
                run(input, LONG_PATIENCE);
                fs::read(folder.join(name)).is_ok_and(|found| found == contents)
            });
            assert!(arrived, "{name} was not put in place");
        }
    });
}

fuzz_target!(|input: &[u8]| {
    prove();
    run(input, PATIENCE);
});
