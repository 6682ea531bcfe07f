//! iWARP connections of two endpoints over streams in memory: established, closed and refused.

mod pair;
mod streams;

use base::{Rate, Span, Time};
use cc::platform::{Choice, Class, Order, PeerTerms, Policy, Traffic};
use longhaul_endpoint::{
    Authority, CapSource, ClientAdmission, CloseReason, Compliance, ConnId, Endpoint, Event, Iwarp,
    IwarpServer, StreamCommand, StreamId, StreamStats,
};
use pair::{complete, config, read, register, whole};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use streams::{Net, both, by, server};
use transport::crypto::{OneTimeToken, PeerIdentity};
use verbs::{Data, RecvWr, SendOp, SendWr, Sges, Status};

#[test]
fn streams_form_one_connection_and_close_with_a_reason() {
    for (tls, streams) in [(false, 1), (false, 5), (true, 1), (true, 5)] {
        let mut net = Net::new(config(2), server(&[2], both()));
        let c = net.connect(streams, by(tls));
        net.run();
        let [s] = net.incoming()[..] else { panic!("{:?}", net.events) };
        let (ci, si) = (
            net.ends[0].connection(c).cloned().expect("open"),
            net.ends[1].connection(s).cloned().expect("open"),
        );
        assert_eq!((ci.qps.len(), si.qps.len()), (streams.into(), streams.into()));
        let info = si.iwarp.as_ref().expect("by iWARP");
        assert_eq!(
            (info.tls, info.crc, info.longhaul, &info.private_data[..]),
            (tls, !tls, true, &b"hello"[..])
        );
        assert_eq!((ci.peer.is_some(), si.peer.is_some()), (tls, tls));
        // The last queue pair of one is that of the other.
        let (last_c, last_s) = (*ci.qps.last().expect("one"), *si.qps.last().expect("one"));
        let mr = register(&mut net.ends[1], si.pd, vec![0; 300_000]);
        let own = register(&mut net.ends[0], ci.pd, vec![7; 300_000]);
        let wr = SendWr::new(1, SendOp::Write { rkey: mr.rkey, offset: 0 }, whole(&own, 300_000));
        net.ends[0].adapter().post_send(last_c, wr).expect("posted");
        let word = SendWr::new(2, SendOp::Send, Data::Inline(b"a word".to_vec().into()));
        net.ends[0].adapter().post_send(last_c, word).expect("posted");
        net.run();
        // The word waits for its receive; what went before it is there.
        assert!(read(&mut net.ends[1], &mr, 300_000).iter().all(|b| *b == 7));
        let sges = Sges::One(whole(&mr, 100));
        net.ends[1].adapter().post_recv(last_s, RecvWr { wr_id: 9, sges }).expect("posted");
        net.run();
        let wc = complete(&mut net.ends[1], &si);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (9, Status::Success, 6));
        net.ends[0].close(net.now, c, 0x77, "enough");
        net.run();
        let reason = CloseReason::Peer { code: 0x77, reason: "enough".into() };
        assert_eq!(
            (net.closed(0), net.closed(1)),
            (Some(&CloseReason::Local), Some(&reason)),
            "{tls} {streams}"
        );
        net.ends[1].adapter().dereg_mr(mr.id).expect("free");
        net.ends[0].adapter().dereg_mr(own.id).expect("free");
        net.ends[0].release(c).expect("released");
        net.ends[1].release(s).expect("released");
        assert!(net.is_clean());
        assert!(net.ends[1].connection(s).is_none());
    }
}

