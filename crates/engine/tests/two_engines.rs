//! Two engines on one host: work posted by one, completions at the other.

#![allow(clippy::disallowed_methods, reason = "real sockets and threads take real time")]

use longhaul_engine::{
    Channel, ClusterKey, Completion, CompletionQueue, Destination, Engine, Options, QueuePair, memory,
};
use std::cell::UnsafeCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{Access, AtomicOp, Data, Mr, Opcode, PdId, QpState, RecvWr, SendOp, SendWr, Sge, Status};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LEN: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A program's memory: written to by others at any time.
struct Bytes(Box<[UnsafeCell<u8>]>);

impl Bytes {
    fn get(&self, at: usize) -> u8 {
        // SAFETY: it lies within the box; what the engine writes meanwhile is bytes, too.
        unsafe { self.0[at].get().read_volatile() }
    }
    fn set(&self, at: usize, value: u8) {
        // SAFETY: as above.
        unsafe { self.0[at].get().write_volatile(value) }
    }
}

/// One program.
struct Program {
    engine: Engine,
    pd: PdId,
    cq: Arc<CompletionQueue>,
    channel: Arc<Channel>,
    bytes: Bytes,
    mr: Mr,
}

impl Program {
    fn new(cluster: &ClusterKey) -> Program {
        let engine = Engine::start(Options::new(cluster)).expect("an engine");
        let pd = engine.alloc_pd().expect("a domain");
        let channel = Channel::new().expect("a channel");
        let cq = engine.create_cq(1_000, Some((channel.clone(), 42))).expect("a queue");
        let bytes = Bytes((0..LEN).map(|_| UnsafeCell::new(0)).collect());
        let first = bytes.0.as_ptr() as *mut u8;
        // SAFETY: the box lives as long as the engine, and nothing refers into the cells.
        let memory = unsafe { memory::of_program(first, LEN, true) };
        let mr = engine.reg_mr(pd, memory, first as u64, Access::ALL).expect("registered");
        Program { engine, pd, cq, channel, bytes, mr }
    }

    fn queue_pair(&self) -> Arc<QueuePair> {
        self.engine
            .create_qp(self.pd, &self.cq, &self.cq, |init| init.max_send_wr = 64)
            .expect("a queue pair")
    }

    fn sge(&self, offset: u64, len: u64) -> Sge {
        Sge { lkey: self.mr.lkey, offset: self.mr.base + offset, len }
    }

    /// The eight bytes from `at` on as a number.
    fn number(&self, at: u64) -> u64 {
        u64::from_ne_bytes(core::array::from_fn(|i| self.bytes.get(at as usize + i)))
    }

    fn receive(&self, qp: &QueuePair, wr_id: u64, offset: u64, len: u64) {
        let sges = self.sge(offset, len).into();
        assert!(self.engine.post_recv(qp, RecvWr { wr_id, sges }));
    }

    fn send(&self, qp: &QueuePair, wr_id: u64, op: SendOp, len: u64) {
        assert!(self.engine.post_send(qp, SendWr::new(wr_id, op, Data::from(self.sge(0, len)))));
    }

