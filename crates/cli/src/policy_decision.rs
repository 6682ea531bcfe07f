//! A policy's decision on a flow, as commands print it.

use base::Rate;
use endpoint::{ConnId, Endpoint, FlowReport};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a policy made of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDecision {
    /// What was asked.
    pub qos: String,
    /// The rule; empty when none matched.
    pub rule: String,
    /// Algorithm with parameters.
    pub algorithm: String,
    /// The class; empty where there is no policy.
    pub class: String,
    /// What it may count on, in bit/s.
    pub guarantee_bits_per_second: Option<u64>,
    /// What it may send at most, in bit/s.
    pub cap_bits_per_second: Option<u64>,
    /// Why so.
    pub reasons: Vec<String>,
}

impl PolicyDecision {
    /// Of a connection's own flow; `None` where there is no policy.
    pub fn of(ep: &Endpoint, conn: ConnId) -> Option<PolicyDecision> {
        let FlowReport { traffic, choice, class, .. } = ep.flows().into_iter().find(|f| f.conn == conn)?;
        let choice = choice?;
        Some(PolicyDecision {
            qos: traffic.qos.to_string(),
            rule: choice.rule,
            algorithm: choice.algorithm,
            class,
            guarantee_bits_per_second: choice.guarantee.map(Rate::bits_per_sec),
            cap_bits_per_second: choice.cap.map(Rate::bits_per_sec),
            reasons: choice.why,
        })
    }

    /// As a server told it.
    pub fn told(m: mover::Mapping) -> PolicyDecision {
        PolicyDecision {
            qos: m.qos,
            rule: m.rule,
            algorithm: m.algorithm,
            class: m.class,
            guarantee_bits_per_second: m.guarantee.map(Rate::bits_per_sec),
            cap_bits_per_second: m.cap.map(Rate::bits_per_sec),
            reasons: m.why,
        }
    }
}

impl fmt::Display for PolicyDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sent as {}: ", self.qos)?;
        if !self.class.is_empty() {
            write!(f, "class {}, ", self.class)?;
        }
        write!(f, "{}", self.algorithm)?;
        for (what, bits) in
            [("guaranteed", self.guarantee_bits_per_second), ("at most", self.cap_bits_per_second)]
        {
            if let Some(bits) = bits {
                write!(f, ", {what} {}", Rate::from_bits_per_sec(bits))?;
            }
        }
        if self.rule.is_empty() { Ok(()) } else { write!(f, " (rule \"{}\")", self.rule) }
    }
}