/// Records that a write of 300,000 bytes takes, each way.
fn records_of_a_write(client: Iwarp, server_settings: iwarp::Config) -> [u64; 2] {
    let mut net = Net::new(config(2), server(&[2], IwarpServer { settings: server_settings, ..both() }));
    let c = net.connect(1, client);
    net.run();
    let [s] = net.incoming()[..] else { panic!("{:?}", net.events) };
    let conns = [c, s];
    [0, 1].map(|from| {
        let infos = [0, 1].map(|i: usize| net.ends[i].connection(conns[i]).cloned().expect("open"));
        let to = 1 - from;
        let place = register(&mut net.ends[to], infos[to].pd, vec![0; 300_000]);
        let own = register(&mut net.ends[from], infos[from].pd, vec![7; 300_000]);
        let wr = SendWr::new(1, SendOp::Write { rkey: place.rkey, offset: 0 }, whole(&own, 300_000));
        let before = net.ends[from].adapter().stats(infos[from].qps[0]).expect("a queue pair").segments_out;
        net.ends[from].adapter().post_send(infos[from].qps[0], wr).expect("posted");
        net.run();
        assert!(read(&mut net.ends[to], &place, 300_000).iter().all(|b| *b == 7));
        net.ends[from].adapter().stats(infos[from].qps[0]).expect("a queue pair").segments_out - before
    })
}

#[test]
fn peer_that_checks_crc_before_placing_gets_short_records() {
    let verified = iwarp::Config::default();
    let early = iwarp::Config { placement: iwarp::Placement::Early, ..verified };
    let bare = iwarp::Config { crc: false, ..verified };
    let by = |settings| Iwarp { settings, ..by(false) };
    // From the client, from the server; 24 KiB a record, or 64.
    assert_eq!(records_of_a_write(by(verified), verified), [13, 13]);
    assert_eq!(records_of_a_write(by(verified), early), [5, 13]);
    assert_eq!(records_of_a_write(by(early), verified), [13, 5]);
    assert_eq!(records_of_a_write(by(bare), bare), [5, 5], "no CRC, nothing to check");
}

#[test]
fn unlisted_client_is_refused_with_a_reason() {
    // Without TLS nobody shows a key: who serves it so lets everybody in. With it, as by the native transport.
    let mut net = Net::new(config(3), server(&[2], both()));
    net.connect(3, by(true));
    net.run();
    assert_eq!(net.incoming(), []);
    let Some(CloseReason::Peer { code, .. }) = net.closed(0) else { panic!("{:?}", net.events) };
    assert_eq!(*code, transport::error::code::UNAUTHORISED);
    net.pass(Span::from_secs(5));
    assert!(net.is_clean());
}

/// Lets each key in once.
#[derive(Default)]
struct AdmitOnce(Arc<Mutex<Vec<PeerIdentity>>>);
impl ClientAdmission for AdmitOnce {
    fn admit(&mut self, _: Time, peer: &PeerIdentity) -> Result<(), String> {
        let mut seen = self.0.lock().expect("nobody panics");
        if seen.contains(peer) {
            return Err("you were here before".into());
        }
        seen.push(peer.clone());
        Ok(())
    }
}

#[test]
fn admission_is_consulted_once_per_connection_and_a_token_covers_all_streams() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let gate = AdmitOnce::default();
    let seen = gate.0.clone();
    net.ends[1].set_client_admission(Some(Box::new(gate)));
    net.connect(4, by(true));
    net.run();
    assert_eq!((net.incoming().len(), seen.lock().expect("whole").len()), (1, 1));
    net.connect(4, by(true));
    net.run();
    assert_eq!(net.incoming().len(), 1);
    let Some(CloseReason::Peer { reason, .. }) = net.closed(0) else { panic!("{:?}", net.events[0]) };
    assert!(reason.contains("here before"), "{reason}");

    let token = OneTimeToken::new([5; 32], None);
    let mut c = server(&[], both());
    c.server.as_mut().expect("a server").authority =
        Authority { keys: Some(Vec::new()), tokens: vec![token.clone()] };
    let mut net = Net::new(config(2), c);
    net.with_token(3, token.clone());
    net.run();
    assert_eq!(net.incoming().len(), 1, "{:?}", net.events);
    net.with_token(3, token);
    net.run();
    assert_eq!(net.incoming().len(), 1);
    assert!(net.closed(0).is_some());
}

