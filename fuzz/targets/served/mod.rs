//! A file server in memory, and a client of it in the fuzzer's hand.

use crate::bytes::Bytes;
use crate::pair::{Pair, config, server_config};
use crate::transfer::{Bell, MAX_GROWTH, MAX_OPS, MAX_WAITS, Peer, hello};
use crate::{count, house, threads};
use base::Span;
use longhaul_endpoint::{App as _, ConnId, Event};
use mover::{CopyJob, CopyLimits, CopyRunner, Error, Invitations, ServeOptions, ServerApp};
use std::sync::Arc;
use std::time::Duration;
use wire::Module;

/// How long the server's threads are waited for; longer where an input must have its effect on a busy machine too.
pub const PATIENCE: Duration = Duration::from_micros(200);
pub const LONG_PATIENCE: Duration = Duration::from_millis(40);

/// Runs no copy: what a client may ask for is looked at, not what the network makes of it.
struct Nowhere;

impl CopyRunner for Nowhere {
    fn start(&self, job: CopyJob) -> Result<(), String> {
        job.fail(Error::Local { text: "there is no network".into() });
        Ok(())
    }
}

struct World {
    pair: Pair,
    app: ServerApp,
    bell: Arc<Bell>,
    client: ConnId,
    peer: Peer,
    alive: bool,
    patience: Duration,
}

impl World {
    fn new(options: ServeOptions, untold: Vec<&'static [u8]>, patience: Duration) -> World {
        let (mut c, mut s) = (config(2), server_config(&[2]));
        (c.options.module, s.options.module) = (Module::Crc32c, Module::Crc32c);
        let mut pair = Pair::with(c, s);
        let bell = Arc::new(Bell::default());
        let options = ServeOptions { durable: false, ..options };
        let app = ServerApp::new(options, bell.wake()).expect("the folder is there");
        let limits = CopyLimits { near: true, ..CopyLimits::default() };
        let mut app = app.with_invitations(Invitations::default()).with_copies(Box::new(Nowhere), limits);
        let client = pair.connect();
        pair.run(Span::from_millis(100));
        assert!(pair.client_events().contains(&Event::Connected { conn: client }));
        app.drive(pair.now, &mut pair.server);
        let info = pair.client.connection(client).expect("open").clone();
        let mut peer = Peer::new(&mut pair.client, &info);
        peer.untold.extend(untold);
        World { pair, app, bell, client, peer, alive: true, patience }
    }

    /// Lets the server work until it has nothing to do for a moment.
    fn turn(&mut self) {
        for _ in 0..MAX_WAITS {
            self.pair.run(Span::from_millis(25));
            self.app.drive(self.pair.now, &mut self.pair.server);
            for e in self.pair.client_events() {
                self.alive &= !matches!(e, Event::Closed { .. });
            }
            if self.pair.client.connection(self.client).is_some() {
                self.peer.hear(&mut self.pair.client);
            }
            if !self.bell.wait(self.patience) {
                break;
            }
        }
    }

    /// Carries out the next operation; `None` when the input has ended.
    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let op = b.u8()?;
        if op & 15 == 14 {
            self.pair.run(Span::from_millis(u64::from(b.u16()?)));
        } else {
            self.peer.operation(&mut self.pair.client, op, b, hello)?;
        }
        if op & 0x10 == 0 {
            self.turn();
        }
        Some(())
    }
}

/// Serves as `options` say to a client that does what the input says, and must not hear what is `untold`.
pub fn run(input: &[u8], options: ServeOptions, untold: Vec<&'static [u8]>, patience: Duration) {
    let (before, threads) = (count::live(), threads::count());
    let mut world = World::new(options, untold, patience);
    let mut b = Bytes(input);
    for _ in 0..MAX_OPS {
        if world.operation(&mut b).is_none() || !world.alive {
            break;
        }
        let growth = count::live().saturating_sub(before);
        assert!(growth < MAX_GROWTH, "{growth} bytes are held for one client");
    }
    world.turn();
    // The threads end with it; what they still do until then must not go astray either.
    drop(world);
    threads::wait(threads);
    house::check();
}
