//! The connection manager: commands as a program writes them to `/dev/infiniband/rdma_cm`, of any bytes or of the right size about
//! identifiers that there are; messages of the peer's manager, true, changed or invented; answers about services and groups; time.
//!
//! No panic; as many events as the program is told of; no more identifiers, timers or taken ports than there are channels for; packets
//! that are read are written as the same bytes.
//!
//! Input: operations, a byte each with its arguments.

#![no_main]

mod bytes;

use base::{Span, Time};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rdmacm::lookup::{Key, Packet};
use rdmacm::message::Message;
use rdmacm::{Action, ChannelId, Errno, Host, Manager, Origin, Request, group};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Operations of one input at most.
const MAX_OPS: usize = 400;
/// Numbers of commands with the bytes of their structures and of their answers, and where the identifier stands.
const COMMANDS: [(u32, usize, u16, usize); 22] = [
    (0, 24, 4, 20),
    (1, 16, 4, 8),
    (2, 40, 0, 36),
    (3, 64, 0, 56),
    (4, 8, 0, 0),
    (5, 12, 200, 8),
    (6, 280, 0, 272),
    (7, 8, 0, 0),
    (8, 288, 0, 280),
    (9, 264, 0, 0),
    (10, 4, 0, 0),
    (11, 16, 144, 8),
    (12, 8, 324, 4),
    (14, 24, 0, 8),
    (15, 8, 0, 0),
    (16, 48, 4, 44),
    (17, 12, 4, 8),
    (18, 16, 4, 8),
    (19, 16, 272, 8),
    (20, 136, 0, 0),
    (21, 272, 0, 0),
    (22, 152, 4, 16),
];

/// A host with two addresses. Ports are counted, so that none is given back that was not taken.
struct World {
    own: IpAddr,
    port: u16,
    taken: HashMap<SocketAddr, u32>,
    channels: HashMap<u32, ChannelId>,
    drawn: u8,
}

impl Host for World {
    fn take_service(&mut self, mut at: SocketAddr, _: bool) -> Result<SocketAddr, Errno> {
        if at.port() == 1 {
            return Err(Errno(libc::EACCES));
        }
        if at.port() == 0 {
            at.set_port(40_000);
        }
        *self.taken.entry(at).or_default() += 1;
        Ok(at)
    }
    fn give_back_service(&mut self, at: SocketAddr) {
        let n = self.taken.get_mut(&at).expect("a port is given back that was not taken");
        *n -= 1;
        if *n == 0 {
            self.taken.remove(&at);
        }
    }
    fn route(&self, to: IpAddr, _: Option<IpAddr>) -> Result<(IpAddr, IpAddr), Errno> {
        match to.to_canonical() {
            IpAddr::V4(to) if to.is_loopback() => Ok((self.own, self.own)),
            to if to.is_ipv4() => Ok((self.own, to)),
            _ => Err(Errno(libc::ENETUNREACH)),
        }
    }
    fn is_own(&self, a: IpAddr) -> bool {
        a == self.own || a.is_loopback()
    }
    fn gid_index(&self, a: IpAddr) -> Option<u8> {
        (a == self.own).then_some(0)
    }
    fn guid(&self) -> u64 {
        1
    }
    fn port(&self) -> u16 {
        self.port
    }
    fn random(&mut self) -> [u8; 16] {
        self.drawn = self.drawn.wrapping_add(1);
        [self.drawn; 16]
    }
    fn channel_of(&self, descriptor: u32) -> Option<ChannelId> {
        self.channels.get(&descriptor).copied()
    }
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        if at == 0 { Err(Errno(libc::EFAULT)) } else { Ok(vec![at as u8; len]) }
    }
}

/// A process, with two channels.
struct Side {
    manager: Manager,
    host: World,
    channels: [ChannelId; 2],
    /// Events that its channels are said to have.
    rung: HashMap<ChannelId, i64>,
    /// Identifiers, and the last messages that it has sent.
    ids: Vec<u32>,
    sent: Vec<Vec<u8>>,
    asked: Vec<(u32, Packet)>,
}

impl Side {
    fn new(last: u8, port: u16) -> Side {
        let mut manager = Manager::default();
        let channels = [manager.open(), manager.open()];
        let of = HashMap::from([(0, channels[0]), (1, channels[1])]);
        let own = IpAddr::from([192, 0, 2, last]);
        let host = World { own, port, taken: HashMap::new(), channels: of, drawn: last };
        let (rung, ids, sent, asked) = (HashMap::new(), vec![], vec![], vec![]);
        Side { manager, host, channels, rung, ids, sent, asked }
    }

