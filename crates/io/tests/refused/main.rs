//! Transfers over real sockets while the kernel refuses offloads, buffers or packets: all data arrives, and the user
//! is told once. See `kernel.rs` for how the kernel is made to refuse.

mod kernel;

use base::{Rng, Span, Time};
use endpoint::{App, Config, ConnId, Connect, Endpoint, Event, ServerConfig};
use kernel::{Call, Verdict, asks_for_segmentation, under};
use longhaul_io::clock::Clock;
use longhaul_io::driver::{Driver, DriverOptions, Lanes};
use longhaul_io::staging::Staging;
use longhaul_io::udp::UdpStats;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use transport::crypto::{Credentials, Identity, ServerTrust};
use verbs::{Access, Memory, SendOp, SendWr, Sge, Status};

/// What is transferred, in Writes of one mebibyte.
const TOTAL: usize = 24 << 20;
const MESSAGE: usize = 1 << 20;
/// The calls by which packets leave: one train alone takes the second.
const SENDS: [libc::c_long; 2] = [libc::SYS_sendmmsg, libc::SYS_sendmsg];

fn config(seed: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([seed; 32]))));
    c.options.max_packet = 1_500;
    c
}

/// Registers memory, and ends with its connection.
struct Sink {
    memory: Staging,
    key: Sender<u32>,
    over: bool,
}

impl App for Sink {
    fn drive(&mut self, _now: Time, ep: &mut Endpoint) {
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Incoming { conn } => {
                    let pd = ep.connection(conn).expect("open").pd;
                    let memory = Memory::from_backing(Box::new(self.memory.clone()));
                    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                    let mr = ep.adapter().reg_mr(pd, memory, access).map_err(|e| e.0).expect("registered");
                    self.key.send(mr.rkey).expect("the source waits");
                }
                Event::Closed { .. } => self.over = true,
                _ => {}
            }
        }
    }
    fn finished(&self) -> bool {
        self.over
    }
}

/// Writes once what the sink's memory takes, and closes.
struct Source {
    connect: Option<Connect>,
    key: Receiver<u32>,
    data: Vec<u8>,
    at: Option<(ConnId, u32, u32)>,
    conn: Option<ConnId>,
    completed: usize,
    /// What was sent again, as a share of what was sent.
    again: f64,
    over: bool,
}

impl App for Source {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            ep.connect(now, c).expect("connecting");
        }
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Connected { conn } => self.conn = Some(conn),
                Event::Closed { .. } => self.over = true,
                _ => {}
            }
        }
        let Some(conn) = self.conn.filter(|_| !self.over) else { return };
        let Some(info) = ep.connection(conn).cloned() else { return };
        if self.at.is_none()
            && let Ok(rkey) = self.key.try_recv()
        {
            let memory = Memory::from(self.data.clone());
            let mr = ep.adapter().reg_mr(info.pd, memory, Access::LOCAL_READ).map_err(|e| e.0);
            let lkey = mr.expect("registered").lkey;
            self.at = Some((conn, rkey, lkey));
            for i in 0..TOTAL / MESSAGE {
                let offset = (i * MESSAGE) as u64;
                let op = SendOp::Write { rkey, offset };
                let wr = SendWr::new(i as u64, op, Sge { lkey, offset, len: MESSAGE as u64 });
                ep.adapter().post_send(info.qps[0], wr).expect("posted");
            }
        }
        while let Some(wc) = ep.adapter().poll_cq(info.cq) {
            assert_eq!(wc.status, Status::Success);
            self.completed += 1;
            if self.completed == TOTAL / MESSAGE {
                let stats = ep.stats(conn).expect("open");
                self.again = stats.payload_again as f64 / stats.payload_sent as f64;
                ep.close(now, conn, 0, "done");
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        (self.at.is_none() && self.conn.is_some()).then_some(Time::ZERO)
    }
    fn finished(&self) -> bool {
        self.over
    }
}

