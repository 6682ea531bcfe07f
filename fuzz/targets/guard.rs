//! The guard around a program, with a program of the fuzzer's choice: whatever it answers, or fails to, nothing panics, the
//! decision can be obeyed at every moment, and once it was replaced it never decides again.
//!
//! The sandbox is the fuzzer: what each call comes to is read from the input. Everything else is the code
//! that runs in production.

#![no_main]

mod bytes;

#[path = "../../crates/programs/src/events.rs"]
#[allow(dead_code, unreachable_pub)]
mod events;
#[path = "../../crates/programs/src/guard.rs"]
#[allow(dead_code, unreachable_pub)]
mod guard;
#[path = "../../crates/programs/src/manifest.rs"]
#[allow(dead_code, unreachable_pub)]
mod manifest;
#[path = "../../crates/programs/src/words.rs"]
#[allow(dead_code, unreachable_pub)]
mod words;

/// What [`guard`] needs of a loaded program.
mod load {
    use crate::manifest::Manifest;
    use crate::sandbox::Compiled;
    use cc::Params;

    #[derive(Debug)]
    pub struct Program {
        pub name: &'static str,
        pub manifest: Manifest,
        pub compiled: Compiled,
        pub fallback: (&'static str, Params),
    }
}

/// Calls, with the fuzzer for a program.
mod sandbox {
    use crate::words::{NONE, PARAMS, SIGNALS};
    use std::cell::RefCell;

    #[derive(Debug)]
    pub struct Compiled(pub bool);