#[test]
fn unsupported_requests_are_refused() {
    for tls in [false, true] {
        let mut net = Net::new(config(2), server(&[2], IwarpServer { plain: tls, tls: !tls, ..both() }));
        net.connect(2, by(tls));
        net.run();
        assert_eq!(net.incoming(), []);
        assert!(
            matches!(net.closed(0), Some(CloseReason::Stream(_) | CloseReason::CutOff)),
            "{:?}",
            net.events
        );
        assert!(net.is_clean());
    }
}

#[test]
fn silent_streams_are_bounded_and_time_out() {
    let few = IwarpServer { max_half_open: 10, ..both() };
    let mut net = Net::new(config(2), server(&[2], few));
    let dialled: Vec<_> = (0..25).map(|_| net.dial()).collect();
    assert_eq!((net.turned_away, net.ends[1].streams()), (0, 10));
    // Some begin, and go no further.
    for n in dialled.into_iter().filter(|n| *n != usize::MAX).step_by(3) {
        net.streams[n][1].bytes.extend(if n % 2 == 0 { &b"MPA ID R"[..] } else { &[0x16, 3, 1, 2][..] });
    }
    net.run();
    assert_eq!(net.ends[1].streams(), 10);
    // Who says something is let in all the same: the oldest silent ones make room.
    net.connect(2, by(false));
    net.run();
    assert_eq!((net.incoming().len(), net.ends[1].streams()), (1, 11));
    net.pass(Span::from_secs(21));
    assert_eq!(net.ends[1].streams(), 2);
    net.connect(2, by(false));
    net.run();
    assert_eq!(net.incoming().len(), 2);
}

#[test]
fn one_client_opens_several_connections_concurrently() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let all: Vec<ConnId> = (0..4).map(|_| net.connect(3, by(true))).collect();
    net.run();
    assert_eq!((net.incoming().len(), net.closed(0)), (all.len(), None));
}

#[test]
fn kernel_congestion_control_changes_during_a_connection() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let c = net.connect(2, by(false));
    net.run();
    let end = &mut net.ends[0];
    end.set_has_congestion(|name| if name == "reno" { Ok(()) } else { Err(format!("no {name} here")) });
    let orders = |e: &mut Endpoint| {
        let all = std::iter::from_fn(|| e.poll_stream_command());
        let named =
            all.filter_map(
                |o| if let StreamCommand::SetCongestion { name, .. } = o { Some(name) } else { None },
            );
        named.collect::<Vec<_>>()
    };
    assert_eq!(end.set_flow(c, 0, Some("reno"), None), Ok(()));
    assert_eq!(orders(end), ["reno", "reno"], "one for each stream");
    let told = end.poll_event();
    assert!(matches!(&told, Some(Event::CcChanged { cc, sending: true, .. }) if cc == "reno"), "{told:?}");
    // What is wrong is said, and changes nothing.
    assert_eq!(end.set_flow(c, 0, Some("cubic"), None), Err("no cubic here".to_owned()));
    assert!(
        end.set_flow(c, 0, Some("haul"), None).is_err_and(|e| e.contains("tcp_available_congestion_control"))
    );
    assert!(end.set_flow(c, 0, Some("reno:a=1"), None).is_err_and(|e| e.contains("no parameters")));
    assert!(end.propose_cc(net.now, c, None, false, "reno").is_err());
    let none = end.set_flow(c, 0, Some("haul,cubic"), None).expect_err("it has neither");
    assert!(none.contains("`haul` is no") && none.contains("no cubic here"), "{none}");
    assert!(orders(end).is_empty() && end.poll_event().is_none());
    // Of several, the first that the system has; it is said which.
    assert_eq!(end.set_flow(c, 0, Some("haul:x=1,y=2,cubic, reno,bbr"), None), Ok(()));
    assert_eq!(orders(end), ["reno", "reno"]);
    let told = end.poll_event();
    assert!(matches!(&told, Some(Event::CcChanged { cc, .. }) if cc == "reno"), "{told:?}");
    let info = end.connection(c).expect("open").iwarp.clone();
    assert_eq!(info.map(|i| i.congestion), Some("reno".to_owned()));
    assert!(end.propose_cc(net.now, c, None, true, "reno").is_ok());
    assert_eq!(orders(end).len(), 2);
}

