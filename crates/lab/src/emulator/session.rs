//! One run of the emulator: reads its setup, builds the network, works, and cleans up.

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
use super::turn::{EventLoop, RecordedLink};
use crate::netns::{self, Addresses};
use crate::state::State;
use crate::sys;
use crate::topology::{TopologyError, TopologySpec};
use crate::tun::Tun;

/// The setup that the owner writes to the state folder.
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

/// Why an emulator ends before its owner tells it to.
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
    /// An internal error.
    #[error("{0}")]
    Other(String),
}

/// Builds the network, works until the owner ends or dies, and removes everything.
pub(super) fn run(folder: &Path) -> Result<(), SessionError> {
    let state = State::open(folder).map_err(SessionError::State)?;
    let _held = state.hold_as_emulator().map_err(SessionError::State)?;
    let worked = work(&state);
    // A living owner does the same; whichever comes later finds nothing left.
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
    // A dead owner does not read it.
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

fn build(state: &State, setup: &Setup) -> Result<EventLoop, SessionError> {
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
    raise_priority();
    let engine = Engine::new(devices, network).map_err(SessionError::Other)?;
    Ok(EventLoop::new(engine, links, recorder, Span::from_nanos(setup.interval_ns)))
}

/// Gives this thread timers without slack and real-time priority, since the network must not wait for its users. The
/// thread that writes records was started before and is not affected.
fn raise_priority() {
    // Failures are not errors: what matters is the lateness, which is measured.
    if sys::set_realtime_priority().is_err() {
        let _ = rustix::process::setpriority_process(None, -20);
    }
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}