    fn at(&self) -> SocketAddr {
        SocketAddr::new(self.host.own, self.host.port)
    }

    fn write(&mut self, now: Time, which: u8, number: u32, input: &[u8], room: u16) {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend((input.len() as u16).to_ne_bytes());
        bytes.extend(room.to_ne_bytes());
        bytes.extend(input);
        self.write_bytes(now, which, &bytes);
    }

    fn write_bytes(&mut self, now: Time, which: u8, bytes: &[u8]) {
        let Ok(request) = Request::new(bytes) else { return };
        let channel = self.channels[usize::from(which & 1)];
        let Ok(reply) = self.manager.run(now, &mut self.host, channel, &request) else { return };
        assert!(reply.bytes.len() <= request.room, "the answer is longer than its room");
        if which & 0x80 != 0 {
            // The program's memory cannot be written to.
            self.manager.take_back(&mut self.host, &reply);
        } else {
            self.ids.extend(reply.made);
        }
    }

    /// A command of the right size: mostly zeroes, with an identifier that there is and some bytes of the fuzzer's.
    fn command(&mut self, now: Time, b: &mut Bytes<'_>) -> Option<()> {
        let (which, number, id, changes) = (b.u8()?, b.u8()?, b.u8()?, b.u8()?);
        let (number, size, room, at) = COMMANDS[usize::from(number) % COMMANDS.len()];
        let mut input = vec![0; size];
        // Where an answer goes.
        let answer = if matches!(number, 0 | 16 | 22) { 8 } else { 0 };
        if room > 0 && size > answer + 8 {
            input[answer] = 1;
            input[0] = 1;
        }
        let known = self.ids.get(usize::from(id) % self.ids.len().max(1)).copied();
        if let Some(place) = input.get_mut(at..at + 4) {
            place.copy_from_slice(&known.unwrap_or(id.into()).to_ne_bytes());
        }
        for _ in 0..changes % 8 {
            let (at, len) = (usize::from(b.u16()?) % size, usize::from(b.u8()? % 32));
            let new = b.take(len);
            input[at..].iter_mut().zip(new).for_each(|(to, from)| *to = *from);
        }
        self.write(now, which, number, &input, room + u16::from(changes >> 4));
        Some(())
    }
}

struct Fuzz {
    now: Time,
    sides: [Side; 2],
    key: Key,
}

impl Fuzz {
    /// Does what a side wants; true when it wanted something.
    fn act(&mut self, x: usize) -> bool {
        let mut any = false;
        while let Some(action) = self.sides[x].manager.poll_action() {
            any = true;
            let peer = self.sides[1 - x].at();
            match action {
                Action::Ring { channel, by } => {
                    let n = self.sides[x].rung.entry(channel).or_default();
                    *n += by;
                    assert!(*n >= 0, "fewer events than none");
                }
                Action::Ask { id, query, to } => {
                    assert_eq!(Packet::decode(&query.encode(&self.key), &self.key), Some(query));
                    let answering = &self.sides[1 - x];
                    let at = answering.host.taken.keys().find(|k| k.port() == to.port()).copied();
                    let answer = at.map(|at| answering.manager.answer(&answering.host, at, &query));
                    let side = &mut self.sides[x];
                    side.asked.truncate(8);
                    side.asked.push((id, query));
                    match answer {
                        Some(answer) => side.manager.on_answer(self.now, id, &answer),
                        None => side.manager.on_refusal(self.now, id),
                    }
                }
                Action::StopAsking { .. } | Action::Say(_) => {}
                Action::Send { to, bytes, .. } => {
                    let origin = Origin { process: self.sides[x].at(), own: to.ip() };
                    self.sides[x].sent.truncate(8);
                    self.sides[x].sent.push(bytes.clone());
                    if to == peer {
                        let y = &mut self.sides[1 - x];
                        y.manager.on_message(self.now, &mut y.host, origin, &bytes);
                    }
                }
            }
        }
        any
    }

    fn exchange(&mut self) {
        for _ in 0..10_000 {
            if !(self.act(0) | self.act(1)) {
                return;
            }
        }
        panic!("the managers talk for ever");
    }