/// A system whose streams have sent something each time it is asked, and have nothing on the way.
#[derive(Default)]
struct Tcp {
    rates: BTreeMap<StreamId, Option<Rate>>,
    sent: u64,
    /// What has arrived of each, and when that is.
    acked: BTreeMap<StreamId, u64>,
    now: Time,
    /// It keeps the rates that it has.
    refuses: bool,
}

impl Tcp {
    /// Does what it is told; the rates that it was told.
    fn apply_choice(&mut self, end: &mut Endpoint) -> Vec<Option<Rate>> {
        self.sent += 1_000;
        let mut told = Vec::new();
        while let Some(order) = end.poll_stream_command() {
            match order {
                StreamCommand::SetPacing { stream, rate } => {
                    told.push(rate);
                    let held = self.rates.entry(stream).or_default();
                    *held = if self.refuses { *held } else { rate };
                }
                StreamCommand::QueryStats(id) => {
                    let max_rate = self.rates.get(&id).copied().flatten();
                    let acked = self.acked.get(&id).copied().unwrap_or_default();
                    let facts = StreamStats {
                        sent: self.sent,
                        acked,
                        max_rate,
                        mss: 1_448,
                        ..StreamStats::default()
                    };
                    end.set_stream_stats(self.now, id, facts);
                }
                _ => {}
            }
        }
        told
    }
}

#[test]
fn changed_cap_reaches_idle_streams_and_is_read_back() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let c = net.connect(1, by(false));
    net.run();
    let mbit = |n| Some(Rate::from_mbit(n));
    let mut tcp = Tcp::default();
    net.ends[0].set_rate_cap(c, mbit(60));
    assert_eq!(tcp.apply_choice(&mut net.ends[0]), [mbit(60)]);
    let set = |net: &mut Net, cap| net.ends[0].set_flow(c, 0, None, Some(cap)).expect("set");
    for cap in [20, 40] {
        set(&mut net, mbit(cap));
        assert_eq!(net.ends[0].compliance(c, 0), Compliance::Unknown, "nobody has asked the system");
        assert_eq!(tcp.apply_choice(&mut net.ends[0]), [mbit(cap)]);
        assert_eq!(net.ends[0].compliance(c, 0), Compliance::Met);
        assert_eq!(net.ends[0].cap_source(c, 0), Some((Rate::from_mbit(cap), CapSource::Own)));
    }
    // What the system makes of it instead is told.
    tcp.refuses = true;
    set(&mut net, mbit(30));
    assert_eq!(tcp.apply_choice(&mut net.ends[0]), [mbit(30)]);
    let Compliance::Violated(why) = net.ends[0].compliance(c, 0) else { panic!("it keeps 40 Mbit/s") };
    assert!(why.contains("told 30.0 Mbit/s") && why.contains("keeps 40.0 Mbit/s"), "{why}");
    // Without a cap of its own the limit holds.
    tcp.refuses = false;
    set(&mut net, None);
    assert_eq!(tcp.apply_choice(&mut net.ends[0]), [mbit(60)]);
    assert_eq!(net.ends[0].cap_source(c, 0), Some((Rate::from_mbit(60), CapSource::Limit)));
    set(&mut net, mbit(80));
    assert_eq!(net.ends[0].cap_source(c, 0), Some((Rate::from_mbit(60), CapSource::Limit)));
}

/// A class in which everything is, and a process, each with a cap.
#[derive(Debug)]
struct CappingPolicy(Vec<Class>, Option<Rate>);

impl Policy for CappingPolicy {
    fn choose(&self, traffic: &Traffic) -> Choice {
        MarkingPolicy(self.0.clone(), 0).choose(traffic)
    }
    fn classes(&self) -> &[Class] {
        &self.0
    }
    fn process_cap(&self) -> Option<Rate> {
        self.1
    }
    fn version(&self) -> u64 {
        0
    }
}

