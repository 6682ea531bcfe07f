//! Two managers without any I/O: what a program writes to one, and what arrives at the other.

use super::*;
use crate::abi::{Writer, put_address};
use crate::command::tests::{SIZES, written};
use proptest::prelude::*;
use std::collections::HashMap;

const GUID: u64 = 77;
const A: &str = "192.0.2.1";
const B: &str = "192.0.2.2";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A host with one address.
struct FakeHost {
    own: IpAddr,
    port: u16,
    taken: HashMap<SocketAddr, u32>,
    drawn: u128,
    channels: HashMap<u32, ChannelId>,
}

impl Host for FakeHost {
    fn take_service(&mut self, mut at: SocketAddr, _: bool) -> Result<SocketAddr, Errno> {
        if at.port() == 1 {
            return Err(Errno(libc::EADDRINUSE));
        }
        if at.port() == 0 {
            at.set_port(40_000);
        }
        *self.taken.entry(at).or_default() += 1;
        Ok(at)
    }
    fn give_back_service(&mut self, at: SocketAddr) {
        let n = self.taken.get_mut(&at).expect("it was taken");
        *n -= 1;
        if *n == 0 {
            self.taken.remove(&at);
        }
    }
    fn route(&self, to: IpAddr, _: Option<IpAddr>) -> Result<(IpAddr, IpAddr), Errno> {
        match to {
            IpAddr::V4(to) if to.is_loopback() => Ok((self.own, self.own)),
            IpAddr::V4(_) => Ok((self.own, to)),
            IpAddr::V6(_) => Err(Errno(libc::ENETUNREACH)),
        }
    }
    fn is_own(&self, a: IpAddr) -> bool {
        a == self.own || a.is_loopback()
    }
    fn gid_index(&self, a: IpAddr) -> Option<u8> {
        (a == self.own).then_some(3)
    }
    fn guid(&self) -> u64 {
        GUID
    }
    fn port(&self) -> u16 {
        self.port
    }
    fn random(&mut self) -> [u8; 16] {
        self.drawn += 1;
        self.drawn.to_le_bytes()
    }
    fn channel_of(&self, descriptor: u32) -> Option<ChannelId> {
        self.channels.get(&descriptor).copied()
    }
    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        if at == 0 { Err(Errno(libc::EFAULT)) } else { Ok(vec![at as u8; len]) }
    }
}

/// A process.
struct Side {
    manager: Manager,
    host: FakeHost,
    channel: ChannelId,
    now: Time,
    /// Events by channel as the actions say.
    rung: i64,
}

fn process(host: &FakeHost) -> SocketAddr {
    SocketAddr::new(host.own, host.port)
}

impl Side {
    fn new(own: &str, port: u16) -> Side {
        let mut manager = Manager::default();
        let channel = manager.open();
        let host = FakeHost {
            own: ip(own),
            port,
            taken: HashMap::new(),
            drawn: 0,
            channels: HashMap::from([(9, channel)]),
        };
        Side { manager, host, channel, now: Time::from_nanos(1_000), rung: 0 }
    }

    fn write(&mut self, number: u32, input: &[u8], room: u16) -> Result<Vec<u8>, Errno> {
        self.write_to(self.channel, number, input, room)
    }
    fn write_to(&mut self, to: ChannelId, number: u32, input: &[u8], room: u16) -> Result<Vec<u8>, Errno> {
        let bytes = written(number, input, room);
        let request = Request::new(&bytes)?;
        self.manager.run(self.now, &mut self.host, to, &request).map(|r| r.bytes)
    }

