//! One run between directly connected nodes without emulation: its flows one after the other, and their costs.

use super::Failure;
use super::flows::start;
use super::outcome::{FlowResult, RunResult};
use super::trial::{FIRST_PORT, Laboratory, POLL_INTERVAL, SENDER_EXIT_TIMEOUT, failure_of};
use crate::plan::{Cell, Flow, Lineup, Metric};
use crate::workload::outside::{self, EndReports, PathFacts};
use crate::{Lab, Options, TopologySpec, workload};
use base::Span;
use lhio::clock::Clock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;

/// The description of the network in results.
pub(super) const NETWORK_TEXT: &str =
    "two namespaces joined by virtual Ethernet, sender and receiver on a processor each";
/// The default MTU.
const MTU: u16 = 1500;
/// Interval of the emulator's records, as long as possible since it has nothing to do.
const RECORD_INTERVAL: Span = Span::from_secs(10);

/// Runs the flows of a line-up one after the other.
pub(super) fn run(bench: &Laboratory, cell: &Cell, peer: &Lineup, home: &Path) -> Result<RunResult, Failure> {
    let options =
        Options { record: Some(home.join("records.jsonl")), interval: RECORD_INTERVAL, ..Options::default() };
    let name = format!("run{}", std::process::id());
    let lab = Lab::up_with(&name, &TopologySpec::path("delay=0ms"), 1, &options).map_err(failure_of)?;
    let mtu = cell.topology.forward.mtu.and_then(|m| u16::try_from(m).ok()).unwrap_or(MTU);
    let [_, to] = lab.connect_directly(mtu).map_err(failure_of)?;
    let mut flows = Vec::new();
    for (i, flow) in peer.flows.iter().enumerate() {
        let at = SocketAddr::from((to, FIRST_PORT + i as u16));
        flows.push((flow, run_flow(bench, &lab, flow, at, &home.join(format!("flow{i}")))?));
    }
    lab.down().map_err(failure_of)?;
    let flows: Vec<(bool, FlowResult)> =
        flows.into_iter().map(|(f, s)| (f.ping_pong, result(f, s))).collect();
    Ok(RunResult {
        figures: figures(&flows),
        flows: flows.into_iter().map(|(_, f)| f).collect(),
        ..RunResult::default()
    })
}

/// Runs one flow.
fn run_flow(
    bench: &Laboratory,
    lab: &Lab,
    flow: &Flow,
    to: SocketAddr,
    home: &Path,
) -> Result<EndReports, Failure> {
    let path = PathFacts { full: 0, to, seed: 1, second: None };
    let job = outside::commands_of(flow, &bench.programs, path, home);
    let [sender, receiver] = processors();
    let mut running = on_processor(receiver, || start(lab, flow, to, job, home))?;
    running.await_receiver(&bench.settings.stop)?;
    let clock = Clock::new();
    let began = clock.now();
    on_processor(sender, || running.launch(lab))?;
    while running.is_running()? {
        if bench.settings.stop.load(Ordering::SeqCst) {
            return Err(Failure::Stopped);
        }
        if clock.now().since(began) > flow.duration + SENDER_EXIT_TIMEOUT {
            return Err(Failure::Discarded(format!(
                "{} was not done {SENDER_EXIT_TIMEOUT} after its time",
                flow.name
            )));
        }
        workload::sleep(POLL_INTERVAL);
    }
    running.finish(began).map(|(_, said)| said)
}

/// The processors for sender and receiver: the first two that are available, or the only one.
fn processors() -> [Option<usize>; 2] {
    let Ok(set) = sched_getaffinity(None) else { return [None; 2] };
    let mut usable = (0..CpuSet::MAX_CPU).filter(|i| set.is_set(*i));
    let first = usable.next();
    [first, usable.next().or(first)]
}

/// Runs `work` in a thread bound to a processor, so that programs it starts are bound, too. If binding is refused,
/// they run anywhere.
fn on_processor<T: Send>(processor: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
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

fn result(flow: &Flow, said: EndReports) -> FlowResult {
    // The receiver's clock starts with the first message.
    let s = said.receiver.as_ref().filter(|r| r.bytes > 0 && !flow.ping_pong).unwrap_or(&said.sender);
    let goodput = if s.seconds > 0.0 { s.bytes as f64 * 8.0 / s.seconds } else { 0.0 };
    FlowResult {
        name: flow.name.clone(),
        background: flow.background,
        bytes: s.bytes,
        seconds: s.seconds,
        goodput,
        cpu: said.cpu,
        message_rtts: said.sender.message_rtts,
        note: said.sender.note.clone(),
        ..FlowResult::default()
    }
}

/// The metrics of round trips, and of streams and their costs.
fn figures(flows: &[(bool, FlowResult)]) -> BTreeMap<Metric, f64> {
    let mut out = BTreeMap::new();
    for (is_ping_pong, f) in flows {
        if let Some([_, median, p99, _]) = f.message_rtts {
            out.extend([(Metric::MessageRtt, median), (Metric::MessageRttP99, p99)]);
        }
        if *is_ping_pong {
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
    fn figures_cover_round_trips_and_streams() {
        let pings = FlowResult { message_rtts: Some([1e-6, 2e-6, 3e-6, 4e-6]), ..FlowResult::default() };
        let streamed = FlowResult {
            bytes: 2_000_000_000,
            seconds: 4.0,
            goodput: 4e9,
            cpu: Some([1.0, 3.0]),
            ..FlowResult::default()
        };
        let f = figures(&[(true, pings), (false, streamed)]);
        let all = [
            (Metric::MessageRtt, 2e-6),
            (Metric::MessageRttP99, 3e-6),
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
    fn started_programs_stay_on_their_processor() {
        let [first, _] = processors();
        let of = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|i| set.is_set(*i)).collect::<Vec<_>>();
        let seen = on_processor(first, || sched_getaffinity(None).map(of).unwrap_or_default());
        assert_eq!(Some(seen), first.map(|f| vec![f]));
    }
}
