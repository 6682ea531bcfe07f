//! A file server that says whatever it wants to a client of ours that puts, gets or lists: records out of turn, names that
//! lead elsewhere, memory that is not there, Writes where it was let and where not. No panic; it gets nothing but what is
//! sent to it and changes nothing but what is fetched; a limit to the memory held; and the client can always be ended.
//!
//! Jobs of the client's run on threads, so an input need not take the same way each time.
//!
//! Input: what the client does (a byte), then operations, a byte each with its arguments.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;
mod count;
mod house;
mod scratch;
mod threads;
mod transfer;

use base::Span;
use bytes::Bytes;
use house::{FILLING, SECRET, Thing, house};
use libfuzzer_sys::fuzz_target;
use longhaul_endpoint::{App as _, ConnId, Event};
use mover::{
    ClientApp, GetOptions, Keep, ListOptions, Listed, Placement, PutOptions, Select, Sending, TransferOptions,
};
use pair::{Pair, config, register, server_config};
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transfer::{Bell, MAX_GROWTH, MAX_OPS, MAX_WAITS, Peer, welcome};
use verbs::Mr;
use wire::Module;

/// How long the client's threads are waited for; longer where an input must have its effect on a busy machine too.
const PATIENCE: Duration = Duration::from_micros(200);
const LONG_PATIENCE: Duration = Duration::from_millis(40);
/// Bytes of the memory of the server's that the client may write, and of the large file that it sends.
const REGION: usize = 512 << 10;
const LARGE: usize = 300_000;
/// Time within which a client that is interrupted must have closed: its server hears and answers that.
const CLOSING: Span = Span::from_secs(10);

/// What the client does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Job {
    Put,
    Get,
    List,
}

struct World {
    pair: Pair,
    app: ClientApp,
    entries: Option<Receiver<Vec<Listed>>>,
    bell: Arc<Bell>,
    server: ConnId,
    peer: Peer,
    region: Mr,
    alive: bool,
    patience: Duration,
}

fn served() -> PathBuf {
    house().join("served")
}

/// The client that byte `choice` asks for.
fn client(
    choice: u8,
    job: Job,
    pair: &Pair,
    wake: mover::Wake,
) -> (ClientApp, Option<Receiver<Vec<Listed>>>) {
    let transfer = TransferOptions {
        skip_same: choice & 4 == 0,
        checksum: choice & 8 != 0,
        overwrite: choice & 16 == 0,
        dry_run: choice & 32 != 0,
        durable: false,
        fresh: choice & 64 != 0,
        scan: choice & 12 == 12,
        direct: false,
        keep: Keep::GROUP.only_if(choice & 64 != 0),
        data_reduction: mover::DataReduction {
            deltas: if choice & 64 != 0 { mover::ReductionMode::Always } else { mover::ReductionMode::Auto },
            compress: if choice & 64 != 0 {
                mover::ReductionMode::Always
            } else {
                mover::ReductionMode::Never
            },
        },
    };
    let connect = pair.connect_options();
    // With folders beside the destination, and owners that are asked about.
    let link_dest = if choice & 64 == 0 { Vec::new() } else { vec![b"dir".to_vec()] };
    let select = Select { placement: Placement { link_dest, ..Placement::default() }, ..Select::default() };
    let made = match job {
        Job::Put => {
            let sources = match choice & 128 {
                0 => vec![served()],
                // Not the links: one that the user names is followed.
                _ => vec![served().join("large"), served().join("dir/"), served().join("a")],
            };
            ClientApp::put(
                connect,
                &PutOptions { sources, nameless: false, dest: b"in/".to_vec(), transfer },
                wake,
            )
        }
        Job::Get => {
            let (sources, dest) = match choice & 128 {
                0 => (vec![b"dir/".to_vec(), b"b".to_vec()], served()),
                _ => (vec![b"a".to_vec()], served().join("a")),
            };
            ClientApp::get(
                connect,
                &GetOptions { sources, dest, one_file: false, transfer, sending: Sending::default() },
                wake,
            )
        }
        Job::List => {
            let options = ListOptions {
                path: b"dir".to_vec(),
                recursive: true,
                checksum: choice & 8 != 0,
                link_targets: choice & 16 != 0,
            };
            let made = ClientApp::list(connect, &options, wake).map(|(app, entries)| (app, Some(entries)));
            return made.expect("a path that can be");
        }
    };
    (made.and_then(|app| app.selecting(select)).expect("the files are there"), None)
}

