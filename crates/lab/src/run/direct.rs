//! One run between nodes with nothing emulated between them: its flows one after the other, and what they cost.

use super::Failure;
use super::flows::start;
use super::outcome::{FlowResult, RunResult};
use super::trial::{FIRST_PORT, GRACE, LOOK, Laboratory, judge};
use crate::plan::{Cell, Flow, Lineup, Metric};
use crate::workload::outside::{self, Path0, Said};
use crate::{Lab, Options, TopologySpec, workload};
use base::Span;
use lhio::clock::Clock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

/// What results say of the network.
pub(super) const WORDS: &str =
    "two namespaces joined by virtual Ethernet, sender and receiver on a processor each";
/// The MTU when the plan does not say another.
const MTU: u16 = 1500;
/// The emulator has nothing to do: it looks as rarely as it can.
const IDLE: Span = Span::from_secs(10);

/// Runs the flows of a line-up one after the other.
pub(super) fn run(bench: &Laboratory, cell: &Cell, peer: &Lineup, home: &Path) -> Result<RunResult, Failure> {
    let options = Options { record: Some(home.join("records.jsonl")), interval: IDLE, ..Options::default() };
    let name = format!("run{}", std::process::id());
    let lab = Lab::up_with(&name, &TopologySpec::path("delay=0ms"), 1, &options).map_err(judge)?;
    let mtu = cell.topology.there.mtu.and_then(|m| u16::try_from(m).ok()).unwrap_or(MTU);
    let [_, to] = lab.join(mtu).map_err(judge)?;
    let mut flows = Vec::new();
    for (i, flow) in peer.flows.iter().enumerate() {
        let at = SocketAddr::from((to, FIRST_PORT + i as u16));
        flows.push((flow, one(bench, &lab, flow, at, &home.join(format!("flow{i}")))?));
    }
    lab.down().map_err(judge)?;
    let flows: Vec<(bool, FlowResult)> = flows.into_iter().map(|(f, s)| (f.trips, result(f, s))).collect();
    Ok(RunResult {
        figures: figures(&flows),
        flows: flows.into_iter().map(|(_, f)| f).collect(),
        ..RunResult::default()
    })
}

/// One flow from its start to its end.
fn one(bench: &Laboratory, lab: &Lab, flow: &Flow, to: SocketAddr, home: &Path) -> Result<Said, Failure> {
    let path = Path0 { full: 0, to, seed: 1, second: None };
    let job = outside::job(flow, &bench.programs, path, home);
    let [sender, receiver] = processors();
    let mut running = on(receiver, || start(lab, flow, to, job, home))?;
    running.await_receiver(&bench.settings.stop)?;
    let clock = Clock::new();
    let began = clock.now();
    on(sender, || running.launch(lab))?;
    while running.is_running()? {
        if bench.settings.stop.load(Ordering::SeqCst) {
            return Err(Failure::Stopped);
        }
        if clock.now().since(began) > flow.duration + GRACE {
            return Err(Failure::Spoiled(format!("{} was not done {GRACE} after its time", flow.name)));
        }
        workload::rest(LOOK);
    }
    running.finish(began).map(|(_, said)| said)
}

/// The processors of sender and receiver: the first two that may be used, or the only one.
fn processors() -> [Option<usize>; 2] {
    let Ok(set) = sched_getaffinity(None) else { return [None; 2] };
    let mut usable = (0..CpuSet::MAX_CPU).filter(|i| set.is_set(*i));
    let first = usable.next();
    [first, usable.next().or(first)]
}

/// Does something in a thread that is bound to a processor: programs that it starts are so too. Where that is refused, they
/// run where the system likes.
fn on<T: Send>(processor: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|s| {
        let done = s.spawn(|| {
            let mut set = CpuSet::new();
            if let Some(i) = processor {
                set.set(i);
                let _ = sched_setaffinity(None, &set);
            }
            work()
        });
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn result(flow: &Flow, said: Said) -> FlowResult {
    // The receiver's own clock begins with the first message.
    let s = said.receiver.as_ref().filter(|r| r.bytes > 0 && !flow.trips).unwrap_or(&said.sender);
    let goodput = if s.seconds > 0.0 { s.bytes as f64 * 8.0 / s.seconds } else { 0.0 };
    FlowResult {
        name: flow.name.clone(),
        background: flow.background,
        bytes: s.bytes,
        seconds: s.seconds,
        goodput,
        cpu: said.cpu,
        trips: said.sender.trips,
        note: said.sender.note.clone(),
        ..FlowResult::default()
    }
}

/// What round trips took, and what messages one behind the other came to and cost.
fn figures(flows: &[(bool, FlowResult)]) -> BTreeMap<Metric, f64> {
    let mut out = BTreeMap::new();
    for (trips, f) in flows {
        if let Some([_, median, p99, _]) = f.trips {
            out.extend([(Metric::Trip, median), (Metric::TripP99, p99)]);
        }
        if *trips {
            continue;
        }
        out.insert(Metric::Goodput, f.goodput);
        let Some([send, receive]) = f.cpu.filter(|_| f.bytes > 0 && f.seconds > 0.0) else { continue };
        let gigabytes = f.bytes as f64 / 1e9;
        out.extend([
            (Metric::Cpu, (send + receive) / gigabytes),
            (Metric::CpuSend, send / gigabytes),
            (Metric::CpuReceive, receive / gigabytes),
            (Metric::LoadSend, send / f.seconds),
            (Metric::LoadReceive, receive / f.seconds),
        ]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_round_trips_and_of_what_was_streamed() {
        let trips = FlowResult { trips: Some([1e-6, 2e-6, 3e-6, 4e-6]), ..FlowResult::default() };
        let streamed = FlowResult {
            bytes: 2_000_000_000,
            seconds: 4.0,
            goodput: 4e9,
            cpu: Some([1.0, 3.0]),
            ..FlowResult::default()
        };
        let f = figures(&[(true, trips), (false, streamed)]);
        let all = [
            (Metric::Trip, 2e-6),
            (Metric::TripP99, 3e-6),
            (Metric::Goodput, 4e9),
            (Metric::Cpu, 2.0),
            (Metric::CpuSend, 0.5),
            (Metric::CpuReceive, 1.5),
            (Metric::LoadSend, 0.25),
            (Metric::LoadReceive, 0.75),
        ];
        assert_eq!(f, BTreeMap::from(all));
        assert!(figures(&[]).is_empty());
    }

    #[test]
    fn what_is_started_stays_on_its_processor() {
        let [first, _] = processors();
        let of = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|i| set.is_set(*i)).collect::<Vec<_>>();
        let seen = on(first, || sched_getaffinity(None).map(of).unwrap_or_default());
        assert_eq!(Some(seen), first.map(|f| vec![f]));
    }
}
