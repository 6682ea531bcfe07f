//! A policy as a flat table for connections of the kernel's TCP, so that code which only compares numbers and
//! names can apply it. The first matching row decides; some row always matches.
//!
//! Such a connection states no kind of QoS. Its code point alone determines the kind, and the treatment depends
//! on the rule and that kind.

use crate::policy::{Policy, always_set};
use crate::region::{NameField, NumericField, Region};
use crate::spec::QosKind;
use base::Rate;
use cc::platform::Carrier;
use std::collections::BTreeMap;

/// A closed interval of numbers.
pub type Interval = (u128, u128);

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index of its rule in the policy; `None` for connections that match no rule.
    pub rule: Option<usize>,
    /// The connections it applies to.
    pub when: Conditions,
    /// What is done with them.
    pub then: Outcome,
}

/// Conditions that must all hold. `None` allows any value; of several values, one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// This end's address; IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2).
    pub source: Option<Vec<Interval>>,
    /// The other end's address.
    pub destination: Option<Vec<Interval>>,
    /// This end's port.
    pub source_port: Option<Vec<Interval>>,
    /// The other end's port.
    pub destination_port: Option<Vec<Interval>>,
    /// `SO_PRIORITY` of the socket.
    pub priority: Option<Vec<Interval>>,
    /// One bit for each code point that matches; at least one is set.
    pub dscp: u64,
    /// Patterns of the program's name.
    pub application: Option<Vec<String>>,
}

/// What is done with a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// Algorithm with parameters.
    pub algorithm: String,
    /// The fallback where the algorithm is not available.
    pub fallback: String,
    /// Whether an algorithm that the program chose itself is kept.
    pub allow_override: bool,
    /// The maximum rate of the connection.
    pub cap: Option<Rate>,
    /// The guaranteed rate of the connection.
    pub guarantee: Option<Rate>,
    /// Code point that its packets are to carry.
    pub dscp: Option<u8>,
}

impl Policy {
    /// The table, valid while the interfaces that paths name keep their present addresses.
    pub fn table(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (i, regions) in self.regions().iter().enumerate() {
            regions.iter().for_each(|r| self.rows(Some(i), r, &mut rows));
        }
        self.rows(None, &Region::all(), &mut rows);
        rows
    }

    /// Adds one row for each treatment that a rule's connections can get, depending on their code points.
    fn rows(&self, rule: Option<usize>, region: &Region, rows: &mut Vec<Row>) {
        let holds = |which, n: u128| region.ranges(which).is_none_or(|r| r.contains(n));
        let spans = |which| region.ranges(which).map(|r| r.list().to_vec());
        if !holds(NumericField::Carrier, Carrier::Tcp as u128) {
            return;
        }
        let interfaces = region.names(NameField::Interface);
        let source = match interfaces.patterns() {
            None => spans(NumericField::Source),
            Some(_) => {
                let own = self.addresses(interfaces);
                let both =
                    region.ranges(NumericField::Source).map_or_else(|| own.clone(), |r| r.intersection(&own));
                Some(both.list().to_vec())
            }
        };
        if source.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
        for point in 0..64_u8 {
            let word = self.qos_kind_of_dscp(point);
            if holds(NumericField::Dscp, point.into()) && holds(NumericField::Qos, word as u128) {
                *outcomes.entry(self.outcome(rule, word)).or_default() |= 1 << point;
            }
        }
        let application = region.names(NameField::Application).patterns();
        let when = Conditions {
            source,
            destination: spans(NumericField::Destination),
            source_port: spans(NumericField::SourcePort),
            destination_port: spans(NumericField::DestinationPort),
            priority: spans(NumericField::Priority),
            dscp: 0,
            application: application.map(|all| all.map(str::to_owned).collect()),
        };
        rows.extend(outcomes.into_iter().map(|(then, dscp)| Row {
            rule,
            when: Conditions { dscp, ..when.clone() },
            then,
        }));
    }

    fn outcome(&self, rule: Option<usize>, word: QosKind) -> Outcome {
        let l = self.layers_of(rule, word);
        let named =
            |s: Option<crate::policy::Setting<&crate::Located<String>>>| always_set(s).value.value.clone();
        Outcome {
            algorithm: named(self.setting(&l, |t| t.algorithm.as_ref())),
            fallback: named(self.setting(&l, |t| t.fallback.as_ref())),
            allow_override: self.allow_override(&l),
            cap: self.setting(&l, |t| t.cap.as_ref()).map(|s| s.value.value),
            guarantee: self.setting(&l, |t| t.guarantee.as_ref()).map(|s| s.value.value),
            dscp: self.setting(&l, |t| t.dscp).map(|s| s.value),
        }
    }
}
