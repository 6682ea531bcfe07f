//! Several senders and receivers on one network: shared bottlenecks, late-comers, algorithms against each other.

use crate::pair::{self, Load, Shared, addr};
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
    /// Where the sender is plugged in. A port takes any number of senders and receivers.
    pub from: PortId,
    /// Where the receiver is plugged in.
    pub to: PortId,
    /// Of both ends; the sender's congestion control is in there.
    pub options: TransportOptions,
    /// What is transferred.
    pub load: Load,
    /// When the sender connects.
    pub starts: Time,
}

/// A flow of a world.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Who writes.
    pub sender: NodeId,
    /// Whose memory is written.
    pub receiver: NodeId,
    /// What both know.
    pub board: Rc<RefCell<Shared>>,
}

/// A world with flows in it.
#[derive(Debug)]
pub struct Flows {
    /// The world they are in.
    pub world: World,
    /// In the order of the plans.
    pub flows: Vec<Flow>,
}

impl Flows {
    /// A world with these flows.
    ///
    /// # Errors
    /// A network that is too large; options that the endpoints refuse.
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
            flows.push(pair::start(&mut world, ports, hosts, plan)?);
        }
        Ok(Flows { world, flows })
    }

    /// Lets time pass until all flows with an end have come to it, or until `until`.
    ///
    /// # Errors
    /// What an application could not go on with.
    pub fn run_until(&mut self, until: Time) -> Result<(), String> {
        let boards: Vec<_> = self.flows.iter().map(|f| f.board.clone()).collect();
        self.world.run_until_done(until, |_| {
            boards.iter().any(|b| b.borrow().failure.is_some())
                || boards.iter().all(|b| b.borrow().finished.is_some())
        });
        boards.iter().find_map(|b| b.borrow().failure.clone()).map_or(Ok(()), Err)
    }

    /// Payload bytes that the receiver of a flow has in its memory.
    pub fn received(&mut self, flow: usize) -> u64 {
        let Some(f) = self.flows.get(flow) else { return 0 };
        let conn = f.board.borrow().receiver;
        conn.and_then(|c| self.world.inspect(f.receiver).stats(c)).map_or(0, |s| s.payload_received)
    }
}
