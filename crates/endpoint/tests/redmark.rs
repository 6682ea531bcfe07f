//! The attacks of ReDMArk (Rothenberger, Taranov, Perrig, Hoefler: "ReDMArk: Bypassing RDMA Security Mechanisms", USENIX
//! Security 2021), each played against a server with two clients that are let in. `docs/security.md` says which others of
//! its attacks are played elsewhere.

mod pair;

use base::{Rng, Span, Time};
use longhaul_endpoint::{
    CloseReason, Config, ConnId, ConnInfo, Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, QpOptions,
};
use pair::{closed, complete, config, identity, read, register, server_config, whole};
use std::collections::VecDeque;
use std::net::SocketAddr;
use transport::crypto::ServerTrust;
use verbs::{
    Access, Data, Error, Memory, Mr, QpId, QpState, RecvWr, SendOp, SendWr, Sge, Status, WorkCompletion,
};
use wire::packet::{SHORT_CLEAR, flag};
use wire::{DataHeader, DataOp, Put, Tail};

const LEN: usize = 4096;

/// A datagram on its way, and where it left.
struct InFlight {
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// A server, and clients of different keys at different addresses. Datagrams arrive after a millisecond.
struct Net {
    now: Time,
    server: Endpoint,
    server_addr: SocketAddr,
    clients: Vec<(SocketAddr, Endpoint)>,
    /// The last datagrams to the server, for whoever is on the path.
    seen: Vec<InFlight>,
}

impl Net {
    /// Clients with the keys 2, 3, and so on, all let in.
    fn new(clients: u8, change: impl FnOnce(&mut Config)) -> Net {
        let keys: Vec<u8> = (2..2 + clients).collect();
        let mut s = server_config(&keys);
        change(&mut s);
        let client = |n: &u8| {
            let addr = SocketAddr::from(([192, 0, 2, *n], 1_000));
            (addr, Endpoint::new(config(*n), Rng::from_u64(u64::from(*n))).expect("client"))
        };
        Net {
            now: Time::from_nanos(1_000_000_000),
            server: Endpoint::new(s, Rng::from_u64(99)).expect("server"),
            server_addr: "192.0.2.1:4460".parse().expect("address"),
            clients: keys.iter().map(client).collect(),
            seen: Vec::new(),
        }
    }

    fn run(&mut self, span: Span) {
        const STEP: Span = Span::from_millis(1);
        let (end, mut in_flight) = (self.now + span, VecDeque::new());
        let mut buf = vec![0; MAX_TRAIN];
        while self.now < end {
            let server = self.server_addr;
            let mut send = |e: &mut Endpoint, from: SocketAddr, now: Time| {
                e.handle_timeout(now);
                while let Some(t) = e.poll_transmit(now, &mut buf) {
                    for d in buf[..t.len].chunks(t.segment) {
                        in_flight.push_back(InFlight { from, to: t.remote, bytes: d.to_vec() });
                    }
                }
            };
            send(&mut self.server, server, self.now);
            self.clients.iter_mut().for_each(|(addr, e)| send(e, *addr, self.now));
            self.now += STEP;
            for f in core::mem::take(&mut in_flight) {
                self.deliver(f);
            }
        }
    }

    fn deliver(&mut self, f: InFlight) {
        let meta = DatagramInfo { remote: f.from, local: None, ecn: base::Ecn::NotEct, waited: Span::ZERO };
        let (n, mut bytes) = (f.bytes.len(), f.bytes.clone());
        if f.to == self.server_addr {
            self.seen.push(f);
            self.server.handle_train(self.now, meta, &mut bytes, n);
        } else if let Some((_, e)) = self.clients.iter_mut().find(|(a, _)| *a == f.to) {
            e.handle_train(self.now, meta, &mut bytes, n);
        }
    }

    /// Lets a client connect; what both ends know of the connection, or why there is none.
    fn try_connect(&mut self, client: usize) -> Result<(ConnId, ConnInfo, ConnId, ConnInfo), String> {
        let remote = self.server_addr;
        let c = Connect {
            remote,
            server_name: "server.example".into(),
            trust: ServerTrust::Pinned(vec![identity(1).public_key()]),
            token: None,
            options: None,
            iwarp: None,
        };
        let conn = self.clients[client].1.connect(self.now, c).expect("begun");
        self.run(Span::from_millis(50));
        let events: Vec<_> = core::iter::from_fn(|| self.clients[client].1.poll_event()).collect();
        if let Some(why) = closed(&events) {
            return Err(why);
        }
        let incoming = core::iter::from_fn(|| self.server.poll_event()).find_map(|e| match e {
            Event::Incoming { conn } => Some(conn),
            _ => None,
        });
        let at_server = incoming.ok_or("no connection came")?;
        let ci = self.clients[client].1.connection(conn).expect("open").clone();
        let si = self.server.connection(at_server).expect("open").clone();
        Ok((conn, ci, at_server, si))
    }

