//! Code points of the differentiated services, read from the packets of real sockets: what applications ask for, and what
//! policies say instead.

mod common;

use base::Span;
use common::{Bench, bytes, expect, json};
use lhio::poll::{Poller, Source};
use lhio::udp::{SendBatch, SendMeta, UdpOptions, UdpSocket};
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Bytes by the code point that they came with: of the client's packets, and of the server's.
type Seen = [BTreeMap<u8, u64>; 2];

/// Passes packets on between a client and a server, and looks at them.
struct PacketRecorder {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PacketRecorder {
    fn new(server: SocketAddr) -> PacketRecorder {
        let open = || UdpSocket::open(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let sides = [open(), open()];
        let (seen, stop) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let (address, shared, over) = (sides[0].local_addr(), seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || pass_on(&sides, server, &shared, &over));
        PacketRecorder { address, seen, stop, thread: Some(thread) }
    }

    /// What most bytes of the client, and of the server, came with.
    fn most(&self) -> [u8; 2] {
        let seen = self.seen.lock().unwrap();
        println!("{seen:?}");
        [0, 1].map(|i| *seen[i].iter().max_by_key(|(_, bytes)| **bytes).expect("packets").0)
    }
}

impl Drop for PacketRecorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

fn pass_on(sides: &[UdpSocket; 2], server: SocketAddr, seen: &Mutex<Seen>, over: &AtomicBool) {
    let mut poller = Poller::new().unwrap();
    let (mut came, mut leaves) = (sides[0].recv_batch(), SendBatch::new());
    let mut client = None;
    while !over.load(Ordering::SeqCst) {
        for side in [0, 1] {
            sides[side].recv(&mut came).unwrap();
            for (meta, bytes) in came.iter_mut() {
                *seen.lock().unwrap()[side].entry(meta.dscp).or_default() += bytes.len() as u64;
                if side == 0 {
                    client = Some(meta.remote);
                }
                let to = if side == 0 { Some(server) } else { client };
                let Some(dst) = to else { continue };
                leaves.slot().expect("room")[..bytes.len()].copy_from_slice(bytes);
                let on = SendMeta { dst, src: None, ecn: meta.ecn, dscp: 0, segment: meta.stride.max(1) };
                leaves.commit(on, bytes.len()).unwrap();
                // What a full buffer does not take is lost, as on any path.
                sides[1 - side].send(&mut leaves).unwrap();
                leaves.clear();
            }
        }
        let both = &mut [Source::readable(&sides[0]), Source::readable(&sides[1])];
        poller.wait(both, Some(Span::from_millis(20))).unwrap();
    }
}

const AF41: u8 = 34;
const CS1: u8 = 8;
const EF: u8 = 46;

#[test]
fn packets_carry_the_dscp_of_the_option_or_the_policy() {
    let b = Bench::new();
    fs::create_dir_all(b.path("srv")).unwrap();
    for folder in [b.path("srv/file"), b.path("file")] {
        fs::write(folder, bytes(7, 3_000_000)).unwrap();
    }
    let file = b.path("file");
    let (file, back) = (file.to_str().unwrap(), b.path("back"));
    let policy = b.path("policy.toml");
    fs::write(&policy, "[[rule]]\nname = \"calls\"\nmatch = { application = \"phone\" }\ndscp = \"EF\"\n")
        .unwrap();
    let policy = policy.to_str().unwrap();
    let server = b.serve("srv", &["--policy", policy]);
    let run = |args: &[&str], url: &dyn Fn(&PacketRecorder) -> Vec<String>| {
        let recorder = PacketRecorder::new(server.address.parse().unwrap());
        let how = ["--accept-new", "--discover", "off", "--json", "--all"];
        let mut c = b.client(&[args, &how].concat());
        let o = c.args(url(&recorder)).output().unwrap();
        expect(&o, 0);
        (recorder.most(), json(&o))
    };
    let put = |more: &[&str]| {
        let url = |t: &PacketRecorder| vec![file.to_owned(), format!("longhaul://{}/", t.address)];
        run(&[&["put"], more].concat(), &url).0
    };
    let get = |more: &[&str]| {
        let url = |t: &PacketRecorder| {
            vec![format!("longhaul://{}/file", t.address), back.to_str().unwrap().to_owned()]
        };
        run(&[&["get"], more].concat(), &url)
    };
    assert_eq!(put(&[]), [0, 0]);
    assert_eq!(put(&["--dscp", "AF41"])[0], AF41);
    assert_eq!(put(&["--dscp", "8"])[0], CS1);
    // The policy's word counts, at either end.
    assert_eq!(put(&["--app", "phone", "--policy", policy])[0], EF);
    let ([_, theirs], told) = get(&["--dscp", "CS1"]);
    assert_eq!((theirs, told["policy"]["class"].as_str()), (CS1, Some("scavenger")), "{told}");
    let ([_, theirs], told) = get(&["--app", "phone", "--dscp", "CS1"]);
    assert_eq!((theirs, told["policy"]["rule"].as_str()), (EF, Some("calls")), "{told}");
    assert_eq!(fs::read(&back).unwrap(), bytes(7, 3_000_000));
    let o = b.run(&["get", "--dscp", "AF1", "longhaul://127.0.0.1:1/x", "y"]);
    expect(&o, 2);
    assert!(common::stderr(&o).contains("0 to 63"), "{}", common::stderr(&o));
}
