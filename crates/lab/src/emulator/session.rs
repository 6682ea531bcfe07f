//! An emulator from its start to its end: what it is told, what it builds, and what it leaves behind (nothing).

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base::Span;
use serde::{Deserialize, Serialize};

use super::control::Answer;
use super::engine::{Device, Engine, Segments};
use super::record::{Header, LinkInfo, Record, VERSION};
use super::recorder::Recorder;
use super::trace::Trace;
use super::turn::{RecordedLink, Turns};
use crate::netns::{self, Addresses};
use crate::state::State;
use crate::sys;
use crate::topology::{TopologyError, TopologySpec};
use crate::tun::Tun;

/// What the emulator is told by its owner, in a file of the state folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Nodes and links.
    pub(crate) topology: TopologySpec,
    /// The seed of all randomness in the network.
    pub(crate) seed: u64,
    /// The length of an interval of the records.
    pub(crate) interval_ns: u64,
    /// The MTU of all devices.
    pub(crate) mtu: u16,
    /// Where records go.
    pub(crate) record: PathBuf,
}

/// Why an emulator ends before its owner says so.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The state folder.
    #[error("cannot read the state of the laboratory: {0}")]
    State(io::Error),
    /// The topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The network.
    #[error(transparent)]
    Network(#[from] netem::NetworkError),
    /// The system refused.
    #[error("cannot {0}: {1}")]
    System(&'static str, io::Error),
    /// Something that cannot be.
    #[error("{0}")]
    Other(String),
}

/// Builds, works until the owner ends or dies, and removes what was built.
pub(super) fn run(folder: &Path) -> Result<(), SessionError> {
    let state = State::open(folder).map_err(SessionError::State)?;
    let _held = state.hold_as_emulator().map_err(SessionError::State)?;
    let worked = work(&state);
    // The owner does the same when it is alive: whoever comes later finds nothing left to do.
    let removed = state.remove().map_err(|error| SessionError::System("remove the laboratory", error));
    worked.and(removed)
}

fn work(state: &State) -> Result<(), SessionError> {
    let setup: Setup = state.setup().map_err(SessionError::State)?;
    let mut turns = build(state, &setup)?;
    let fail = |error| SessionError::System("carry packets", error);
    reply(&Answer::Ready).map_err(fail)?;
    turns.run(&mut |answer| reply(answer)).map_err(fail)?;
    let summary = turns.summary().map_err(fail)?;
    // An owner that is dead does not hear it.
    let _ = reply(&Answer::Ended(summary.clone()));
    let finished = turns.recorder.finish(Record::Summary(summary));
    finished.map_err(|error| SessionError::System("write the records", error))
}

fn reply(answer: &Answer) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn build(state: &State, setup: &Setup) -> Result<Turns, SessionError> {
    let named = setup.topology.links()?;
    let configs: Vec<_> = named.iter().map(|(_, config)| config.clone()).collect();
    let nodes = setup.topology.nodes();
    let paths = setup.topology.devices_per_node();
    let routes = setup.topology.routes();
    let (network, ports, ids) = Segments::build(nodes.len() * paths, &configs, &routes, setup.seed)?;
    let mut devices = Vec::new();
    for (node, (name, namespace)) in state.namespaces().iter().enumerate() {
        netns::create(namespace).map_err(|error| SessionError::System("make a network namespace", error))?;
        for path in 0..paths {
            let addresses = Addresses::of(node as u8, path as u8);
            let tun = Tun::create(namespace, &format!("lh{path}"), addresses, setup.mtu)
                .map_err(|error| SessionError::System("make a TUN device", error))?;
            let addresses = [IpAddr::from(addresses.v4), IpAddr::from(addresses.v6)];
            devices.push(Device { tun, port: ports[devices.len()], node: name.clone(), addresses });
        }
    }
    let mut recorder = Recorder::create(&setup.record)
        .map_err(|error| SessionError::System("make the file of records", error))?;
    recorder.push(Record::Header(Header {
        version: VERSION,
        interval_ns: setup.interval_ns,
        seed: setup.seed,
        nodes,
        links: named
            .iter()
            .map(|(name, config)| LinkInfo { name: name.clone(), config: config.to_string() })
            .collect(),
    }));
    let traces = setup.topology.traces()?;
    let links = named.into_iter().zip(ids).zip(traces);
    let links = links.map(|(((name, config), id), lines)| {
        RecordedLink::new(name, id, config, lines.and_then(|lines| Trace::new(&lines)))
    });
    let links = links.collect();
    hurry();
    let engine = Engine::new(devices, network).map_err(SessionError::Other)?;
    Ok(Turns::new(engine, links, recorder, Span::from_nanos(setup.interval_ns)))
}

/// Timers without slack, and the CPU before all others: the network does not wait for those who use it. The thread that
/// writes records was started before and is not hurried.
fn hurry() {
    // A second choice for each: it is the lateness that tells in the end, and it is measured.
    if sys::run_first().is_err() {
        let _ = rustix::process::setpriority_process(None, -20);
    }
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