    fn connect(&mut self, client: usize) -> (ConnId, ConnInfo, ConnId, ConnInfo) {
        self.try_connect(client).expect("connected")
    }

    /// One operation of a client's, and how it ended.
    fn work(&mut self, client: usize, info: &ConnInfo, qp: QpId, op: SendOp, data: Sge) -> WorkCompletion {
        self.clients[client].1.adapter().post_send(qp, SendWr::new(1, op, data)).expect("posted");
        self.run(Span::from_millis(200));
        complete(&mut self.clients[client].1, info)
    }
}

fn open(e: &mut Endpoint, info: &ConnInfo, byte: u8) -> Mr {
    register(e, info.pd, vec![byte; LEN])
}

/// Unauthorised memory access by one who is let in, with the key that the server gave to somebody else.
#[test]
fn rkey_of_another_client_grants_no_access() {
    let mut net = Net::new(2, |_| {});
    let (_, ai, a_conn, asi) = net.connect(0);
    let (_, bi, _, bsi) = net.connect(1);
    let of_a = open(&mut net.server, &asi, 0xa5);
    let of_b = open(&mut net.server, &bsi, 0xb5);
    let mine = open(&mut net.clients[1].1, &bi, 0x66);
    for (n, op) in [
        SendOp::Write { rkey: of_a.rkey, offset: 0 },
        SendOp::Read { rkey: of_a.rkey, offset: 0 },
        SendOp::Write { rkey: of_a.lkey, offset: 0 },
    ]
    .into_iter()
    .enumerate()
    {
        let conn = net.clients[1].1.connections().next().expect("open");
        let now = net.now;
        let qp = net.clients[1].1.open_qp(now, conn, QpOptions::default()).expect("opened");
        let wc = net.work(1, &bi, qp, op, whole(&mine, 64));
        assert_eq!((wc.qp, wc.status), (qp, Status::RemoteAccess), "attempt {n}");
    }
    assert_eq!(read(&mut net.server, &of_a, LEN), vec![0xa5; LEN], "written by a stranger");
    assert_eq!(read(&mut net.clients[1].1, &mine, LEN), vec![0x66; LEN], "read by a stranger");
    // Its own key works, and the one who was attacked has noticed nothing.
    let wc = net.work(1, &bi, bi.qps[0], SendOp::Write { rkey: of_b.rkey, offset: 0 }, whole(&mine, 64));
    assert_eq!(wc.status, Status::Success);
    let own = open(&mut net.clients[0].1, &ai, 0x77);
    let wc = net.work(0, &ai, ai.qps[0], SendOp::Write { rkey: of_a.rkey, offset: 8 }, whole(&own, 8));
    assert_eq!(wc.status, Status::Success);
    assert_eq!(read(&mut net.server, &of_a, LEN)[..24], [[0xa5; 8], [0x77; 8], [0xa5; 8]].concat());
    assert!(net.server.connection(a_conn).is_some());
}

/// Unauthorised memory access by guessing: each wrong guess costs the queue pair.
#[test]
fn wrong_rkey_guess_fails_the_queue_pair_at_once() {
    let mut net = Net::new(1, |_| {});
    let (_, ci, _, si) = net.connect(0);
    let theirs = open(&mut net.server, &si, 0xa5);
    let mine = open(&mut net.clients[0].1, &ci, 0x66);
    let (guess, right) = (theirs.rkey.wrapping_add(1), theirs.rkey);
    for rkey in [guess, right, right] {
        let wr = SendWr::new(1, SendOp::Write { rkey, offset: 0 }, whole(&mine, 64));
        net.clients[0].1.adapter().post_send(ci.qps[0], wr).expect("posted");
    }
    net.run(Span::from_millis(200));
    let statuses: Vec<_> = (0..3).map(|_| complete(&mut net.clients[0].1, &ci).status).collect();
    assert_eq!(statuses, [Status::RemoteAccess, Status::FlushError, Status::FlushError]);
    assert_eq!(net.server.adapter().qp_state(si.qps[0]), Some(QpState::Error));
    assert_eq!(read(&mut net.server, &theirs, LEN), vec![0xa5; LEN]);
}

/// The header of a write that the server would carry out, if only its packet authenticated.
fn write_header(rkey: u32, msn: u16) -> DataHeader {
    let last = Some(Tail::default());
    DataHeader { op: DataOp::Write, qpn: 0, msn, key: rkey, offset: 0, rsn: None, first: true, last }
}

/// Packet injection by impersonation, and denial of service by bringing a queue pair into its error state: whoever is on the
/// path sees all that a connection sends, knows every number and the victim's address, and lacks the packet keys only.
#[test]
fn injected_packets_with_valid_numbers_have_no_effect() {
    let mut net = Net::new(1, |_| {});
    let (_, ci, s, si) = net.connect(0);
    let theirs = open(&mut net.server, &si, 0xa5);
    let mine = open(&mut net.clients[0].1, &ci, 0x66);
    let wc = net.work(0, &ci, ci.qps[0], SendOp::Write { rkey: theirs.rkey, offset: 0 }, whole(&mine, 8));
    assert_eq!(wc.status, Status::Success);
    let newest = net.seen.iter().rev().find(|f| f.bytes[0] & flag::LONG == 0).expect("a packet");
    let (from, to, head) = (newest.from, newest.to, newest.bytes[..SHORT_CLEAR].to_vec());
    let genuine = newest.bytes.clone();
    let forged = net.server.stats(s).expect("open").packets_forged;
    let mut rng = Rng::from_u64(7);
    for n in 0..200u32 {
        let h = match n % 3 {
            0 => write_header(theirs.rkey, 1),
            // What would bring the queue pair into its error state, if it were heard.
            1 => write_header(theirs.rkey ^ 1, 1),
            _ => DataHeader { first: false, offset: u64::MAX >> 2, ..write_header(theirs.rkey, 1) },
        };
        let mut bytes = head.clone();
        bytes[0] = bytes[0] & !flag::PROTECTED | h.flags() & flag::PROTECTED;
        let pn = u32::from_be_bytes(bytes[5..9].try_into().expect("four")).wrapping_add(n / 4 + 1);
        bytes[5..9].copy_from_slice(&pn.to_be_bytes());
        // A tag of any kind: a random one, that of a genuine packet, or none.
        let mut tag = [0; 16];
        match n % 4 {
            0 | 1 => rng.fill(&mut tag),
            2 => tag.copy_from_slice(&genuine[SHORT_CLEAR..SHORT_CLEAR + 16]),
            _ => {}
        }
        bytes.put(&tag);
        h.put(&mut bytes);
        bytes.put(&[0x5a; 64]);
        net.deliver(InFlight { from, to, bytes });
    }
    net.run(Span::from_millis(100));
    let stats = net.server.stats(s).expect("open");
    assert!(stats.packets_forged > forged, "none was looked at: all of this tests nothing");
    assert_eq!(net.server.adapter().qp_state(si.qps[0]), Some(QpState::Rts));
    let mut want = vec![0xa5; LEN];
    want[..8].fill(0x66);
    assert_eq!(read(&mut net.server, &theirs, LEN), want);
    let wc = net.work(0, &ci, ci.qps[0], SendOp::Write { rkey: theirs.rkey, offset: 8 }, whole(&mine, 8));
    assert_eq!(wc.status, Status::Success, "the one who was impersonated works on");
}

/// Denial of service by allocation: one client takes all queue pairs that it gets, over as many connections as it likes.
#[test]
fn one_client_cannot_take_all_queue_pairs() {
    let mut net = Net::new(3, |c| c.limits.qps = 64);
    let mut held = 0;
    let why = loop {
        match net.try_connect(0) {
            Ok((conn, ..)) => {
                held += 1;
                let more = (0..20).map_while(|_| {
                    let now = net.now;
                    net.clients[0].1.open_qp(now, conn, QpOptions::default()).ok()
                });
                let asked = more.count();
                net.run(Span::from_millis(50));
                let events: Vec<_> = core::iter::from_fn(|| net.clients[0].1.poll_event()).collect();
                held += events.iter().filter(|e| matches!(e, Event::QpReady { .. })).count();
                assert_eq!(asked, 20);
            }
            Err(why) => break why,
        }
        assert!(held <= 64, "more than there are");
    };
    assert_eq!(held, 32, "half of all: {why}");
    assert!(why.contains("share of the 64 queue pairs"), "{why}");
    // Others come, and have what they need.
    for client in [1, 2] {
        let (conn, ..) = net.connect(client);
        let now = net.now;
        (0..5).for_each(|_| {
            net.clients[client].1.open_qp(now, conn, QpOptions::default()).expect("opened");
        });
        net.run(Span::from_millis(50));
        let events: Vec<_> = core::iter::from_fn(|| net.clients[client].1.poll_event()).collect();
        let ready = events.iter().filter(|e| matches!(e, Event::QpReady { .. })).count();
        assert_eq!(ready, 5, "{events:?}");
    }
    // What the first one gives back, it may have again.
    let conns: Vec<_> = net.clients[0].1.connections().collect();
    for c in conns {
        let now = net.now;
        net.clients[0].1.close(now, c, 0, "");
    }
    net.run(Span::from_millis(100));
    while let Some(e) = net.server.poll_event() {
        if let Event::Closed { conn, .. } = e {
            net.server.release(conn).expect("released");
        }
    }
    while net.clients[0].1.poll_event().is_some() {}
    net.connect(0);
}

/// Degraded performance by exhaustion: what one client fills up is its own.
#[test]
fn exhausted_client_does_not_affect_others() {
    let mut net = Net::new(2, |c| (c.limits.regions, c.limits.registered_bytes) = (64, 1 << 20));
    let (_, ai, a_conn, asi) = net.connect(0);
    let (_, bi, _, bsi) = net.connect(1);
    // The server's application serves neither the first one's completions nor its messages.
    let of_a = open(&mut net.server, &asi, 0);
    let sges = Sge { lkey: of_a.lkey, offset: 0, len: 8 };
    let posted = (0..).map_while(|n| {
        let wr = RecvWr { wr_id: n, sges: sges.into() };
        net.server.adapter().post_recv(asi.qps[0], wr).ok()
    });
    assert!(posted.count() > 1_000);
    for _ in 0..8_000 {
        let wr = SendWr::new(1, SendOp::Send, Data::Inline(vec![7; 8].into()));
        match net.clients[0].1.adapter().post_send(ai.qps[0], wr) {
            Ok(()) => {}
            Err(Error::QueueFull | Error::CqFull) => break,
            Err(e) => panic!("{e}"),
        }
    }
    net.run(Span::from_millis(500));
    assert!(net.server.adapter().cq_len(asi.cq).expect("there") > 1_000);
    let of_b = open(&mut net.server, &bsi, 0xb5);
    let mine = open(&mut net.clients[1].1, &bi, 0x66);
    for n in 0..8 {
        let wc =
            net.work(1, &bi, bi.qps[0], SendOp::Write { rkey: of_b.rkey, offset: n * 8 }, whole(&mine, 8));
        assert_eq!(wc.status, Status::Success);
    }
    assert!(net.server.usage(a_conn).expect("open").iter().all(|(_, g)| g.holds()));
}

/// A capability that was given away is worth nothing once its region is gone, and no later region has its key.
#[test]
fn rkey_is_invalid_after_deregistration_and_never_reused() {
    let mut net = Net::new(1, |_| {});
    let (conn, ci, _, si) = net.connect(0);
    let mine = open(&mut net.clients[0].1, &ci, 0x66);
    let first = open(&mut net.server, &si, 0xa5);
    net.server.adapter().dereg_mr(first.id).expect("nobody uses it");
    let later: Vec<_> = (0..200).map(|_| open(&mut net.server, &si, 0xa5)).collect();
    assert!(later.iter().all(|m| m.rkey != first.rkey && m.lkey != first.rkey));
    let now = net.now;
    let qp = net.clients[0].1.open_qp(now, conn, QpOptions::default()).expect("opened");
    let wc = net.work(0, &ci, qp, SendOp::Write { rkey: first.rkey, offset: 0 }, whole(&mine, 8));
    assert_eq!(wc.status, Status::RemoteAccess);
    for m in &later {
        assert_eq!(read(&mut net.server, m, LEN), vec![0xa5; LEN]);
    }
}

/// Memory without the right to be written or read from afar is neither, whoever asks.
#[test]
fn access_rights_are_enforced_with_a_valid_rkey() {
    let mut net = Net::new(1, |_| {});
    let (conn, ci, _, si) = net.connect(0);
    let mine = open(&mut net.clients[0].1, &ci, 0x66);
    let mut plain = |access| {
        let a = net.server.adapter();
        a.reg_mr(si.pd, Memory::from(vec![0xa5; LEN]), access).map_err(|e| e.0).expect("room")
    };
    let (local, readable) = (plain(Access::LOCAL_WRITE), plain(Access::REMOTE_READ));
    for op in [
        SendOp::Write { rkey: local.rkey, offset: 0 },
        SendOp::Read { rkey: local.rkey, offset: 0 },
        SendOp::Write { rkey: readable.rkey, offset: 0 },
        SendOp::Read { rkey: readable.rkey, offset: LEN as u64 - 4 },
    ] {
        let now = net.now;
        let qp = net.clients[0].1.open_qp(now, conn, QpOptions::default()).expect("opened");
        let wc = net.work(0, &ci, qp, op, whole(&mine, 8));
        assert_eq!(wc.status, Status::RemoteAccess, "{op:?}");
    }
    for m in [local, readable] {
        assert_eq!(read(&mut net.server, &m, LEN), vec![0xa5; LEN]);
    }
    assert_eq!(read(&mut net.clients[0].1, &mine, LEN), vec![0x66; LEN]);
    let events: Vec<_> = core::iter::from_fn(|| net.server.poll_event()).collect();
    assert!(!events.iter().any(|e| matches!(e, Event::Closed { reason: CloseReason::Violation(_), .. })));
}
