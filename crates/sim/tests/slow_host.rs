//! Tests a receiver whose host is slower than the path: packets wait there, and none is lost.

use base::{Span, Time};
use longhaul_sim::pair::{Load, Pair};
use longhaul_sim::world::HostSpeed;
use netem::LinkConfig;
use transport::TransportOptions;
use wire::Module;

/// The host takes 50 Mbit/s and keeps 1 MiB.
const HOST: HostSpeed = HostSpeed { rate: base::Rate::from_bytes_per_sec(6_250_000), room: 1 << 20 };

#[test]
fn packets_waiting_in_a_slow_host_are_not_sent_again() {
    // Half of all packets were sent twice, by every algorithm: one that jitter had put behind the others waits a hundred
    // milliseconds with them, and was lost after little more than a round trip.
    for cc in ["haul", "bbr", "cubic"] {
        for seed in 1..=3 {
            let path = LinkConfig::parse("rate=250mbit delay=25ms queue=1bdp jitter=10ms order=free");
            let path = path.expect("a link");
            let options = TransportOptions {
                cc: cc.into(),
                max_packet: 1_500,
                module: Module::Crc32c,
                ..TransportOptions::default()
            };
            let load = Load { message: 1 << 20, ahead: 128, messages: None };
            let mut p =
                Pair::new(seed, Span::from_micros(20), (path.clone(), path), options, load).expect("a pair");
            p.world.set_host(p.receiver, Some(HOST));
            p.run_until(Time::ZERO + Span::from_secs(8)).expect("no failure");
            let conn = p.shared.borrow().receiver.expect("connected");
            let received = p.world.inspect(p.receiver).stats(conn).expect("statistics").payload_received;
            let conn = p.shared.borrow().sender.expect("connected");
            let sent = p.world.inspect(p.sender).stats(conn).expect("statistics");
            let mbit = received as f64 * 8.0 / 8e6;
            assert!(mbit >= 40.0, "{cc}, seed {seed}: {mbit:.1} Mbit/s of the host's 50");
            let again = sent.packets_spurious as f64 / sent.packets_sent as f64;
            assert!(again < 0.06, "{cc}, seed {seed}: {again:.3} sent again in vain");
        }
    }
}