    /// Polls until there is a completion.
    fn spin(&self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(c) = self.engine.poll(&self.cq) {
                return c;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
    }

    /// Sleeps until the channel tells of a completion.
    fn sleep(&self) -> Completion {
        let start = Instant::now();
        loop {
            self.engine.arm(&self.cq, false);
            if let Some(c) = self.cq.take() {
                return c;
            }
            let mut fds = [libc_poll(self.channel.raw_fd())];
            // SAFETY: one descriptor, which is open.
            let n = unsafe { libc::poll(fds.as_mut_ptr(), 1, 20_000) };
            assert!(n == 1 && start.elapsed() < PATIENCE, "no event");
            assert_eq!(self.channel.take().ok(), Some(42));
        }
    }
}

fn libc_poll(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn connect(a: &Program, b: &Program) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let (qa, qb) = (a.queue_pair(), b.queue_pair());
    a.engine.connect(&qa, HOST, HOST, qb.number()).expect("a peer");
    a.engine.modify_qp(&qa, QpState::Rts).expect("ready to send");
    b.engine.connect(&qb, HOST, HOST, qa.number()).expect("a peer");
    b.engine.modify_qp(&qb, QpState::Rts).expect("ready to send");
    (qa, qb)
}

fn pair() -> (Program, Program) {
    let cluster = ClusterKey::generate().expect("a key");
    (Program::new(&cluster), Program::new(&cluster))
}

/// Two programs and the one that has the counter, all at the same time.
#[test]
fn counter_of_several_queue_pairs_is_exact() {
    const EACH: u64 = 500;
    let cluster = ClusterKey::generate().expect("a key");
    let (owner, others) = (Program::new(&cluster), [Program::new(&cluster), Program::new(&cluster)]);
    let word = 4_096;
    let pairs: Vec<_> = others.iter().map(|p| connect(p, &owner)).collect();
    let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let op = SendOp::Atomic { rkey: owner.mr.rkey, offset: owner.mr.base + word, op: add };
    let mut results = Vec::new();
    for n in 0..EACH {
        for (p, (qp, _)) in others.iter().zip(&pairs) {
            p.send(qp, n, op, 8);
        }
        for p in &others {
            let c = p.spin();
            let wanted = (n, Status::Success, Opcode::FetchAdd, 8);
            assert_eq!((c.wr_id, c.status, c.opcode, c.byte_len), wanted);
            results.push(p.number(0));
        }
    }
    results.sort_unstable();
    assert!(results.iter().copied().eq(0..2 * EACH));
    assert_eq!(owner.number(word), 2 * EACH);
    // What is not at a multiple of eight ends the queue pair.
    let op = SendOp::Atomic { rkey: owner.mr.rkey, offset: owner.mr.base + word + 4, op: add };
    others[0].send(&pairs[0].0, 1, op, 8);
    assert_eq!(others[0].spin().status, Status::RemoteInvalidRequest);
    assert_eq!(owner.number(word), 2 * EACH);
}

#[test]
fn sends_writes_and_reads_arrive_whoever_runs_the_loop() {
    let (a, b) = pair();
    for round in 0..3 {
        let (qa, qb) = if round % 2 == 0 { connect(&a, &b) } else { connect(&b, &a) };
        let (x, y) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        (0..LEN).for_each(|i| x.bytes.set(i, (i / 3) as u8 ^ round));
        y.receive(&qb, 9, 500_000, 4_096);
        x.send(&qa, 1, SendOp::Write { rkey: y.mr.rkey, offset: y.mr.base }, 300_000);
        x.send(&qa, 2, SendOp::Send, 4_096);
        // One end sleeps, the other one polls.
        let got = y.sleep();
        assert_eq!(
            (got.wr_id, got.status, got.byte_len, got.number),
            (9, Status::Success, 4_096, qb.number())
        );
        assert!((0..300_000).all(|i| y.bytes.get(i) == x.bytes.get(i)), "round {round}");
        assert!((0..4_096).all(|i| y.bytes.get(500_000 + i) == x.bytes.get(i)));
        assert_eq!(
            [x.spin(), x.spin()].map(|c| (c.wr_id, c.status)),
            [(1, Status::Success), (2, Status::Success)]
        );
        // A read from an end that does nothing.
        y.bytes.set(7, 77);
        x.send(&qa, 3, SendOp::Read { rkey: y.mr.rkey, offset: y.mr.base }, 10);
        assert_eq!(x.sleep().status, Status::Success);
        assert_eq!(x.bytes.get(7), 77);
        x.engine.destroy_qp(&qa);
        y.engine.destroy_qp(&qb);
    }
}

#[test]
fn a_destroyed_peer_fails_what_is_under_way_and_memory_that_is_not_registered_does_too() {
    let (a, b) = pair();
    let (qa, qb) = connect(&a, &b);
    a.send(&qa, 1, SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 10);
    assert_eq!(a.spin().status, Status::Success);
    b.engine.destroy_qp(&qb);
    a.send(&qa, 2, SendOp::Send, 10);
    assert_ne!(a.spin().status, Status::Success);
    assert_eq!(a.engine.qp_state(&qa), Some(QpState::Error));

    let (qa, qb) = connect(&a, &b);
    let bad = SendWr::new(5, SendOp::Send, Data::from(Sge { lkey: !a.mr.lkey, offset: 0, len: 1 }));
    a.send(&qa, 4, SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 100_000);
    assert!(a.engine.post_send(&qa, bad));
    a.send(&qa, 6, SendOp::Send, 10);
    let ended = [a.spin(), a.spin(), a.spin()].map(|c| (c.wr_id, c.status));
    assert_eq!(ended, [(4, Status::Success), (5, Status::LocalProtection), (6, Status::FlushError)]);
    drop((qb, b));

    // A key that the peer does not have.
    let (a, b) = pair();
    let (qa, _qb) = connect(&a, &b);
    a.send(&qa, 7, SendOp::Write { rkey: !b.mr.rkey, offset: b.mr.base }, 10);
    assert_eq!(a.spin().status, Status::RemoteAccess);
}

#[test]
fn strangers_do_not_get_in() {
    let (a, b) = (
        Program::new(&ClusterKey::generate().expect("a key")),
        Program::new(&ClusterKey::generate().expect("a key")),
    );
    let (qa, qb) = (a.queue_pair(), b.queue_pair());
    for (x, own, peer) in [(&a, &qa, &qb), (&b, &qb, &qa)] {
        x.engine.connect(own, HOST, HOST, peer.number()).expect("a peer");
        // One of them may have been refused by now.
        let _ = x.engine.modify_qp(own, QpState::Rts);
    }
    a.receive(&qa, 1, 0, 100);
    b.receive(&qb, 1, 0, 100);
    let (asks, other) = if a.engine.port() < b.engine.port() { ((&a, &qa), &b) } else { ((&b, &qb), &a) };
    asks.0.send(asks.1, 2, SendOp::Send, 10);
    let statuses = [asks.0.spin(), asks.0.spin()].map(|c| c.status);
    assert!(statuses.iter().all(|s| *s != Status::Success), "{statuses:?}");
    assert_eq!(other.cq.take(), None);
}

#[test]
fn datagrams_arrive_with_their_senders_numbers_and_only_by_the_right_key() {
    let (a, b) = pair();
    let make = |p: &Program| {
        let qp = p.engine.create_datagram_qp(p.pd, &p.cq, &p.cq, (16, 16)).expect("a queue pair");
        p.engine.set_datagram_qp(&qp, Some(0x1111), true, false);
        qp
    };
    let (qa, qb) = (make(&a), make(&b));
    let to = |q_key| Destination { own: HOST, host: HOST, number: qb.number(), q_key };
    b.receive(&qb, 7, 1_000, 4_136);
    b.receive(&qb, 8, 6_000, 4_136);
    (0..LEN).for_each(|i| a.bytes.set(i, (i / 3) as u8));
    let send = |wr_id, op, len, q_key| {
        assert!(a.engine.post_datagram(&qa, SendWr::new(wr_id, op, Data::from(a.sge(0, len))), to(q_key)));
        a.spin()
    };
    assert_eq!(send(1, SendOp::Send, 100, 0x2222).status, Status::Success, "nobody says that it is dropped");
    assert_eq!(send(2, SendOp::SendImm { imm: 5 }, 4_096, 0x1111).status, Status::Success);
    let got = b.spin();
    assert_eq!((got.wr_id, got.byte_len, got.imm, got.has_grh), (7, 4_136, Some(5), true));
    assert_eq!((got.number, got.peer, got.status), (qb.number(), qa.number(), Status::Success));
    assert!((0..4_096).all(|i| b.bytes.get(1_040 + i) == a.bytes.get(i)));
    assert_eq!(send(3, SendOp::Send, 4_097, 0x1111).status, Status::LocalLength);
    // And back, to an end that sleeps.
    a.receive(&qa, 9, 0, 200);
    let back = Destination { own: HOST, host: HOST, number: qa.number(), q_key: 0x1111 };
    assert!(b.engine.post_datagram(&qb, SendWr::new(4, SendOp::Send, Data::from(b.sge(1_040, 50))), back));
    let got = a.sleep();
    assert_eq!((got.wr_id, got.byte_len), (9, 90));
    // What is left ends with the queue pair.
    b.engine.set_datagram_qp(&qb, None, false, true);
    let mut ended = [b.spin(), b.spin()].map(|c| (c.wr_id, c.status));
    ended.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ended, [(4, Status::Success), (8, Status::FlushError)]);
    a.engine.destroy_qp(&qa);
}
