//! Programs with an engine each.

#![allow(dead_code, reason = "each test has need of a part of it")]

use longhaul_engine::{Channel, ClusterKey, Completion, CompletionQueue, Engine, Options, QueuePair, memory};
use std::cell::UnsafeCell;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{Access, Data, Mr, PdId, QpState, RecvWr, SendOp, SendWr, Sge};

pub const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub const LEN: usize = 1 << 20;
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A program's memory: written to by others at any time.
pub struct Bytes(Box<[UnsafeCell<u8>]>);

impl Bytes {
    pub fn get(&self, at: usize) -> u8 {
        // SAFETY: it lies within the box; what the engine writes meanwhile is bytes, too.
        unsafe { self.0[at].get().read_volatile() }
    }
    pub fn set(&self, at: usize, value: u8) {
        // SAFETY: as above.
        unsafe { self.0[at].get().write_volatile(value) }
    }
}

/// One program.
pub struct Program {
    pub engine: Engine,
    pub pd: PdId,
    pub cq: Arc<CompletionQueue>,
    pub channel: Arc<Channel>,
    pub bytes: Bytes,
    pub mr: Mr,
}

impl Program {
    pub fn new(cluster: &ClusterKey) -> Program {
        Program::with(Options::new(cluster))
    }

    pub fn with(options: Options) -> Program {
        let engine = Engine::start(options).expect("an engine");
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

    pub fn queue_pair(&self) -> Arc<QueuePair> {
        self.engine
            .create_qp(self.pd, &self.cq, &self.cq, |init| init.max_send_wr = 64)
            .expect("a queue pair")
    }

    pub fn sge(&self, offset: u64, len: u64) -> Sge {
        Sge { lkey: self.mr.lkey, offset: self.mr.base + offset, len }
    }

    /// The eight bytes from `at` on as a number.
    pub fn number(&self, at: u64) -> u64 {
        u64::from_ne_bytes(core::array::from_fn(|i| self.bytes.get(at as usize + i)))
    }

    pub fn receive(&self, qp: &QueuePair, wr_id: u64, offset: u64, len: u64) {
        let sges = self.sge(offset, len).into();
        assert!(self.engine.post_recv(qp, RecvWr { wr_id, sges }));
    }

    pub fn send(&self, qp: &QueuePair, wr_id: u64, op: SendOp, len: u64) {
        assert!(self.engine.post_send(qp, SendWr::new(wr_id, op, Data::from(self.sge(0, len)))));
    }

    /// Polls until there is a completion.
    pub fn spin(&self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(c) = self.engine.poll(&self.cq) {
                return c;
            }
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
    }

    /// Sleeps until the channel tells of a completion.
    pub fn sleep(&self) -> Completion {
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

pub fn connect(a: &Program, b: &Program) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let (qa, qb) = (a.queue_pair(), b.queue_pair());
    a.engine.connect(&qa, HOST, HOST, qb.number()).expect("a peer");
    a.engine.modify_qp(&qa, QpState::Rts).expect("ready to send");
    b.engine.connect(&qb, HOST, HOST, qa.number()).expect("a peer");
    b.engine.modify_qp(&qb, QpState::Rts).expect("ready to send");
    (qa, qb)
}

pub fn pair() -> (Program, Program) {
    let cluster = ClusterKey::generate().expect("a key");
    (Program::new(&cluster), Program::new(&cluster))
}