impl World {
    fn new(choice: u8, job: Job, patience: Duration) -> World {
        let (mut c, mut s) = (config(2), server_config(&[2]));
        (c.options.module, s.options.module) = (Module::Crc32c, Module::Crc32c);
        let mut pair = Pair::with(c, s);
        let bell = Arc::new(Bell::default());
        let (mut app, entries) = client(choice, job, &pair, bell.wake());
        app.drive(pair.now, &mut pair.client);
        pair.run(Span::from_millis(100));
        let incoming = pair.server_events().into_iter().find_map(|e| match e {
            Event::Incoming { conn } => Some(conn),
            _ => None,
        });
        let server = incoming.expect("connected");
        let info = pair.server.connection(server).expect("open").clone();
        let mut peer = Peer::new(&mut pair.server, &info);
        let region = register(&mut pair.server, info.pd, vec![0; REGION]);
        peer.key = region.rkey;
        World { pair, app, entries, bell, server, peer, region, alive: true, patience }
    }

    /// Lets the client work until it has nothing to do for a moment.
    fn turn(&mut self) {
        for _ in 0..MAX_WAITS {
            self.app.drive(self.pair.now, &mut self.pair.client);
            self.pair.run(Span::from_millis(25));
            // What has come gives its threads work before they are waited for.
            self.app.drive(self.pair.now, &mut self.pair.client);
            for e in self.pair.server_events() {
                self.alive &= !matches!(e, Event::Closed { .. });
            }
            if self.pair.server.connection(self.server).is_some() {
                self.peer.hear(&mut self.pair.server);
            }
            if !self.bell.wait(self.patience) {
                break;
            }
        }
    }

    /// Carries out the next operation; `None` when the input has ended.
    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let op = b.u8()?;
        match op & 15 {
            14 => self.pair.run(Span::from_millis(u64::from(b.u16()?))),
            15 => {
                // Whoever reads a listing takes some of it.
                let n = usize::from(b.u8()?);
                let _ = self.entries.iter().flat_map(Receiver::try_iter).take(n).count();
            }
            _ => self.peer.operation(&mut self.pair.server, op, b, welcome)?,
        }
        if op & 0x10 == 0 {
            self.turn();
        }
        Some(())
    }

    /// What the user stops ends, whatever the server says.
    fn end(mut self) -> World {
        self.app.progress().interrupt();
        self.app.drive(self.pair.now, &mut self.pair.client);
        self.pair.run(CLOSING);
        self.app.drive(self.pair.now, &mut self.pair.client);
        assert!(self.app.finished(), "the client cannot be ended");
        assert!(self.app.progress().outcome().is_some(), "it says nothing of how it ended");
        self
    }

    /// What the client wrote.
    fn written(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; REGION];
        self.pair.server.adapter().read_mr(self.region.id, 0, &mut bytes).expect("registered");
        bytes
    }
}

/// What is there before and after, and what the client wrote to the server's memory.
fn run(choice: u8, job: Job, input: &[u8], patience: Duration) -> ([Vec<Thing>; 2], Vec<u8>) {
    house::build();
    fs::write(served().join("large"), vec![FILLING; LARGE]).expect("memory");
    let start = house::things(&served());
    let (before, threads) = (count::live(), threads::count());
    let mut world = World::new(choice, job, patience);
    let mut b = Bytes(input);
    for _ in 0..MAX_OPS {
        if world.operation(&mut b).is_none() || !world.alive {
            break;
        }
        let growth = count::live().saturating_sub(before);
        assert!(growth < MAX_GROWTH, "{growth} bytes are held for one server");
    }
    world.turn();
    let mut world = world.end();
    let written = world.written();
    assert!(!house::tells(&written, SECRET), "what is outside was sent");
    drop(world);
    threads::wait(threads);
    house::check();
    ([start, house::things(&served())], written)
}

fn job(choice: u8) -> Job {
    [Job::Put, Job::Get, Job::List, Job::Get][usize::from(choice & 3)]
}

/// With an honest server the client's files arrive, and so do the server's, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let tries = |input: &'static [u8], holds: fn(&[Vec<Thing>; 2], &[u8]) -> bool| {
            let (choice, rest) = input.split_first().expect("a byte");
            // Threads may be slow on a busy machine; longer each time.
            (0..3).any(|n| {
                let (things, written) = run(*choice, job(*choice), rest, LONG_PATIENCE * 3u32.pow(n));
                holds(&things, &written)
            })
        };
        let sent = tries(include_bytes!("../seeds/hostile_server/put_large"), |_, written| {
            written.iter().filter(|b| **b == FILLING).count() == LARGE
        });
        assert!(sent, "a large file was not sent");
        let got = tries(include_bytes!("../seeds/hostile_server/get_small"), |[_, after], _| {
            after.iter().any(|(path, _, _, bytes)| path.ends_with("dir/b") && bytes[..] == [FILLING; 5_000])
        });
        assert!(got, "a small file was not put in place");
    });
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    prove();
    let job = job(*choice);
    let ([before, after], _) = run(*choice, job, rest, PATIENCE);
    // Putting and listing change nothing here, and neither does fetching what must not replace anything.
    match job {
        Job::Put | Job::List => house::assert_same(&before, &after),
        Job::Get if choice & 32 != 0 => house::assert_same(&before, &after),
        Job::Get if choice & 16 != 0 => {
            house::assert_kept(&before, &after);
        }
        Job::Get => {}
    }
});
