//! Tests a flow over so short a path that each train has arrived before the pacer allows the next.

use base::{Rate, Rng, Span, Time};
use longhaul_cc::engine::{Flow, PathSignals};
use longhaul_cc::{PathInfo, registry};

const PACKET: u64 = 1_500;
/// The round trip, without the receiver's delay before it reports.
const DELAY: Span = Span::from_micros(80);
const RECEIVER: Span = Span::from_micros(40);

/// Sends trains for `lasts` over a path of this rate; returns the rate sent.
fn run(flow: &mut Flow, now: &mut Time, lasts: Span, path: Rate) -> Rate {
    let (began, mut bytes, mut free) = (*now, 0, *now);
    while now.since(began) < lasts {
        let token = match flow.poll_token(*now, PACKET, 44 * PACKET) {
            Ok(token) => token,
            Err(at) => {
                *now = at;
                continue;
            }
        };
        let len = token.bytes() / PACKET * PACKET;
        let mut train = flow.begin_train(*now, 0);
        let left = *now;
        flow.on_sent(left, &mut train, len, len / PACKET, false);
        // More data waits, so the pacer is asked for the next train at once.
        if let Ok(token) = flow.poll_token(left, PACKET, 44 * PACKET) {
            flow.refund(token);
        }
        let queue = free.since(left);
        free = free.max(left) + Span::from_secs_f64(len as f64 / path.bytes_per_sec() as f64);
        *now = free + DELAY + RECEIVER;
        flow.on_acked(len, Some(&train));
        let rtt = now.since(left);
        flow.finish(&PathSignals {
            now: *now,
            acked_at: *now - RECEIVER,
            rtt: Some(rtt),
            srtt: rtt,
            min_rtt: DELAY + RECEIVER + Span::from_micros(40),
            queue_delay: queue,
            dispersion: None,
            rtt_trend: 0,
            delay_trend: 0,
            host_delay: Span::ZERO,
        });
        bytes += len;
    }
    Rate::from_bytes_in(bytes, now.since(began))
}

fn flow(algorithm: &str) -> Flow {
    let info = PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(DELAY + RECEIVER),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let (definition, params) = registry::parse(algorithm).expect("an algorithm");
    let built = registry::create(definition.name, &params, &info, Rng::from_u64(1));
    Flow::new(built.expect("an algorithm"), None)
}

const FAST: Rate = Rate::from_mbit(10_000);
const RUN_TIME: Span = Span::from_millis(20);

/// Over loopback, a receiver that paused for a moment left flows at 0.4 Gbit/s for a quarter of a second, since they
/// had no samples of their delivery rate.
#[test]
fn low_rate_recovers_within_milliseconds_on_a_short_path() {
    for name in ["haul", "bbr"] {
        let (mut f, mut now) = (flow(name), Time::ZERO + Span::from_secs(1));
        let slow = run(&mut f, &mut now, Span::from_millis(500), Rate::from_mbit(400));
        assert!(slow < Rate::from_mbit(420), "{name}: {slow}");
        let _ = run(&mut f, &mut now, RUN_TIME, FAST);
        let then = run(&mut f, &mut now, RUN_TIME, FAST);
        // One train at a time with nothing else in flight, which is most of what these round trips allow.
        assert!(then > Rate::from_mbit(2_500), "{name}: {then}");
    }
}
