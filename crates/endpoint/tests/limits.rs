//! What connections hold in memory stays within the stated limits, and small while all is well.

mod pair;

use base::Span;
use longhaul_endpoint::{ConnId, Endpoint};
use pair::Pair;
use verbs::{Access, Memory, SendOp, SendWr, Sge};

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
    let (c, s) = p.connected();
    let (client, server) = (p.client.connection(c).expect("open"), p.server.connection(s).expect("open"));
    let (client, server) = (client.clone(), server.clone());
    let register = |e: &mut Endpoint, pd, len| {
        e.adapter().reg_mr(pd, Memory::zeroed(len), Access::ALL).map_err(|e| e.0).expect("registered")
    };
    let to = register(&mut p.server, server.pd, 100_000);
    let from = register(&mut p.client, client.pd, 100_000);
    let mut most = 0;
    for n in 0..200 {
        let sge = Sge { lkey: from.lkey, offset: 0, len: 100_000 };
        let wr = SendWr::new(n, SendOp::Write { rkey: to.rkey, offset: 0 }, sge);
        p.client.adapter().post_send(client.qps[0], wr).expect("posted");
        p.run(Span::from_millis(100));
        assert_eq!(p.client.adapter().poll_cq(client.cq).expect("done").wr_id, n);
        most = most.max(used(&p.server, s, "sent packets"));
        used(&p.client, c, "sent packets");
    }
    let sent = p.server.stats(s).expect("open").packets_sent;
    assert!(sent > 500 && most < 50, "{most} packets kept of {sent}");
    assert_eq!(used(&p.client, c, "ranges to repeat"), 0);
    assert_eq!(used(&p.client, c, "send work requests"), 0);
    assert!(p.server.own_usage().iter().all(|(_, g)| g.holds()));
}