    fn create(&mut self, uid: u64, space: u16) -> u32 {
        self.create_of(uid, space, 0)
    }
    fn create_of(&mut self, uid: u64, space: u16, qp_type: u8) -> u32 {
        let mut c = Writer::new(24);
        c.u64(0, uid).u64(8, 1).u16(16, space).put(18, &[qp_type]);
        word(&self.write(0, &c.0, 4).expect("an identifier"))
    }
    fn destroy(&mut self, id: u32) -> Result<u32, Errno> {
        let mut c = Writer::new(16);
        c.u64(0, 1).u32(8, id);
        self.write(1, &c.0, 4).map(|b| word(&b))
    }
    fn bind(&mut self, id: u32, at: &str) -> Result<(), Errno> {
        let mut c = Writer::new(40);
        c.put(8, &put_address(at.parse().ok()).0).u32(36, id);
        self.write(2, &c.0, 0).map(drop)
    }
    fn resolve(&mut self, id: u32, to: &str) -> Result<(), Errno> {
        let mut c = Writer::new(64);
        c.put(28, &put_address(to.parse().ok()).0).u32(56, id);
        self.write(3, &c.0, 0).map(drop)
    }
    fn on_id(&mut self, number: u32, id: u32, value: u32) -> Result<(), Errno> {
        let mut c = Writer::new(8);
        c.u32(0, id).u32(4, value);
        self.write(number, &c.0, 0).map(drop)
    }
    fn listen(&mut self, id: u32, backlog: u32) -> Result<(), Errno> {
        self.on_id(7, id, backlog)
    }
    fn connect(&mut self, id: u32, number: u32, private: &[u8]) -> Result<(), Errno> {
        let mut c = Writer::new(288);
        put_parameters(&mut c, 0, number, private);
        c.u32(272, id);
        self.write(6, &c.0, 0).map(drop)
    }
    fn accept(&mut self, (id, uid): (u32, u64), number: u32, private: &[u8]) -> Result<(), Errno> {
        let mut c = Writer::new(296);
        c.u64(0, uid);
        put_parameters(&mut c, 8, number, private);
        c.u32(280, id);
        self.write(8, &c.0, 0).map(drop)
    }
    /// ACCEPT of the end that has asked.
    fn ready(&mut self, id: u32) -> Result<(), Errno> {
        let mut c = Writer::new(296);
        c.u32(280, id);
        self.write(8, &c.0, 0).map(drop)
    }
    fn reject(&mut self, id: u32, private: &[u8]) -> Result<(), Errno> {
        let mut c = Writer::new(264);
        c.u32(0, id).put(4, &[private.len() as u8]).put(8, private);
        self.write(9, &c.0, 0).map(drop)
    }
    fn attributes(&mut self, id: u32, state: u32) -> Result<Vec<u8>, Errno> {
        let mut c = Writer::new(16);
        c.u64(0, 1).u32(8, id).u32(12, state);
        self.write(11, &c.0, 144)
    }
    /// The next event: what the program knows its owner by, the identifier, the event, its status, and all its bytes.
    fn event(&mut self) -> Option<(u64, u32, u32, i32, Vec<u8>)> {
        let b = self.write(12, &1u64.to_ne_bytes(), 336).ok()?;
        let uid = u64::from_ne_bytes(b[..8].try_into().expect("eight"));
        Some((uid, word(&b[8..]), word(&b[12..]), word(&b[16..]) as i32, b))
    }
    fn expect(&mut self, number: u32) -> (u64, u32, i32, Vec<u8>) {
        let (uid, id, n, status, b) = self.event().expect("an event");
        assert_eq!(n, number, "status {status}");
        (uid, id, status, b)
    }
    /// A resolved identifier.
    fn resolved(&mut self, uid: u64, space: u16, to: &str) -> u32 {
        let id = self.create(uid, space);
        self.resolve(id, to).expect("resolved");
        self.expect(event::ADDR_RESOLVED);
        self.on_id(4, id, 0).expect("resolved");
        self.expect(event::ROUTE_RESOLVED);
        id
    }
    fn listening(&mut self, uid: u64, space: u16, backlog: u32) -> u32 {
        let id = self.create(uid, space);
        self.bind(id, "0.0.0.0:7471").expect("bound");
        self.listen(id, backlog).expect("listening");
        id
    }
    fn after(&mut self, span: Span) {
        self.now += span;
        self.manager.on_timeout(self.now);
    }
}

fn put_parameters(c: &mut Writer, at: usize, number: u32, private: &[u8]) {
    c.u32(at, number).put(at + 8, private);
    // Length, no shared queue, resources 4, depth 2, flow control, retries, RNR retries, valid.
    c.put(at + 264, &[private.len() as u8, 0, 4, 2, 1, 7, 6, 1]);
}

fn word(b: &[u8]) -> u32 {
    u32::from_ne_bytes(b[..4].try_into().expect("four bytes"))
}

/// Lets both do what they want until neither wants anything.
fn exchange(a: &mut Side, b: &mut Side) {
    while deliver(a, b) | deliver(b, a) {}
}

