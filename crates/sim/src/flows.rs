//! Simulations of several senders and receivers on one network: shared bottlenecks, late flows, algorithms against
//! each other.

use crate::pair::{self, Load, TransferState, addr};
use crate::world::{NodeId, World};
use base::{Span, Time};
use endpoint::ConnectError;
use netem::{PortId, Topology};
use std::cell::RefCell;
use std::rc::Rc;
use transport::TransportOptions;

/// One sender and one receiver.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// The sender's port. A port takes any number of senders and receivers.
    pub from: PortId,
    /// The receiver's port.
    pub to: PortId,
    /// The options of both ends, including the sender's congestion control.
    pub options: TransportOptions,
    /// The amount to transfer.
    pub load: Load,
    /// When the sender connects.
    pub starts: Time,
}

/// A flow of a simulation.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The node that writes.
    pub sender: NodeId,
    /// The node whose memory is written.
    pub receiver: NodeId,
    /// The state shared by both ends.
    pub shared: Rc<RefCell<TransferState>>,
}

/// A simulation with flows.
#[derive(Debug)]
pub struct Flows {
    /// The simulated world.
    pub world: World,
    /// The flows, in the order of the plans.
    pub flows: Vec<Flow>,
}

impl Flows {
    /// A simulation of these flows.
    ///
    /// # Errors
    /// Too large a network, or options that the endpoints refuse.
    pub fn new(
        seed: u64,
        slack: Span,
        topology: &Topology,
        plans: &[FlowPlan],
    ) -> Result<Flows, ConnectError> {
        let world = World::with_topology(seed, slack, topology);
        let mut world = world.map_err(|e| ConnectError::Settings(e.to_string()))?;
        let mut flows = Vec::new();
        for (plan, host) in plans.iter().zip((1..).step_by(2)) {
            let (ports, hosts) = ((plan.from, plan.to), (addr(host), addr(host + 1)));
            flows.push(pair::add_flow(&mut world, ports, hosts, plan)?);
        }
        Ok(Flows { world, flows })
    }

    /// Runs until all flows of limited size are complete, or until `until`.
    ///
    /// # Errors
    /// A failure of an application.
    pub fn run_until(&mut self, until: Time) -> Result<(), String> {
        let boards: Vec<_> = self.flows.iter().map(|f| f.shared.clone()).collect();
        self.world.run_until_done(until, |_| {
            boards.iter().any(|b| b.borrow().failure.is_some())
                || boards.iter().all(|b| b.borrow().finished.is_some())
        });
        boards.iter().find_map(|b| b.borrow().failure.clone()).map_or(Ok(()), Err)
    }

    /// Payload bytes that have arrived in the receiver's memory.
    pub fn received(&mut self, flow: usize) -> u64 {
        let Some(f) = self.flows.get(flow) else { return 0 };
        let conn = f.shared.borrow().receiver;
        conn.and_then(|c| self.world.inspect(f.receiver).stats(c)).map_or(0, |s| s.payload_received)
    }
}