fn bytes() -> Vec<u8> {
    let mut data = vec![0; TOTAL];
    Rng::from_u64(9).fill(&mut data);
    data
}

/// Sends to a sink that nothing is refused to.
fn send(remote: SocketAddr, key: Receiver<u32>, change: impl FnOnce(&mut DriverOptions)) -> (UdpStats, f64) {
    let mut options = DriverOptions::new("127.0.0.1:0".parse().expect("an address"));
    options.lanes = Lanes::Count(1);
    change(&mut options);
    let mut driver = Driver::with(options).expect("a socket");
    let mut ep = Endpoint::new(config(2), Rng::from_u64(2)).expect("made");
    let connect = Connect {
        remote,
        server_name: "localhost".into(),
        trust: ServerTrust::FirstUse,
        token: None,
        options: None,
        iwarp: None,
    };
    let mut app = Source {
        connect: Some(connect),
        key,
        data: bytes(),
        at: None,
        conn: None,
        completed: 0,
        again: 0.0,
        over: false,
    };
    driver.run(&mut ep, &mut app).expect("the socket goes on");
    assert_eq!(app.completed, TOTAL / MESSAGE, "it ended early");
    (driver.socket_stats(), app.again)
}

/// A transfer of which the sender's system calls are judged; what was logged and counted. `None` where that cannot be.
fn transfer(
    judged: &[libc::c_long],
    judge: impl FnMut(&Call) -> Verdict + Send,
    change: impl FnOnce(&mut DriverOptions) + Send,
) -> Option<(UdpStats, String)> {
    let any = DriverOptions::new("127.0.0.1:0".parse().expect("an address"));
    transfer_to(any, judged, judge, change).map(|((stats, _), words)| (stats, words))
}

/// The same to a sink with these options; with the share of what was sent again.
fn transfer_to(
    sink: DriverOptions,
    judged: &[libc::c_long],
    judge: impl FnMut(&Call) -> Verdict + Send,
    change: impl FnOnce(&mut DriverOptions) + Send,
) -> Option<((UdpStats, f64), String)> {
    let mut serves = config(1);
    let mut s = ServerConfig::default();
    s.authority.keys = None;
    serves.server = Some(s);
    let memory = Staging::new(TOTAL).expect("memory");
    let (tx, rx) = channel();
    let mut driver = Driver::with(sink).expect("a socket");
    let (remote, waker) = (driver.local_addr(), driver.waker());
    let placed = memory.clone();
    std::thread::scope(|s| {
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        s.spawn(move || {
            let mut ep = Endpoint::new(serves, Rng::from_u64(1)).expect("made");
            let mut sink = Stoppable { sink: Sink { memory, key: tx, over: false }, stopped };
            driver.run(&mut ep, &mut sink).expect("the socket goes on");
        });
        let done = under(judged, judge, || send(remote, rx, change));
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        waker.wake();
        let mut got = vec![0; TOTAL];
        assert!(placed.read(0, &mut got));
        assert!(done.is_none() || got == bytes(), "what arrived differs from what was sent");
        done
    })
}

/// Ends also when there was nothing to receive.
struct Stoppable {
    sink: Sink,
    stopped: Arc<std::sync::atomic::AtomicBool>,
}

impl App for Stoppable {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        self.sink.drive(now, ep);
    }
    fn finished(&self) -> bool {
        self.sink.over || self.stopped.load(std::sync::atomic::Ordering::SeqCst)
    }
}

fn count(words: &str, what: &str) -> usize {
    words.matches(what).count()
}

#[test]
fn loss_of_segmentation_offload_falls_back_to_single_packets() {
    let mut calls = 0;
    // It works at first: the device is exchanged, or a tunnel comes in between.
    let judge = |c: &Call| {
        calls += 1;
        if calls > 60 && asks_for_segmentation(c) { Verdict::Refuse(libc::EIO) } else { Verdict::Allow }
    };
    let Some((stats, words)) = transfer(&SENDS, judge, |_| ()) else { return };
    assert!(stats.split > 0 && stats.unsendable == 0, "{stats:?}");
    assert_eq!(count(&words, "segmentation offload cannot be used"), 1, "{words}");
}

