//! Tests paths whose round trip is far shorter than the interval of reports, as between hosts of one rack.

use base::{Span, Time};
use longhaul_sim::pair::{Load, Pair};
use netem::LinkConfig;
use transport::TransportOptions;

/// Mbit/s of payload over 10 Gbit/s and a round trip of 20 us within `lasts` from the first data.
fn goodput(cc: &str, lasts: Span) -> f64 {
    let path = LinkConfig::parse("rate=10gbit delay=10us queue=10bdp").expect("a description");
    let load = Load { message: 1_000_000, ahead: 64, messages: None };
    let options = TransportOptions { cc: cc.into(), max_packet: 1_500, ..TransportOptions::default() };
    let mut p = Pair::new(1, Span::from_micros(2), (path.clone(), path), options, load).expect("a pair");
    let received = |p: &mut Pair| {
        let conn = p.shared.borrow().receiver;
        conn.map_or(0, |c| p.world.inspect(p.receiver).stats(c).expect("statistics").payload_received)
    };
    let mut now = Time::ZERO;
    while received(&mut p) == 0 {
        now += Span::from_micros(10);
        p.run_until(now).expect("no failure");
    }
    p.run_until(now + lasts).expect("no failure");
    received(&mut p) as f64 * 8.0 / (lasts.as_secs_f64() * 1e6)
}

#[test]
fn sender_waiting_for_window_gets_reports_before_the_interval_ends() {
    // Before such senders requested reports, these had 2,400, 2,400, 3,360, 4,500, 4,810 and 2,150: a window per
    // interval.
    let least = [
        ("reno", 7_500.0),
        ("dctcp", 7_500.0),
        ("swift", 6_000.0),
        ("vegas", 7_000.0),
        ("copa", 7_500.0),
        ("timely", 3_000.0),
    ];
    for (cc, least) in least {
        let mbit = goodput(cc, Span::from_millis(1));
        assert!(mbit >= least, "{cc} made {mbit:.0} Mbit/s in its first millisecond, not {least}");
    }
}

#[test]
fn sender_not_limited_by_the_window_keeps_its_rate() {
    for (cc, least) in [("haul", 8_500.0), ("bbr", 9_000.0), ("bbr1", 8_500.0)] {
        let mbit = goodput(cc, Span::from_millis(5));
        assert!(mbit >= least, "{cc} made {mbit:.0} Mbit/s, not {least}");
    }
}