#[test]
fn sending_connections_divide_class_and_process_caps() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let all = [net.connect(1, by(false)), net.connect(1, by(false))];
    net.run();
    let mbit = |n| Some(Rate::from_mbit(n));
    let class = |cap| Class {
        name: "all".into(),
        parent: None,
        weight: 1,
        level: 0,
        guarantee: None,
        cap,
        order: Order::Fair,
    };
    let mut tcp = Tcp::default();
    for (cap, process, whose) in
        [(mbit(40), None, CapSource::Class("all".into())), (mbit(90), mbit(40), CapSource::Process)]
    {
        net.ends[0].set_policy(Arc::new(CappingPolicy(vec![class(cap)], process)));
        net.ends[0].handle_timeout(net.now);
        assert_eq!(net.ends[0].overall_compliance(), Compliance::Unknown);
        tcp.apply_choice(&mut net.ends[0]);
        // Both have sent: half of it each.
        assert_eq!(
            all.map(|c| net.ends[0].cap_source(c, 0)),
            [(); 2].map(|()| Some((Rate::from_mbit(20), whose.clone())))
        );
    }
    net.ends[0].close(net.now, all[0], 0, "");
    net.run();
    assert_eq!(
        net.ends[0].cap_source(all[1], 0),
        Some((Rate::from_mbit(40), CapSource::Process)),
        "the other has ended"
    );
}

#[test]
fn connection_that_needs_less_than_its_part_leaves_the_rest_of_a_cap() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let all = [net.connect(1, by(false)), net.connect(1, by(false))];
    net.run();
    net.ends[0].set_policy(Arc::new(CappingPolicy(Vec::new(), Some(Rate::from_mbit(40)))));
    let mut tcp = Tcp { now: net.now, ..Tcp::default() };
    net.ends[0].handle_timeout(net.now);
    tcp.apply_choice(&mut net.ends[0]);
    let parts = |net: &Net| all.map(|c| net.ends[0].cap_source(c, 0).expect("both have one").0);
    assert_eq!(parts(&net), [Rate::from_mbit(20); 2]);
    // The first moves 4 Mbit/s, whatever it may; the other all that it may.
    let streams: Vec<StreamId> = tcp.rates.keys().copied().collect();
    for _ in 0..10 {
        tcp.now += Span::from_millis(400);
        let second = parts(&net)[1];
        for (stream, rate) in streams.iter().zip([Rate::from_mbit(4), second]) {
            *tcp.acked.entry(*stream).or_default() += rate.bytes_in(Span::from_millis(400));
        }
        all.iter().for_each(|c| net.ends[0].refresh_stats(*c));
        tcp.apply_choice(&mut net.ends[0]);
    }
    assert_eq!(parts(&net), [Rate::from_mbit(6), Rate::from_mbit(34)]);
    // Now the first wants all that it can get: half of it again.
    for _ in 0..4 {
        tcp.now += Span::from_millis(400);
        for (stream, rate) in streams.iter().zip(parts(&net)) {
            *tcp.acked.entry(*stream).or_default() += rate.bytes_in(Span::from_millis(400));
        }
        all.iter().for_each(|c| net.ends[0].refresh_stats(*c));
        tcp.apply_choice(&mut net.ends[0]);
    }
    assert_eq!(parts(&net), [Rate::from_mbit(20); 2]);
}

/// Marks all traffic of one application.
#[derive(Debug)]
struct MarkingPolicy(Vec<Class>, u8);

impl Policy for MarkingPolicy {
    fn choose(&self, traffic: &Traffic) -> Choice {
        Choice {
            rule: String::new(),
            algorithm: "haul".into(),
            fallback: "reno".into(),
            class: 0,
            weight: 1,
            cap: None,
            guarantee: None,
            dscp: (traffic.application == "backup").then_some(self.1),
            peer: PeerTerms::default(),
            why: Vec::new(),
        }
    }
    fn classes(&self) -> &[Class] {
        &self.0
    }
    fn process_cap(&self) -> Option<base::Rate> {
        None
    }
    fn version(&self) -> u64 {
        0
    }
}