    /// A message: one that the peer has sent, with changes, or bytes.
    fn message(&mut self, x: usize, b: &mut Bytes<'_>) -> Option<()> {
        let (how, n) = (b.u8()?, usize::from(b.u8()?));
        let mut bytes = match self.sides[1 - x].sent.get(usize::from(how >> 4)) {
            Some(sent) if how & 1 == 0 => sent.clone(),
            _ => b.take(n).to_vec(),
        };
        for _ in 0..how >> 1 & 3 {
            let (at, xor) = (usize::from(b.u8()?), b.u8()?);
            let len = bytes.len().max(1);
            if let Some(byte) = bytes.get_mut(at % len) {
                *byte ^= xor;
            }
        }
        let process = match how & 8 {
            0 => self.sides[1 - x].at(),
            _ => SocketAddr::new(self.sides[1 - x].host.own, 24_576 + u16::from(b.u8()?)),
        };
        let side = &mut self.sides[x];
        let origin = Origin { process, own: side.host.own };
        side.manager.on_message(self.now, &mut side.host, origin, &bytes);
        Some(())
    }

    fn operation(&mut self, b: &mut Bytes<'_>) -> Option<()> {
        let what = b.u8()?;
        let x = usize::from(what >> 7);
        let now = self.now;
        match what & 0x7f {
            0..=63 => self.sides[x].command(now, b)?,
            64..=71 => {
                let (which, n) = (b.u8()?, usize::from(b.u8()?));
                let bytes = b.take(n).to_vec();
                self.sides[x].write_bytes(now, which, &bytes);
            }
            72..=83 => self.message(x, b)?,
            84..=95 => {
                // Events are fetched.
                let which = b.u8()?;
                self.sides[x].write(now, which & 1, 12, &1u64.to_ne_bytes(), 336);
            }
            96..=107 => {
                self.now += Span::from_millis(u64::from(b.u8()?) * 20);
                let now = self.now;
                self.sides.iter_mut().for_each(|s| s.manager.on_timeout(now));
            }
            108..=111 => {
                let at = self.sides[1 - x].at();
                self.sides[x].manager.on_process_gone(now, at);
            }
            112..=115 => {
                let asked = self.sides[x].asked.get(usize::from(b.u8()? & 7)).copied();
                let code = b.u8()?;
                let side = &mut self.sides[x];
                match asked {
                    Some((id, query)) if code & 1 == 0 => {
                        side.manager.on_answer(now, id, &query.answer(Some(u16::from(code) << 8)));
                    }
                    Some((id, _)) if code & 2 == 0 => side.manager.on_refusal(now, id),
                    Some((id, _)) => side.manager.on_ask_failed(id, code.into()),
                    None => side.manager.on_search_failed(side.host.own, side.host.own, code.into()),
                }
            }
            116 => {
                let side = &mut self.sides[x];
                side.manager.close(&mut side.host, side.channels[1]);
                side.rung.remove(&side.channels[1]);
                side.channels[1] = side.manager.open();
                side.host.channels.insert(1, side.channels[1]);
            }
            _ => self.exchange(),
        }
        Some(())
    }
}

/// What arrives in datagrams.
fn packets(key: &Key, b: &[u8]) {
    if let Some(m) = Message::decode(b) {
        assert_eq!(Message::decode(&m.encode()), Some(m), "not read back");
    }
    if let Some(p) = Packet::decode(b, key) {
        assert_eq!(p.encode(key)[..], *b);
    }
    if let Some(p) = group::Packet::decode(b, key) {
        assert_eq!(p.encode(key)[..], *b);
    }
}

fuzz_target!(|input: &[u8]| {
    let key = Key::new(&[7; 32]);
    packets(&key, input);
    let mut b = Bytes(input);
    let sides = [Side::new(1, 24_576), Side::new(2, 24_577)];
    let mut f = Fuzz { now: Time::from_nanos(1_000), sides, key };
    for _ in 0..MAX_OPS {
        if f.operation(&mut b).is_none() {
            break;
        }
    }
    f.exchange();
    for side in &mut f.sides {
        for channel in side.channels {
            side.manager.close(&mut side.host, channel);
        }
        assert!(side.manager.is_empty(), "identifiers without a channel");
        assert!(side.host.taken.is_empty(), "ports that nobody has");
        assert_eq!(side.manager.next_timeout(), None, "timers of nobody");
    }
});