fn deliver(x: &mut Side, y: &mut Side) -> bool {
    let mut any = false;
    while let Some(action) = x.manager.poll_action() {
        any = true;
        match action {
            Action::Ring { by, .. } => x.rung += by,
            Action::Ask { id, to, query } if to.ip() == y.host.own => {
                let at = y.host.taken.keys().find(|k| k.port() == to.port()).copied();
                match at {
                    Some(at) => {
                        let answer = y.manager.answer(&y.host, at, &query);
                        x.manager.on_answer(x.now, id, &answer);
                    }
                    None => x.manager.on_refusal(x.now, id),
                }
            }
            Action::Ask { .. } | Action::StopAsking { .. } | Action::Say(_) => {}
            Action::Send { to, own, bytes } => {
                assert_eq!((to, own), (process(&y.host), x.host.own));
                let origin = Origin { process: process(&x.host), own: to.ip() };
                y.manager.on_message(y.now, &mut y.host, origin, &bytes);
            }
        }
    }
    any
}

fn sides() -> (Side, Side) {
    (Side::new(A, 24_576), Side::new(B, 24_577))
}

/// Numbers of queue pairs of both processes.
const OF_A: u32 = 2;
const OF_B: u32 = 1 << 14 | 5;

/// Connects; the identifiers of both ends.
fn connected(a: &mut Side, b: &mut Side) -> (u32, u32) {
    let listener = b.listening(50, space::TCP, 0);
    let id = a.resolved(10, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, b"hello").expect("asking");
    exchange(a, b);
    let (uid, made, _, bytes) = b.expect(event::CONNECT_REQUEST);
    assert_eq!((uid, word(&bytes[20..])), (50, OF_A));
    assert_ne!(made, listener);
    // Private data is padded; what one end begins, the other one answers.
    assert_eq!(bytes[28..34], *b"hello\0");
    assert_eq!(bytes[284..292], [56, 0, 2, 4, 1, 7, 6, 1]);
    let rtr = b.attributes(made, 2).expect("attributes");
    assert_eq!(
        (word(&rtr), word(&rtr[32..])),
        (1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20, OF_A)
    );
    assert_eq!((&rtr[52..56], rtr[60]), (&[192, 0, 2, 1][..], 3), "the way to the peer, and the own GID");
    b.accept((made, 60), OF_B, b"welcome").expect("accepted");
    exchange(a, b);
    let (uid, _, _, bytes) = a.expect(event::CONNECT_RESPONSE);
    assert_eq!((uid, word(&bytes[20..]), &bytes[28..35]), (10, OF_B, &b"welcome"[..]));
    let rts = a.attributes(id, 3).expect("attributes");
    assert_eq!(word(&rts), 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16);
    assert_eq!((rts[135], rts[136]), (7, 6), "retries");
    a.ready(id).expect("ready");
    exchange(a, b);
    assert_eq!(b.expect(event::ESTABLISHED).0, 60);
    assert!(a.event().is_none() && b.event().is_none());
    (id, made)
}

#[test]
fn two_programs_connect_and_part() {
    let (mut a, mut b) = sides();
    let (id, made) = connected(&mut a, &mut b);
    a.on_id(10, id, 0).expect("disconnecting");
    exchange(&mut a, &mut b);
    assert!(b.event().is_none(), "what was sent before is to be seen first");
    b.after(SETTLES);
    assert_eq!(b.expect(event::DISCONNECTED).0, 60);
    assert_eq!(a.expect(event::DISCONNECTED).0, 10);
    b.on_id(10, made, 0).expect("the peer was first");
    exchange(&mut a, &mut b);
    assert!(b.event().is_none(), "it is told once");
    a.after(TIME_WAIT);
    a.expect(event::TIMEWAIT_EXIT);
    // Resolved twice, answered, disconnected, and rested.
    assert_eq!(a.destroy(id), Ok(5));
    assert_eq!(a.destroy(id), Err(Errno(libc::ENOENT)));
    b.destroy(made).expect("destroyed");
    exchange(&mut a, &mut b);
    assert_eq!((a.rung, a.manager.len(), b.manager.len()), (0, 0, 1));
}

#[test]
fn xrc_target_takes_initiators_only() {
    let (mut a, mut b) = sides();
    let listener = b.create_of(50, space::IB, QPT_XRC_RECV);
    b.bind(listener, "0.0.0.0:7471").expect("bound");
    b.listen(listener, 0).expect("listening");
    let asked = |a: &mut Side, b: &mut Side, qp_type| {
        let id = a.create_of(10, space::IB, qp_type);
        a.resolve(id, "192.0.2.2:7471").expect("resolved");
        a.expect(event::ADDR_RESOLVED);
        a.on_id(4, id, 0).expect("resolved");
        a.expect(event::ROUTE_RESOLVED);
        a.connect(id, OF_A, b"").expect("asking");
        exchange(a, b);
        id
    };
    asked(&mut a, &mut b, QPT_RC);
    a.expect(event::REJECTED);
    let initiator = asked(&mut a, &mut b, QPT_XRC_SEND);
    let (_, target, ..) = b.expect(event::CONNECT_REQUEST);
    assert!(b.event().is_none());
    let responds = 1 << 15 | 1 << 17;
    let asks = 1 << 10 | 1 << 11 | 1 << 13;
    assert_eq!(word(&b.attributes(target, 2).expect("attributes")) & responds, responds);
    assert_eq!(word(&b.attributes(target, 3).expect("attributes")) & (asks | 1 << 9), 1 << 9);
    b.accept((target, 60), OF_B, b"").expect("accepted");
    exchange(&mut a, &mut b);
    a.expect(event::CONNECT_RESPONSE);
    assert_eq!(word(&a.attributes(initiator, 2).expect("attributes")) & responds, 0);
    assert_eq!(word(&a.attributes(initiator, 3).expect("attributes")) & asks, asks);
}

