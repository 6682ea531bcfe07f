//! What connections hold in memory stays within the stated limits, and small while all is well.

mod pair;

use base::Span;
use longhaul_endpoint::{ConnId, Endpoint};
use pair::{Link, Pair, complete, register, whole};
use verbs::{SendOp, SendWr};

/// All limits of a connection hold; gives what is used of the one named.
fn used(e: &Endpoint, conn: ConnId, name: &str) -> u64 {
    let all = e.usage(conn).expect("known");
    for (name, g) in &all {
        assert!(g.holds(), "{name}: {} of {}", g.used, g.limit);
    }
    all.iter().find(|(n, _)| *n == name).expect("named").1.used
}

/// Found by reading: reports are not reported on, so an end that only receives kept every one it had sent.
#[test]
fn an_end_that_only_receives_forgets_its_reports() {
    let mut p = Pair::new();
    let Link { client: c, server: s, ci, si } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; 100_000]);
    let from = register(&mut p.client, ci.pd, vec![0; 100_000]);
    let mut most = 0;
    for n in 0..200 {
        let wr = SendWr::new(n, SendOp::Write { rkey: to.rkey, offset: 0 }, whole(&from, 100_000));
        p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
        p.run(Span::from_millis(100));
        assert_eq!(complete(&mut p.client, &ci).wr_id, n);
        most = most.max(used(&p.server, s, "sent packets"));
        used(&p.client, c, "sent packets");
    }
    let sent = p.server.stats(s).expect("open").packets_sent;
    assert!(sent > 200 && most < 50, "{most} packets kept of {sent}");
    assert_eq!(used(&p.client, c, "ranges to repeat"), 0);
    assert_eq!(used(&p.client, c, "send work requests"), 0);
    assert!(p.server.own_usage().iter().all(|(_, g)| g.holds()));
}