#[test]
fn kernel_without_gro_delivers_single_packets() {
    let judge = |c: &Call| {
        let gro = (c.args[1], c.args[2]) == (libc::SOL_UDP as u64, libc::UDP_GRO as u64);
        if gro { Verdict::Refuse(libc::ENOPROTOOPT) } else { Verdict::Allow }
    };
    let Some((_, words)) = transfer(&[libc::SYS_setsockopt], judge, |_| ()) else { return };
    assert_eq!(count(&words, "this kernel does not join arriving packets"), 1, "{words}");
}

#[test]
fn small_buffers_are_reported_with_the_setting_to_change() {
    let judge = |c: &Call| match (c.args[1] as i32, c.args[2] as i32) {
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE | libc::SO_SNDBUFFORCE) => Verdict::Refuse(libc::EPERM),
        // Capped: the kernel says that it worked.
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => Verdict::Pretend,
        _ => Verdict::Allow,
    };
    let Some((_, words)) = transfer(&[libc::SYS_setsockopt], judge, |_| ()) else { return };
    assert_eq!(count(&words, "sysctl -w net.core.rmem_max=16777216"), 1, "{words}");
}

#[test]
fn full_device_queue_delays_without_loss() {
    const STORM: usize = 200;
    let clock = Clock::new();
    let (mut calls, mut refused, mut began, mut ended) = (0, 0, Time::ZERO, Time::ZERO);
    let judge = |_: &Call| {
        calls += 1;
        if calls <= 60 || refused == STORM {
            return Verdict::Allow;
        }
        if refused == 0 {
            began = clock.now();
        }
        (refused, ended) = (refused + 1, clock.now());
        Verdict::Refuse(libc::ENOBUFS)
    };
    let Some((stats, words)) = transfer(&SENDS, judge, |_| ()) else { return };
    assert_eq!((refused, stats.unsendable), (STORM, 0), "{stats:?}");
    assert_eq!(count(&words, "no room for packets at times"), 1, "{words}");
    // Not a busy loop: half a millisecond lies between two attempts, less what a timer may come early by.
    let least = Span::from_micros(450) * (STORM as u64 - 1);
    assert!(ended.since(began) >= least, "{STORM} attempts within {}", ended.since(began));
}

#[test]
fn packets_dropped_by_the_local_firewall_are_retransmitted() {
    let (mut calls, mut refused) = (0, 0);
    let judge = |_: &Call| {
        calls += 1;
        let closed = calls > 60 && refused < 20;
        refused += i32::from(closed);
        if closed { Verdict::Refuse(libc::EPERM) } else { Verdict::Allow }
    };
    let Some((stats, words)) = transfer(&SENDS, judge, |_| ()) else { return };
    assert!(stats.unsendable > 0, "{stats:?}");
    assert_eq!(count(&words, "look at this machine's firewall"), 1, "{words}");
}

#[test]
fn tiny_send_buffer_delays_without_loss() {
    let small = |o: &mut DriverOptions| o.udp.send_buffer = 4_608;
    let Some((stats, _)) = transfer(&SENDS, |_| Verdict::Allow, small) else { return };
    assert_eq!(stats.unsendable, 0, "{stats:?}");
}

#[test]
fn receiver_with_a_small_buffer_gets_all_data() {
    let mut sink = DriverOptions::new("127.0.0.1:0".parse().expect("an address"));
    // What Linux grants where nobody has raised it: 208 KiB by its own accounting, less than two trains.
    (sink.udp.recv_buffer, sink.lanes) = (104 << 10, Lanes::Count(1));
    let done = transfer_to(sink, &SENDS, |_| Verdict::Allow, |_| ());
    let Some(((_, again), _)) = done else { return };
    // How much that is depends on how often this machine lets the receiver run.
    println!("{:.1} % sent again", again * 100.0);
}