#[test]
fn streams_use_the_requested_code_point_unless_the_policy_overrides() {
    let mut net = Net::new(config(2), server(&[2], both()));
    let c = net.connect(2, by(false));
    net.run();
    assert_eq!(net.marks, []);
    let asks = |net: &mut Net, application, dscp| {
        net.marks.clear();
        net.ends[0].set_iwarp_qos(c, application, dscp).expect("there is one");
        net.run();
        net.marks.clone()
    };
    assert_eq!(asks(&mut net, None, Some(10)), [(0, 10), (0, 10)], "both streams");
    assert_eq!(asks(&mut net, None, Some(10)), []);
    assert_eq!(asks(&mut net, Some("backup"), None), []);
    // The policy says otherwise, of that application; and another one says something else.
    let class = Class {
        name: "all".into(),
        parent: None,
        weight: 1,
        level: 0,
        guarantee: None,
        cap: None,
        order: Order::Fair,
    };
    for dscp in [40, 8] {
        net.marks.clear();
        net.ends[0].set_policy(Arc::new(MarkingPolicy(vec![class.clone()], dscp)));
        net.run();
        assert_eq!(net.marks, [(0, dscp), (0, dscp)]);
    }
    assert_eq!(asks(&mut net, Some("other"), None), [(0, 10), (0, 10)]);
    assert!(net.ends[0].set_iwarp_qos(ConnId(999), None, Some(1)).is_err());
}

#[test]
fn server_sets_the_code_point_of_accepted_streams() {
    let mut of_server = server(&[2], both());
    of_server.options.intent.dscp = 26;
    let mut net = Net::new(config(2), of_server);
    net.connect(2, by(false));
    net.run();
    assert_eq!(net.marks, [(1, 26), (1, 26)]);
}

#[test]
fn connection_with_missing_streams_times_out() {
    for tls in [false, true] {
        let mut net = Net::new(config(2), server(&[2], both()));
        net.meddle = Box::new(|n, bytes| {
            if n == 2 {
                bytes.clear();
            }
        });
        net.connect(3, by(tls));
        net.pass(Span::from_secs(30));
        assert_eq!(net.incoming(), []);
        assert!(net.closed(0).is_some() && net.closed(1).is_none());
        assert!(net.is_clean());
    }
}

#[test]
fn a_stream_of_another_client_cannot_join() {
    let mut net = Net::new(config(2), server(&[2], both()));
    // The same request comes again from elsewhere, with another index; and with the same one from the same address.
    let copies = Arc::new(Mutex::new(Vec::new()));
    let seen = copies.clone();
    net.meddle = Box::new(move |n, bytes| {
        if n == 0 {
            seen.lock().expect("whole").push(bytes.clone());
        } else {
            // The others come later.
            bytes.clear();
        }
    });
    net.connect(3, by(false));
    net.run();
    let request = copies.lock().expect("whole")[0].clone();
    let home = net.from;
    for (from, index) in [("198.51.100.9:5", 1), ("192.0.2.1:77", 0)] {
        net.from = from.parse().expect("address");
        let n = net.dial();
        let mut b = request.clone();
        // Behind the frame's head of 20 bytes and 4 of revision 2: magic, version, 0, index.
        b[24 + 6..24 + 8].copy_from_slice(&u16::to_be_bytes(index));
        net.streams[n][1].bytes.extend(&b);
        net.run();
        // Refused: the reply's R bit.
        let reply: Vec<u8> = net.streams[n][0].bytes.iter().copied().collect();
        assert_eq!(reply.get(16).map(|b| b & 0x20), Some(0x20), "{from} {reply:?}");
    }
    net.from = home;
    assert_eq!(net.incoming(), []);
}

#[test]
fn full_server_refuses_with_a_reason() {
    let mut c = server(&[2], both());
    c.server.as_mut().expect("a server").max_connections = 2;
    let mut net = Net::new(config(2), c);
    for _ in 0..3 {
        net.connect(2, by(false));
        net.run();
    }
    assert_eq!(net.incoming().len(), 2);
    let Some(CloseReason::Peer { reason, .. }) = net.closed(0) else { panic!("{:?}", net.events[0]) };
    assert!(reason.contains("full"), "{reason}");
    // One leaves: there is room.
    let first = net.incoming()[0];
    net.ends[1].close(net.now, first, 0, "");
    net.run();
    net.connect(2, by(false));
    net.run();
    assert_eq!(net.incoming().len(), 3);
}

