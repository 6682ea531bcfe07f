//! Atomic operations between two endpoints: exactly once, whatever the path does.

mod pair;

use base::Span;
use longhaul_endpoint::{ConnInfo, Endpoint};
use pair::{Pair, closed, register};
use verbs::{AtomicOp, Mr, Opcode, SendOp, SendWr, Sge, Status};

/// What one end has to do and where.
struct Counting {
    /// The peer's region, whose first eight bytes are the counter.
    counter: Mr,
    /// Where its answers go, and the peer's counter is.
    own: Mr,
    posted: u64,
    results: Vec<u64>,
}

impl Counting {
    fn go_on(&mut self, e: &mut Endpoint, info: &ConnInfo, most: u64) {
        let qp = info.qps[0];
        while let Some(wc) = e.adapter().poll_cq(info.cq) {
            let want = (self.results.len() as u64, Status::Success, Opcode::FetchAdd, 8);
            assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), want);
            self.results.push(number(e, &self.own, 8 + wc.wr_id % 64 * 8));
        }
        while self.posted < most && self.posted < self.results.len() as u64 + 30 {
            let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
            let op = SendOp::Atomic { rkey: self.counter.rkey, offset: 0, op };
            let to = Sge { lkey: self.own.lkey, offset: 8 + self.posted % 64 * 8, len: 8 };
            e.adapter().post_send(qp, SendWr::new(self.posted, op, to)).expect("posted");
            self.posted += 1;
        }
    }
}

fn number(e: &mut Endpoint, mr: &Mr, at: u64) -> u64 {
    let mut bytes = [0; 8];
    e.adapter().read_mr(mr.id, at, &mut bytes).expect("read");
    u64::from_ne_bytes(bytes)
}

#[test]
fn counters_of_both_ends_are_exact_over_a_lossy_path() {
    const EACH: u64 = 2_000;
    for seed in 1..3 {
        let mut p = Pair::new();
        let l = p.linked();
        let there = register(&mut p.server, l.si.pd, vec![0; 1_000]);
        let here = register(&mut p.client, l.ci.pd, vec![0; 1_000]);
        let start = |counter, own| Counting { counter, own, posted: 0, results: Vec::new() };
        let (mut client, mut server) = (start(there, here), start(here, there));
        p.disturb(seed);
        for round in 0.. {
            client.go_on(&mut p.client, &l.ci, EACH);
            server.go_on(&mut p.server, &l.si, EACH);
            if [&client, &server].iter().all(|c| c.results.len() as u64 == EACH) {
                break;
            }
            assert!(round < 50_000, "seed {seed}: {} and {}", client.results.len(), server.results.len());
            p.run(Span::from_millis(5));
        }
        assert_eq!(number(&mut p.server, &there, 0), EACH);
        assert_eq!(number(&mut p.client, &here, 0), EACH);
        for c in [client, server] {
            assert!(c.results.into_iter().eq(0..EACH), "each result once, in order");
        }
        assert!(p.client.stats(l.client).expect("open").packets_lost > 100);
        assert_eq!(closed(&p.client_events()), None);
    }
}