#[test]
fn a_destroyed_or_closed_end_disconnects_the_other_one() {
    let (mut a, mut b) = sides();
    let (_, made) = connected(&mut a, &mut b);
    b.destroy(made).expect("destroyed");
    exchange(&mut a, &mut b);
    a.after(SETTLES);
    a.expect(event::DISCONNECTED);
    let (mut a, mut b) = sides();
    connected(&mut a, &mut b);
    let channel = a.channel;
    a.manager.close(&mut a.host, channel);
    exchange(&mut a, &mut b);
    b.after(SETTLES);
    b.expect(event::DISCONNECTED);
    assert!(a.manager.is_empty());
    assert_eq!(a.write(12, &1u64.to_ne_bytes(), 336), Err(Errno(libc::EBADF)));
}

#[test]
fn a_process_that_ends_ends_its_connections() {
    let (mut a, mut b) = sides();
    connected(&mut a, &mut b);
    let at = process(&b.host);
    a.manager.on_process_gone(a.now, at);
    a.after(SETTLES);
    a.expect(event::DISCONNECTED);
    // While its program has not answered.
    let id = a.resolved(11, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    a.manager.on_process_gone(a.now, at);
    assert_eq!(a.expect(event::UNREACHABLE).2, -libc::ETIMEDOUT);
}

#[test]
fn a_refusal_has_its_reason_and_private_data() {
    let (mut a, mut b) = sides();
    b.listening(50, space::TCP, 0);
    let id = a.resolved(10, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    let (_, made, ..) = b.expect(event::CONNECT_REQUEST);
    assert_eq!(b.reject(made, &[7; 149]), Err(INVALID), "longer than a message has room for");
    b.reject(made, b"not now").expect("rejected");
    exchange(&mut a, &mut b);
    let (uid, _, status, bytes) = a.expect(event::REJECTED);
    assert_eq!((uid, status, &bytes[28..35], bytes[284]), (10, 28, &b"not now"[..], 148));
    // A request that is destroyed without an answer is refused, too.
    let id = a.resolved(11, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    let (_, made, ..) = b.expect(event::CONNECT_REQUEST);
    b.destroy(made).expect("destroyed");
    exchange(&mut a, &mut b);
    assert_eq!(a.expect(event::REJECTED).2, 28);
    assert!(b.manager.incoming.is_empty());
}

#[test]
fn nobody_listens_or_nobody_answers() {
    let (mut a, mut b) = sides();
    // The port is taken, but nobody listens yet; then by nobody at all, and for datagrams.
    let bound = b.create(50, space::TCP);
    b.bind(bound, "0.0.0.0:7471").expect("bound");
    for (space, to, number, status) in [
        (space::TCP, "192.0.2.2:7471", event::REJECTED, 8),
        (space::UDP, "192.0.2.2:7471", event::UNREACHABLE, 1),
    ] {
        let id = a.resolved(10, space, to);
        a.connect(id, OF_A, &[]).expect("asking");
        exchange(&mut a, &mut b);
        assert_eq!(a.event(), None, "it is asked once more");
        a.after(ASKS_AGAIN);
        exchange(&mut a, &mut b);
        assert_eq!(a.expect(number).2, status);
    }
    // A program that names its port and then listens at it.
    let id = a.resolved(13, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    b.listen(bound, 0).expect("listening");
    a.after(ASKS_AGAIN);
    exchange(&mut a, &mut b);
    b.expect(event::CONNECT_REQUEST);
    b.destroy(bound).expect("destroyed");
    let id = a.resolved(11, space::TCP, "192.0.2.2:9");
    a.connect(id, OF_A, &[]).expect("asking");
    let mut times = 0;
    while a.event().is_none() {
        exchange(&mut a, &mut b);
        a.after(Span::from_secs(1));
        times += 1;
        assert!(times < 10);
    }
    assert_eq!(times, 3, "an ICMP message alone is not believed");
    // A host that says nothing at all.
    let id = a.resolved(12, space::TCP, "192.0.2.9:9");
    a.connect(id, OF_A, &[]).expect("asking");
    let start = a.now;
    let mut asked = 0;
    let status = loop {
        while let Some(action) = a.manager.poll_action() {
            asked += u32::from(matches!(action, Action::Ask { .. }));
        }
        if let Some((.., number, status, _)) = a.event() {
            break (number, status);
        }
        let next = a.manager.next_timeout().expect("a deadline");
        a.now = next;
        a.manager.on_timeout(next);
    };
    assert_eq!(status, (event::UNREACHABLE, -libc::ETIMEDOUT));
    assert_eq!(a.now.since(start), ANSWERS_WITHIN);
    assert!((10..20).contains(&asked), "{asked}");
}

#[test]
fn a_program_that_never_answers_is_given_up_by_both_ends() {
    let (mut a, mut b) = sides();
    b.listening(50, space::TCP, 0);
    let id = a.resolved(10, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    let (_, made, ..) = b.expect(event::CONNECT_REQUEST);
    a.after(PROGRAM_ANSWERS_WITHIN);
    assert_eq!(a.expect(event::UNREACHABLE).2, -libc::ETIMEDOUT);
    exchange(&mut a, &mut b);
    assert_eq!(b.accept((made, 60), OF_B, &[]), Err(INVALID), "the peer has given up");
}

#[test]
fn datagram_services_tell_their_queue_pair() {
    let (mut a, mut b) = sides();
    b.listening(50, space::UDP, 0);
    for accepts in [true, false] {
        let id = a.resolved(10, space::UDP, "192.0.2.2:7471");
        a.connect(id, 0, b"who?").expect("asking");
        exchange(&mut a, &mut b);
        let (_, made, _, bytes) = b.expect(event::CONNECT_REQUEST);
        assert_eq!((&bytes[60..64], bytes[316]), (&b"who?"[..], 180));
        if !accepts {
            b.reject(made, &[]).expect("rejected");
            exchange(&mut a, &mut b);
            assert_eq!(a.expect(event::UNREACHABLE).2, 2);
            continue;
        }
        b.accept((made, 60), OF_B, b"me").expect("accepted");
        exchange(&mut a, &mut b);
        let (_, _, _, bytes) = a.expect(event::ESTABLISHED);
        assert_eq!((word(&bytes[20..]), word(&bytes[24..])), (OF_B, crate::abi::UDP_Q_KEY));
        assert_eq!((&bytes[40..44], bytes[48], bytes[57]), (&[192, 0, 2, 2][..], 3, 1));
        assert_eq!(a.on_id(10, id, 0), Err(INVALID), "there is no connection to end");
        // A process that ends has no connection to end either.
        a.manager.on_process_gone(a.now, process(&b.host));
        assert!(a.event().is_none());
    }
}

#[test]
fn datagram_programs_join_and_leave_groups() {
    let (mut a, _) = sides();
    let id = a.resolved(10, space::UDP, "239.1.2.3:0");
    let join = |a: &mut Side, id: u32, uid: u64, group: &str, flags: u16| {
        let mut c = Writer::new(152);
        let (bytes, len) = put_address(group.parse().ok());
        c.u64(0, 1).u64(8, uid).u32(16, id).u16(20, len as u16).u16(22, flags).put(24, &bytes);
        a.write(22, &c.0, 4).map(|b| word(&b))
    };
    let leave = |a: &mut Side, membership: u32| {
        let mut c = Writer::new(16);
        c.u64(0, 1).u32(8, membership);
        a.write(17, &c.0, 4).map(|b| word(&b))
    };
    let first = join(&mut a, id, 100, "239.1.2.3:0", 0).expect("joined");
    let second = join(&mut a, id, 200, "239.1.2.4:0", 1).expect("joined to send only");
    let (uid, known, _, bytes) = a.expect(event::MULTICAST_JOIN);
    assert_eq!((uid, known), (100, first), "the membership, not the identifier");
    assert_eq!((word(&bytes[20..]), word(&bytes[24..])), (0xff_ffff, crate::abi::UDP_Q_KEY));
    assert_eq!(bytes[38..44], [0xff, 0xff, 239, 1, 2, 3], "the group as a GID");
    assert_eq!((bytes[48], bytes[57]), (3, 1), "the own GID, and that there is one");
    assert_eq!(leave(&mut a, first), Ok(1), "one event of it was seen");
    assert_eq!(leave(&mut a, first), Err(Errno(libc::ENOENT)));
    assert_eq!(leave(&mut a, second), Ok(0));
    assert!(a.event().is_none(), "what was not fetched went with its membership");
    for (group, flags, why) in
        [("192.0.2.9:0", 0, libc::EINVAL), ("239.1.2.3:0", 2, libc::EINVAL), ("", 0, libc::EAFNOSUPPORT)]
    {
        assert_eq!(join(&mut a, id, 100, group, flags), Err(Errno(why)), "{group}");
    }
    let connects = a.resolved(11, space::TCP, "192.0.2.2:7471");
    assert_eq!(join(&mut a, connects, 1, "239.1.2.3:0", 0), Err(INVALID));
    let unbound = a.create(12, space::UDP);
    assert_eq!(join(&mut a, unbound, 1, "239.1.2.3:0", 0), Err(INVALID));
    // What a program joins with at most, and what goes with its identifier.
    for n in 0..4_096 {
        join(&mut a, id, n, "239.1.2.3:0", 0).expect("room");
    }
    assert_eq!(join(&mut a, id, 1, "239.1.2.3:0", 0), Err(Errno(libc::ENOMEM)));
    a.destroy(id).expect("destroyed");
    assert!(a.event().is_none() && a.manager.memberships.is_empty());
}

#[test]
fn backlog_bounds_the_requests_that_wait() {
    let (mut a, mut b) = sides();
    b.listening(50, space::TCP, 2);
    let ids: Vec<u32> = (0..3).map(|n| a.resolved(10 + n, space::TCP, "192.0.2.2:7471")).collect();
    for id in &ids {
        a.connect(*id, OF_A, &[]).expect("asking");
    }
    exchange(&mut a, &mut b);
    let (uid, _, status, _) = a.expect(event::REJECTED);
    assert_eq!((uid, status), (12, 3), "no resources");
    b.expect(event::CONNECT_REQUEST);
    // Once a request is fetched there is room for another one.
    let id = a.resolved(20, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    b.expect(event::CONNECT_REQUEST);
    b.expect(event::CONNECT_REQUEST);
    assert!(a.event().is_none());
}

#[test]
fn addresses_are_taken_once_and_given_back() {
    let (mut a, _) = sides();
    let id = a.create(1, space::TCP);
    assert_eq!(a.bind(id, "192.0.2.77:5"), Err(Errno(libc::EADDRNOTAVAIL)));
    assert_eq!(a.bind(id, "192.0.2.1:1"), Err(Errno(libc::EADDRINUSE)));
    a.bind(id, "192.0.2.1:0").expect("any port");
    assert_eq!(a.bind(id, "192.0.2.1:0"), Err(INVALID), "it is bound");
    let mut c = Writer::new(16);
    c.u64(0, 1).u32(8, id);
    let route = a.write(5, &c.0, 208).expect("a route");
    assert_eq!(route[136..144], [2, 0, 40_000u16.to_be_bytes()[0], 40_000u16.to_be_bytes()[1], 192, 0, 2, 1]);
    assert_eq!((route[0], word(&route[192..]), route[196]), (GUID as u8, 0, 1), "device, no path, port");
    a.listen(id, 1).expect("listening");
    let other = a.create(2, space::TCP);
    a.bind(other, "192.0.2.1:40000").expect("shared with the other port spaces");
    assert_eq!(a.listen(other, 1), Err(Errno(libc::EADDRINUSE)));
    let datagrams = a.create(3, space::UDP);
    a.bind(datagrams, "192.0.2.1:40000").expect("bound");
    a.listen(datagrams, 1).expect("another space");
    for id in [id, other, datagrams] {
        a.destroy(id).expect("destroyed");
    }
    assert!(a.host.taken.is_empty());
    // The loopback interface is another name of the first address.
    let id = a.create(4, space::TCP);
    a.bind(id, "127.0.0.1:99").expect("bound");
    assert!(a.host.taken.contains_key(&"192.0.2.1:99".parse().expect("an address")));
    // Without a way there is an event, as with the kernel.
    let id = a.create(5, space::TCP);
    a.resolve(id, "[2001:db8::1]:5").expect("asked");
    assert_eq!(a.expect(event::ADDR_ERROR).2, -libc::ENETUNREACH);
    assert_eq!(a.on_id(4, id, 0), Err(INVALID));
}

#[test]
fn an_identifier_moves_with_its_events() {
    let (mut a, mut b) = sides();
    let listener = b.listening(50, space::TCP, 0);
    let id = a.resolved(10, space::TCP, "192.0.2.2:7471");
    a.connect(id, OF_A, &[]).expect("asking");
    exchange(&mut a, &mut b);
    let (old, new) = (b.channel, b.manager.open());
    let mut c = Writer::new(16);
    c.u64(0, 1).u32(8, listener).u32(12, 9);
    assert_eq!(b.write_to(new, 18, &c.0, 4).map(|r| word(&r)), Ok(0));
    assert!(b.event().is_none());
    assert_eq!(b.destroy(listener), Err(INVALID), "it is another channel's");
    b.channel = new;
    let (_, made, ..) = b.expect(event::CONNECT_REQUEST);
    b.accept((made, 60), OF_B, &[]).expect("moved with its listener");
    assert_eq!(b.write_to(old, 18, &c.0, 4), Err(INVALID));
    c.u32(12, 77);
    assert_eq!(b.write(18, &c.0, 4), Err(INVALID), "no such descriptor");
}

#[test]
fn messages_of_others_change_nothing() {
    let (mut a, mut b) = sides();
    let (id, made) = connected(&mut a, &mut b);
    let (mine, theirs) = (a.manager.ids[&id].wire(id), b.manager.ids[&made].wire(made));
    let stranger: SocketAddr = "192.0.2.66:24999".parse().expect("an address");
    let good = Origin { process: process(&b.host), own: a.host.own };
    for (origin, from, to) in [
        (Origin { process: stranger, ..good }, theirs, mine),
        (good, theirs ^ 1, mine),
        (good, theirs, mine ^ 1 << 16),
    ] {
        let bytes = Message::new(Kind::Disconnect, from, to).encode();
        a.manager.on_message(a.now, &mut a.host, origin, &bytes);
        assert!(a.event().is_none());
    }
    while a.manager.poll_action().is_some() {}
    // A request must be about a queue pair of the process that sends it, to an address of this host.
    b.expect_nothing_of(Origin { process: stranger, own: b.host.own }, OF_A);
    b.expect_nothing_of(Origin { process: process(&a.host), own: ip("192.0.2.99") }, OF_A);
    let bytes = Message::new(Kind::Disconnect, theirs, mine).encode();
    a.manager.on_message(a.now, &mut a.host, good, &bytes);
    a.after(SETTLES);
    a.expect(event::DISCONNECTED);
}

impl Side {
    fn expect_nothing_of(&mut self, origin: Origin, number: u32) {
        while self.manager.poll_action().is_some() {}
        let parameters = Parameters { number, ..Parameters::default() };
        let m =
            Message { space: space::TCP, service: 7_471, parameters, ..Message::new(Kind::Request, 5, 0) };
        self.manager.on_message(self.now, &mut self.host, origin, &m.encode());
        assert!(self.event().is_none() && self.manager.poll_action().is_none());
    }
}

#[test]
fn requests_of_one_peer_are_bounded() {
    let (mut a, mut b) = sides();
    b.listening(50, space::TCP, 0);
    let origin = Origin { process: process(&a.host), own: b.host.own };
    let parameters = Parameters { number: OF_A, ..Parameters::default() };
    for n in 0..MAX_INCOMING + 5 {
        let m =
            Message { space: space::TCP, service: 7_471, parameters, ..Message::new(Kind::Request, n, 0) };
        b.manager.on_message(b.now, &mut b.host, origin, &m.encode());
        // The program fetches them, but answers none.
        b.event();
    }
    assert_eq!(b.manager.len() as u32, MAX_INCOMING + 1);
    exchange(&mut a, &mut b);
}

#[test]
fn commands_about_nothing_fail_as_the_kernels() {
    let (mut a, _) = sides();
    let other = a.manager.open();
    let id = a.create(1, space::TCP);
    for (number, size, room) in SIZES {
        let input = vec![0xff; size];
        let done = a.write(number, &input, room as u16);
        assert!(done.is_err(), "{number}: identifiers and spaces that there are not");
        // An answer at address 0, where there is one.
        let done = a.write(number, &vec![0; size], room as u16);
        let wanted = if matches!(number, 4 | 7 | 10) { 0 } else { libc::EFAULT };
        if room > 0 && ![16, 17, 18, 22].contains(&number) && number != 0 && number != 11 {
            assert_eq!(done, Err(Errno(wanted)), "{number}");
        }
        if number == 1 {
            // It was destroyed; the answer could not be given.
            assert_eq!(a.create(1, space::TCP), id + 1);
            a.manager.next = id;
            assert_eq!(a.create(1, space::TCP), id);
        }
    }
    let mut c = Writer::new(16);
    c.u64(0, 1).u32(8, id);
    let elsewhere = |a: &mut Side| a.write_to(other, 1, &c.0, 4);
    assert_eq!(elsewhere(&mut a), Err(INVALID), "another channel's");
    let mut c = Writer::new(24);
    c.u64(0, 1).u64(8, 1).u16(16, 0x999);
    assert_eq!(a.write(0, &c.0, 4), Err(INVALID), "no such port space");
}

#[test]
fn options_are_checked() {
    let (mut a, _) = sides();
    let id = a.create(1, space::TCP);
    let mut set = |at: u64, level: u32, name: u32, len: u32| {
        let mut c = Writer::new(24);
        c.u64(0, at).u32(8, id).u32(12, level).u32(16, name).u32(20, len);
        a.write(14, &c.0, 0).map(drop)
    };
    for (name, len) in [(0, 1), (1, 4), (2, 4), (3, 1)] {
        assert_eq!(set(7, 0, name, len), Ok(()), "{name}");
        assert_eq!(set(7, 0, name, len + 1), Err(INVALID), "{name}");
        assert_eq!(set(0, 0, name, len), Err(Errno(libc::EFAULT)), "{name}");
    }
    assert_eq!(set(7, 0, 4, 4), Err(Errno(libc::ENOSYS)));
    assert_eq!(set(7, 1, 1, 72), Err(INVALID), "there is no address yet");
    assert_eq!(set(7, 1, 1, 5_000), Err(INVALID));
}

/// A step of a program, or of a peer.
fn step() -> impl Strategy<Value = (u8, u32, Vec<u8>, bool)> {
    (any::<u8>(), 0u32..23, proptest::collection::vec(any::<u8>(), 0..300), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is written and whatever peers say: no panic, as many events as are said to be there, and all that was taken is
    /// given back.
    #[test]
    fn any_commands_and_messages_leave_a_sound_state(steps in proptest::collection::vec(step(), 1..80)) {
        let (mut a, mut b) = sides();
        b.listening(50, space::TCP, 3);
        let mut ids = vec![];
        for (kind, number, bytes, flips) in steps {
            match kind % 8 {
                0 => ids.push(a.create(u64::from(kind), [space::TCP, space::UDP, space::IB][bytes.len() % 3])),
                1 => {
                    // A command of the right size about an identifier that there is.
                    if let Some((n, size, room)) = SIZES.iter().find(|(n, ..)| *n == number) {
                        let mut input = bytes.clone();
                        input.resize(*size, 1);
                        let id = ids.get(bytes.len() % ids.len().max(1)).copied().unwrap_or(0);
                        let at = [0, 8, 36, 56, 0, 8, 272, 0, 280, 0, 0, 8, 0, 0, 8, 0, 44, 8, 8, 8, 0, 0, 16][*n as usize];
                        input.splice(at..at + 4, id.to_ne_bytes());
                        let _ = a.write(*n, &input, *room as u16);
                    }
                }
                2 => drop(a.write(number, &bytes, 400)),
                3 => { let id = a.create(9, space::TCP); let _ = a.resolve(id, "192.0.2.2:7471"); let _ = a.on_id(4, id, 0); let _ = a.connect(id, OF_A, b"x"); ids.push(id); }
                4 => { exchange(&mut a, &mut b); }
                5 => {
                    let origin = Origin { process: process(&b.host), own: a.host.own };
                    let m = Message { space: space::TCP, service: 7_471, ..Message::new(Kind::Request, number, 0) };
                    let sent = if flips { bytes } else { m.encode() };
                    a.manager.on_message(a.now, &mut a.host, origin, &sent);
                }
                6 => a.after(Span::from_millis(u64::from(kind) * 100)),
                _ => {
                    if let Some((_, made, event::CONNECT_REQUEST, ..)) = b.event() {
                        let _ = b.accept((made, 60), OF_B, &bytes[..bytes.len().min(196)]);
                    }
                }
            }
        }
        exchange(&mut a, &mut b);
        let waiting = a.manager.channels.values().map(|q| q.len() as i64).sum::<i64>();
        prop_assert_eq!(a.rung, waiting);
        for side in [&mut a, &mut b] {
            let channel = side.channel;
            side.manager.close(&mut side.host, channel);
            prop_assert!(side.manager.is_empty() && side.host.taken.is_empty() && side.manager.incoming.is_empty());
            prop_assert!(side.manager.timers.is_empty());
        }
    }
}
