//! Memory of connections stays within the stated limits, and small in normal operation.

mod pair;

use base::Span;
use longhaul_endpoint::{ConnId, Endpoint};
use pair::{Link, Pair, complete, read, register, whole};
use verbs::{Data, SendOp, SendWr};

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
fn receiving_end_forgets_its_reports() {
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

/// Answers tell that requests arrived: ends that want no completions do not pay for a report with each message.
#[test]
fn unsignaled_messages_are_reported_together() {
    let reports = |signaled: bool| {
        let mut p = Pair::new();
        let Link { client: c, ci, si, .. } = p.linked();
        let to = register(&mut p.server, si.pd, vec![0; 8]);
        let before = p.client.stats(c).expect("open").feedback_received;
        for n in 0..100 {
            let op = SendOp::Write { rkey: to.rkey, offset: 0 };
            let wr = SendWr { signaled, ..SendWr::new(n, op, Data::Inline(vec![n as u8; 8].into())) };
            p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
            p.run(Span::from_micros(100));
        }
        p.run(Span::from_millis(200));
        assert_eq!(read(&mut p.server, &to, 8), vec![99; 8]);
        assert_eq!(used(&p.client, c, "send work requests"), 0, "all are known to have arrived");
        let stats = p.client.stats(c).expect("open");
        assert_eq!((stats.packets_lost, stats.probe_timeouts), (0, 0));
        let completions = std::iter::from_fn(|| p.client.adapter().poll_cq(ci.cq)).count();
        assert_eq!(completions, if signaled { 100 } else { 0 });
        stats.feedback_received - before
    };
    let (each, together) = (reports(true), reports(false));
    assert!(each >= 100 && together < 50, "{each} and {together} reports");
}

/// The one that somebody waits for may have left before it.
#[test]
fn unsignaled_message_after_a_signaled_one_requests_a_report() {
    let mut p = Pair::new();
    let Link { ci, si, .. } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; 8]);
    for signaled in [true, false] {
        let op = SendOp::Write { rkey: to.rkey, offset: 0 };
        let wr = SendWr { signaled, ..SendWr::new(7, op, Data::Inline(vec![1; 8].into())) };
        p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
    }
    // To and fro, and no interval of reports between.
    p.run(pair::DELAY * 2 + Span::from_micros(100));
    assert_eq!(complete(&mut p.client, &ci).wr_id, 7);
}