    impl Compiled {
        pub fn wants_sent(&self) -> bool {
            self.0
        }
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Stopped {
        Overran,
        Trapped(String),
        NoRoom,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Call {
        Init,
        Feedback,
        Event(u64),
        Sent,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Answer {
        pub rate: u64,
        pub cwnd: u64,
        pub quantum: u64,
        pub state: u64,
    }

    thread_local! {
        /// What the next calls come to.
        pub static SCRIPT: RefCell<Vec<Result<Answer, Stopped>>> = const { RefCell::new(Vec::new()) };
        /// Calls made.
        pub static CALLS: RefCell<u64> = const { RefCell::new(0) };
    }

    #[derive(Debug)]
    pub struct Running;

    impl Running {
        pub fn new(_: &Compiled, _: &[u64; PARAMS]) -> Result<Running, Stopped> {
            match SCRIPT.with_borrow_mut(Vec::pop) {
                Some(Err(Stopped::NoRoom)) => Err(Stopped::NoRoom),
                _ => Ok(Running),
            }
        }
        pub fn set_hops(&mut self, _: &[cc::Hop]) {}
        pub fn call(&mut self, _: Call, _: &[u64; SIGNALS]) -> Result<Answer, Stopped> {
            CALLS.with_borrow_mut(|n| *n += 1);
            let silent = Answer { rate: NONE, cwnd: 0, quantum: 0, state: 0 };
            SCRIPT.with_borrow_mut(Vec::pop).unwrap_or(Ok(silent))
        }
    }
}

use base::{Rate, Rng, Span, Time};
use bytes::Bytes;
use cc::{Algorithm, Event, Params, PathInfo, RateSample, SentTrain, Signals};
use guard::{Guarded, MAX_CWND, MAX_RATE};
use libfuzzer_sys::fuzz_target;
use sandbox::{Answer, CALLS, Compiled, SCRIPT, Stopped};
use std::sync::Arc;

// What the guard's messages name.
const CALL_BUDGET: u64 = 20_000;
const MAX_INSTANCES: usize = 4_096;
type Fault = guard::Fault;

/// Algorithms that may take its place, and what cannot.
const FALLBACKS: [&str; 6] = ["", "haul", "cubic:hystart=off", "reno", "unheard-of", "fixed:rate=3M"];

fn answers(b: &mut Bytes<'_>) -> Option<Vec<Result<Answer, Stopped>>> {
    let count = b.u8()?;
    (0..count)
        .map(|_| {
            let kind = b.u8()?;
            Some(match kind % 8 {
                0 => Err(Stopped::Overran),
                1 => Err(Stopped::Trapped("unreachable".into())),
                2 => Err(Stopped::NoRoom),
                3 => Ok(Answer { rate: u64::MAX, cwnd: 0, quantum: 0, state: 0 }),
                _ => Ok(Answer {
                    rate: b.number()?,
                    cwnd: b.number()?,
                    quantum: b.number()?,
                    state: kind.into(),
                }),
            })
        })
        .collect()
}

fn info(b: &mut Bytes<'_>) -> Option<PathInfo> {
    let known = b.number()?;
    Some(PathInfo {
        packet_bytes: 1 + b.number()? % 70_000,
        handshake_rtt: Some(Span::from_nanos(b.number()? % (1 << 40))).filter(|r| !r.is_zero()),
        ecn: known & 1 == 1,
        known_rate: (known & 2 == 2).then(|| Rate::from_bytes_per_sec(known % (1 << 50))),
        remembered: None,
    })
}

/// One thing that happens to a flow.
fn step(b: &mut Bytes<'_>, now: Time, flow: &mut Guarded) -> Option<()> {
    let kind = b.u8()?;
    match kind % 8 {
        0 => {
            let bytes = b.number()? % (1 << 40);
            flow.on_sent(&SentTrain {
                now,
                bytes,
                packets: 1 + bytes / 1_500,
                inflight: bytes,
                app_limited: kind & 8 == 8,
            });
        }
        1 => flow.set_fallback(FALLBACKS[usize::from(b.u8()?) % FALLBACKS.len()]),
        2 => flow.on_event(now, Event::ProbeTimeout { count: u32::from(b.u8()?) }),
        3 => flow.on_event(now, Event::PersistentCongestion),
        4 => flow.on_event(now, Event::PacketSize(1 + b.number()? % 70_000)),
        5 => flow.on_event(now, Event::PathChanged(info(b)?)),
        _ => {
            let (acked, rtt) = (b.number()? % (1 << 40), Span::from_nanos(1 + b.number()? % (1 << 36)));
            let rate = Rate::from_bytes_per_sec(b.number()? % (1 << 50));
            let sample = RateSample {
                rate,
                interval: rtt,
                delivered: acked,
                prior_delivered: 0,
                tx_inflight: acked,
                lost: 0,
                forgone: 0,
                app_limited: false,
            };
            flow.on_feedback(&Signals {
                now,
                acked,
                acked_packets: acked / 1_500,
                rtt: Some(rtt),
                srtt: rtt,
                min_rtt: rtt,
                rate: (kind & 8 == 8).then_some(sample),
                round_start: kind & 16 == 16,
                ..Signals::default()
            });
        }
    }
    Some(())
}

fn run(b: &mut Bytes<'_>) -> Option<()> {
    let (hears, path) = (b.u8()? & 1 == 1, info(b)?);
    let mut script = answers(b)?;
    script.reverse();
    SCRIPT.set(script);
    let manifest = manifest::Manifest::parse(b"abi\t1\t\nname\tx\t\nsummary\tx\t\nstates\ta,b\t\n").ok()?;
    let program = load::Program {
        name: "x",
        manifest,
        compiled: Compiled(hears),
        fallback: ("haul", Params::default()),
    };
    let mut flow = Guarded::new(Arc::new(program), &Params::default(), &path, Rng::from_u64(1));
    let mut now = Time::ZERO;
    loop {
        let (name, calls) = (flow.name(), CALLS.with_borrow(|n| *n));
        let over = b.u8().and_then(|gap| {
            now += Span::from_micros(u64::from(gap) * 97);
            step(b, now, &mut flow)
        });
        let d = flow.decision();
        assert!(d.rate > Rate::ZERO && d.cwnd > 0 && d.quantum > 0, "{d:?}");
        if flow.name() == "x" {
            assert!(d.rate <= MAX_RATE && d.cwnd <= MAX_CWND, "{d:?}");
        }
        if name != "x" {
            assert_ne!(flow.name(), "x", "what was replaced is back");
            assert_eq!(CALLS.with_borrow(|n| *n), calls, "what was replaced was called");
        }
        let _ = (flow.state(), flow.wants_dispersion());
        over?;
    }
}

fuzz_target!(|input: &[u8]| {
    run(&mut Bytes(input));
});
