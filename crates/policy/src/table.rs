//! What a policy makes of connections of the kernel's TCP, as rows of a table: of those that fit a connection, the first
//! counts, and there always is one. Whoever can compare numbers and names can decide by it as the policy itself does.
//!
//! Of such a connection nothing is known that a program of Longhaul would say: it asks for no QoS, so that its code point
//! alone says what it is taken for, and what is done with it depends on the rule and on that word.

use crate::policy::{Policy, said};
use crate::region::{Name, Number, Region};
use crate::spec::Word;
use base::Rate;
use cc::platform::Carrier;
use std::collections::BTreeMap;

/// Numbers from the first to the last.
pub type Between = (u128, u128);

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of its rule in the policy; `None` of what no rule fits.
    pub rule: Option<usize>,
    /// What connections it is for.
    pub when: Conditions,
    /// What is done with them.
    pub then: Outcome,
}

/// What must hold, all of it. `None` is any; of several values, one must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// This end's address; IPv4 addresses stand where IPv6 maps them (RFC 4291, section 2.5.5.2).
    pub source: Option<Vec<Between>>,
    /// The other end's address.
    pub destination: Option<Vec<Between>>,
    /// This end's port.
    pub source_port: Option<Vec<Between>>,
    /// The other end's port.
    pub destination_port: Option<Vec<Between>>,
    /// `SO_PRIORITY` of the socket.
    pub priority: Option<Vec<Between>>,
    /// A bit for each code point that fits; never none.
    pub dscp: u64,
    /// Patterns of the program's name.
    pub application: Option<Vec<String>>,
}

/// What is done with a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// Algorithm with parameters.
    pub algorithm: String,
    /// What takes its place where it cannot be had.
    pub substitute: String,
    /// Whether an algorithm that the program itself named stays.
    pub may_choose: bool,
    /// What the connection may send at most.
    pub cap: Option<Rate>,
    /// What it was to count on.
    pub guarantee: Option<Rate>,
    /// Code point that its packets are to carry.
    pub dscp: Option<u8>,
}

impl Policy {
    /// The table. It counts while the interfaces that paths name have the addresses that they have now.
    pub fn table(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (i, regions) in self.regions().iter().enumerate() {
            regions.iter().for_each(|r| self.rows(Some(i), r, &mut rows));
        }
        self.rows(None, &Region::all(), &mut rows);
        rows
    }

    /// A row for each thing that can be done with a rule's connections, by their code points.
    fn rows(&self, rule: Option<usize>, region: &Region, rows: &mut Vec<Row>) {
        let holds = |which, n: u128| region.ranges(which).is_none_or(|r| r.holds(n));
        let spans = |which| region.ranges(which).map(|r| r.list().to_vec());
        if !holds(Number::Carrier, Carrier::Tcp as u128) {
            return;
        }
        let interfaces = region.names(Name::Interface);
        let source = match interfaces.patterns() {
            None => spans(Number::Source),
            Some(_) => {
                let own = self.addresses(interfaces);
                let both = region.ranges(Number::Source).map_or_else(|| own.clone(), |r| r.and(&own));
                Some(both.list().to_vec())
            }
        };
        if source.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
        for point in 0..64_u8 {
            let word = self.word_of_dscp(point);
            if holds(Number::Dscp, point.into()) && holds(Number::Qos, word as u128) {
                *outcomes.entry(self.outcome(rule, word)).or_default() |= 1 << point;
            }
        }
        let application = region.names(Name::Application).patterns();
        let when = Conditions {
            source,
            destination: spans(Number::Destination),
            source_port: spans(Number::SourcePort),
            destination_port: spans(Number::DestinationPort),
            priority: spans(Number::Priority),
            dscp: 0,
            application: application.map(|all| all.map(str::to_owned).collect()),
        };
        rows.extend(outcomes.into_iter().map(|(then, dscp)| Row {
            rule,
            when: Conditions { dscp, ..when.clone() },
            then,
        }));
    }

    fn outcome(&self, rule: Option<usize>, word: Word) -> Outcome {
        let l = self.layers_of(rule, word);
        let named = |s: Option<crate::policy::Said<&crate::At<String>>>| said(s).value.value.clone();
        Outcome {
            algorithm: named(self.said(&l, |t| t.algorithm.as_ref())),
            substitute: named(self.said(&l, |t| t.substitute.as_ref())),
            may_choose: self.may_choose(&l),
            cap: self.said(&l, |t| t.cap.as_ref()).map(|s| s.value.value),
            guarantee: self.said(&l, |t| t.guarantee.as_ref()).map(|s| s.value.value),
            dscp: self.said(&l, |t| t.dscp).map(|s| s.value),
        }
    }
}
