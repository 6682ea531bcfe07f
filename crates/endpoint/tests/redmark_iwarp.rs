//! The attacks of ReDMArk (see `redmark.rs`) by iWARP.

mod pair;
mod streams;

use longhaul_endpoint::{CloseReason, Event};
use pair::{config, read, register};
use streams::{Net, both, by, server};
use verbs::{Access, AtomicOp, SendOp, SendWr, Sge, WindowRange};

/// ReDMArk's unauthorised memory access, by iWARP: the key is another client's own, of a region or of a window.
#[test]
fn rkey_of_another_client_grants_no_access() {
    for tls in [false, true] {
        let mut net = Net::new(config(2), server(&[2], both()));
        net.connect(1, by(tls));
        net.run();
        let [victim] = net.incoming()[..] else { panic!("{:?}", net.events) };
        let vi = net.ends[1].connection(victim).cloned().expect("open");
        let theirs = register(&mut net.ends[1], vi.pd, vec![0xa5; 4096]);
        let a = net.ends[1].adapter();
        let mw = a.alloc_mw(vi.pd).expect("room");
        let range = WindowRange { mr: theirs.id, offset: 0, len: 4096, access: Access::REMOTE_WRITE };
        let window = a.bind_mw(vi.qps[0], mw, range).expect("bound");
        let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let rkey = theirs.rkey;
        for op in [
            SendOp::Write { rkey, offset: 0 },
            SendOp::Write { rkey: window, offset: 0 },
            SendOp::Read { rkey, offset: 0 },
            SendOp::Atomic { rkey, offset: 0, op: add },
        ] {
            let c = net.connect(1, by(tls));
            net.run();
            let ci = net.ends[0].connection(c).cloned().expect("open");
            let own = register(&mut net.ends[0], ci.pd, vec![0x66; 8]);
            let sge = Sge { lkey: own.lkey, offset: 0, len: 8 };
            net.events[0].clear();
            net.ends[0].adapter().post_send(ci.qps[0], SendWr::new(1, op, sge)).expect("posted");
            net.run();
            // It ends the attacker's connection (RFC 5040, section 7), and no other.
            let Some(CloseReason::Stream(text)) = net.closed(0) else {
                panic!("{op:?}: {:?}", net.events[0])
            };
            assert!(text.contains("STag not associated"), "{text}");
            assert_eq!(read(&mut net.ends[0], &own, 8), [0x66; 8], "{op:?} read what is not its own");
            assert_eq!(read(&mut net.ends[1], &theirs, 4096), vec![0xa5; 4096], "{op:?} changed it");
        }
        let over = |e: &Event| matches!(e, Event::Closed { conn, .. } if *conn == victim);
        assert!(!net.events[1].iter().any(over), "TLS: {tls}");
    }
}

#[test]
fn one_client_cannot_take_all_queue_pairs() {
    let mut c = server(&[2], both());
    c.limits.qps = 8;
    let mut net = Net::new(config(2), c);
    for _ in 0..8 {
        net.connect(1, by(false));
        net.run();
    }
    assert_eq!(net.incoming().len(), 4, "half of all");
    // Who comes from elsewhere is let in, and what is given back may be had again.
    net.from = "198.51.100.9:5".parse().expect("address");
    net.connect(1, by(false));
    net.run();
    assert_eq!(net.incoming().len(), 5);
    net.from = "192.0.2.1:1000".parse().expect("address");
    for conn in net.incoming()[..4].to_vec() {
        net.ends[1].close(net.now, conn, 0, "");
        net.run();
        net.ends[1].release(conn).expect("released");
    }
    net.connect(1, by(false));
    net.run();
    assert_eq!(net.incoming().len(), 6);
}