#[test]
fn broken_stream_ends_the_connection_at_both_ends() {
    for tls in [false, true] {
        let mut net = Net::new(config(2), server(&[2], both()));
        let c = net.connect(3, by(tls));
        net.run();
        for side in 0..2 {
            (net.streams[1][side].shut, net.streams[1][side].reset) = (true, true);
        }
        net.run();
        for end in 0..2 {
            let Some(CloseReason::Stream(text)) = net.closed(end) else { panic!("{:?}", net.events) };
            assert!(text.contains("failed") || text.contains("lost"), "{text}");
        }
        net.ends[0].release(c).expect("released");
        assert!(net.is_clean());
    }
}

#[test]
fn connection_to_another_implementation_uses_one_stream() {
    // Without Longhaul's private data.
    let mut net = Net::new(config(2), server(&[2], both()));
    let c = net.connect(4, Iwarp { to_longhaul: false, ..by(false) });
    net.run();
    let s = net.incoming()[0];
    let si = net.ends[1].connection(s).cloned().expect("open");
    let info = si.iwarp.expect("by iWARP");
    assert_eq!((si.qps.len(), info.longhaul, &info.private_data[..]), (1, false, &b"hello"[..]));
    net.ends[0].close(net.now, c, 5, "not to be understood");
    net.run();
    assert!(matches!(net.closed(1), Some(CloseReason::Peer { code: 0, .. })), "{:?}", net.events[1]);
}

#[test]
fn server_without_queue_pairs_keeps_no_state() {
    let mut c = server(&[2], both());
    c.limits.qps = 1;
    let mut net = Net::new(config(2), c);
    net.connect(1, by(false));
    net.run();
    assert_eq!(net.incoming().len(), 1);
    for _ in 0..5 {
        net.connect(1, by(false));
        net.run();
    }
    assert_eq!((net.incoming().len(), net.ends[1].connections().count()), (1, 1));
    assert!(matches!(net.closed(0), Some(CloseReason::Peer { .. })), "{:?}", net.events[0]);
}

#[test]
fn held_messages_continue_once_receives_are_posted() {
    let (small, mixed): (&[u64], &[u64]) = (&[6, 1, 9, 2], &[6, 200_000, 1, 3_000, 90_000]);
    for (tls, lens) in [(false, small), (true, small), (false, mixed), (true, mixed)] {
        let mut net = Net::new(config(2), server(&[2], both()));
        let c = net.connect(1, by(tls));
        net.run();
        let s = net.incoming()[0];
        let (ci, si) = (
            net.ends[0].connection(c).cloned().expect("open"),
            net.ends[1].connection(s).cloned().expect("open"),
        );
        let mr = register(&mut net.ends[1], si.pd, vec![0; 200_000]);
        let own = register(&mut net.ends[0], ci.pd, vec![7; 200_000]);
        for n in lens.iter().copied() {
            let wr = SendWr::new(n, SendOp::Send, whole(&own, n));
            net.ends[0].adapter().post_send(ci.qps[0], wr).expect("posted");
            if n % 2 == 1 {
                // What comes behind it leaves apart.
                net.run();
            }
        }
        net.run();
        // All of it may have come, in whatever pieces; each receive takes one.
        for n in lens.iter().copied() {
            let sges = Sges::One(whole(&mr, 200_000));
            net.ends[1].adapter().post_recv(si.qps[0], RecvWr { wr_id: n, sges }).expect("posted");
            net.run();
            let wc = net.ends[1].adapter().poll_cq(si.cq).map(|w| (w.wr_id, w.status, w.byte_len));
            assert_eq!(wc, Some((n, Status::Success, n)), "TLS: {tls}");
        }
    }
}
