//! Explains the treatment of a flow: as text for people and as a serializable value for programs.

use crate::policy::{Policy, join_names};
use crate::problem::quote;
use crate::region::FlowPoint;
use crate::spec::{Match, PathSpec, order_name};
use crate::units::{address_to_u128, show_dscp};
use crate::{check, tree};
use base::Rate;
use cc::platform::{Choice, PeerTerms, Policy as _, Traffic};
use core::fmt;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most unmatched rules that the text shows; the value lists all.
const MAX_RULES_SHOWN: usize = 8;

/// What a policy makes of a flow, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The flow.
    pub flow: FlowView,
    /// The rule that matched.
    pub rule: Option<RuleView>,
    /// The rules before the one that matched, in order, and why they did not match.
    pub unmatched_rules: Vec<UnmatchedRule>,
    /// Its algorithm.
    pub algorithm: AlgorithmView,
    /// The algorithm that is used where the first lacks what it needs.
    pub fallback: String,
    /// Its class.
    pub class: ClassView,
    /// Its weight among the flows of its class.
    pub weight: u32,
    /// Its guaranteed rate, in bit/s.
    pub guarantee_bits_per_second: Option<u64>,
    /// Its maximum rate, in bit/s.
    pub cap_bits_per_second: Option<u64>,
    /// The terms for the peer's algorithm; empty where the policy says nothing.
    pub peer: PeerView,
    /// Its share of the process's cap; `None` without a cap.
    pub share: Option<Share>,
    /// The reasons, a sentence each.
    pub reasons: Vec<String>,
}

/// A flow, in the words of policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowView {
    /// This end.
    pub source: String,
    /// The other end.
    pub destination: String,
    /// What carries it.
    pub carrier: &'static str,
    /// Name of its code point.
    pub dscp: String,
    /// The application's name.
    pub application: String,
    /// What the application asks for.
    pub qos: String,
    /// The algorithm that the application asks for; empty for none.
    pub requested_algorithm: String,
    /// `SO_PRIORITY` of a program's socket.
    pub priority: u32,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleView {
    /// Its name.
    pub name: String,
    /// Its line in the file.
    pub line: usize,
    /// Its conditions.
    pub conditions: BTreeMap<&'static str, String>,
}

/// A rule that did not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnmatchedRule {
    /// Its name.
    pub name: String,
    /// Its line in the file.
    pub line: usize,
    /// The conditions that do not hold, with what the flow has instead.
    pub reasons: Vec<String>,
}

/// An algorithm with parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlgorithmView {
    /// Its name.
    pub name: String,
    /// What it is; empty of a program that is not loaded here.
    pub summary: String,
    /// The parameters that were given; the others have their defaults.
    pub parameters: BTreeMap<String, String>,
}

/// A class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassView {
    /// Its name and those above it, the one below the host first, with slashes between.
    pub path: String,
    /// Its level; 0 is served first.
    pub level: u8,
    /// Its weight among its siblings.
    pub weight: u32,
    /// Its guaranteed rate, in bit/s.
    pub guarantee_bits_per_second: Option<u64>,
    /// Its maximum rate, in bit/s.
    pub cap_bits_per_second: Option<u64>,
    /// How its flows share its rate.
    pub order: &'static str,
}

/// The policy's terms for congestion control at the peer. `None` and empty fields are left to the application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerView {
    /// Whether this end's preference order has priority over the peer's preferences.
    pub prefer_own: Option<bool>,
    /// The only algorithms that the peer may request of this end, besides this end's own choice.
    pub allow: Option<Vec<String>>,
    /// The algorithms that the peer should send with, best first.
    pub preferred: Option<Vec<String>>,
    /// Whether the peer may send with nothing else.
    pub preferred_only: bool,
    /// The algorithms that the peer must not send with.
    pub refuse: Vec<String>,
}

impl PeerView {
    fn of(p: &PeerTerms) -> PeerView {
        let PeerTerms { prefer_own, allow, preferred, preferred_only, refuse } = p.clone();
        PeerView { prefer_own, allow, preferred, preferred_only, refuse }
    }

    /// One phrase for each field that is set.
    fn phrases(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(prefer_own) = self.prefer_own {
            out.push(format!(
                "its preferences go {} this end's order",
                if prefer_own { "behind" } else { "before" }
            ));
        }
        out.extend(self.allow.as_deref().map(|a| format!("may request {}", join_names(a))));
        let only = if self.preferred_only { "nothing but " } else { "" };
        out.extend(self.preferred.as_deref().map(|w| format!("is to send with {only}{}", join_names(w))));
        if !self.refuse.is_empty() {
            out.push(format!("must not send with {}", join_names(&self.refuse)));
        }
        out
    }
}

/// A flow's share of what the process may send, in bit/s, within the flow's own cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// What the process may send in all.
    pub process_bits_per_second: u64,
    /// What its class gets while every class has enough to send; the class's flows divide it.
    pub class_bits_per_second: u64,
    /// The flow's rate while no other flow sends.
    pub alone_bits_per_second: u64,
}

impl Policy {
    /// Explains what the policy does with a flow, and why.
    pub fn explain(&self, t: &Traffic) -> Explanation {
        let choice = self.choose(t);
        let matched = self.layers(t).rule;
        let point = self.point(t);
        let passed = &self.spec().rules[..matched.unwrap_or(self.spec().rules.len())];
        let unmatched_rules = passed.iter().map(|r| UnmatchedRule {
            name: r.name.value.clone(),
            line: r.name.line,
            reasons: self.unmet(&r.when, t, &point),
        });
        Explanation {
            flow: FlowView {
                source: t.local.to_string(),
                destination: t.remote.to_string(),
                carrier: t.carrier.name(),
                dscp: show_dscp(t.dscp),
                application: t.application.clone(),
                qos: t.qos.to_string(),
                requested_algorithm: t.asked.clone(),
                priority: t.priority,
            },
            rule: matched.map(|i| {
                let r = &self.spec().rules[i];
                let conditions = r.when.conditions().into_iter().collect();
                RuleView { name: r.name.value.clone(), line: r.name.line, conditions }
            }),
            unmatched_rules: unmatched_rules.collect(),
            algorithm: algorithm(&choice.algorithm),
            fallback: choice.fallback.clone(),
            class: self.class_view(choice.class),
            weight: choice.weight,
            guarantee_bits_per_second: choice.guarantee.map(Rate::bits_per_sec),
            cap_bits_per_second: choice.cap.map(Rate::bits_per_sec),
            peer: PeerView::of(&choice.peer),
            share: self.share(&choice),
            reasons: choice.why,
        }
    }

    fn class_view(&self, at: usize) -> ClassView {
        let c = &self.classes()[at];
        let mut path = c.name.clone();
        let mut up = c.parent;
        while let Some(p) = up {
            path = format!("{}/{path}", self.classes()[p].name);
            up = self.classes()[p].parent;
        }
        ClassView {
            path,
            level: c.level,
            weight: c.weight,
            guarantee_bits_per_second: c.guarantee.map(Rate::bits_per_sec),
            cap_bits_per_second: c.cap.map(Rate::bits_per_sec),
            order: order_name(c.order),
        }
    }

    fn share(&self, choice: &Choice) -> Option<Share> {
        let all = self.process_cap()?;
        let class = tree::shares(self.classes(), &self.classes_in_use(), all)[choice.class];
        let mut alone = choice.cap.map_or(all, |c| c.min(all));
        let mut up = Some(choice.class);
        while let Some(i) = up {
            alone = self.classes()[i].cap.map_or(alone, |c| c.min(alone));
            up = self.classes()[i].parent;
        }
        Some(Share {
            process_bits_per_second: all.bits_per_sec(),
            class_bits_per_second: class.bits_per_sec(),
            alone_bits_per_second: alone.bits_per_sec(),
        })
    }

    /// The conditions that do not hold, each with the flow's actual value.
    fn unmet(&self, when: &Match, t: &Traffic, point: &FlowPoint<'_>) -> Vec<String> {
        let has = |key: &str| match key {
            "source" => t.local.ip().to_string(),
            "destination" => t.remote.ip().to_string(),
            "source_port" => t.local.port().to_string(),
            "destination_port" => t.remote.port().to_string(),
            "carrier" => t.carrier.name().to_owned(),
            "dscp" => show_dscp(t.dscp),
            "qos" => self.qos_kind(t).name().to_owned(),
            "priority" => t.priority.to_string(),
            _ => quote(&t.application),
        };
        let mut out = Vec::new();
        for (key, values) in when.conditions() {
            let only = single_condition(when, key);
            let holds = check::regions(&only, &self.spec().paths).iter().any(|r| r.contains(point));
            match (holds, key) {
                (true, _) => {}
                (false, "path") => out.extend(when.path.iter().filter_map(|p| {
                    let path = self.spec().paths.iter().find(|s| s.name.value == p.value)?;
                    Some(self.why_not_on_path(path, t))
                })),
                (false, key) => out.push(format!("{key} is {}, not {values}", has(key))),
            }
        }
        out
    }

    /// Says why a flow is not on a path.
    fn why_not_on_path(&self, path: &PathSpec, t: &Traffic) -> String {
        let among = |list: &[crate::Prefix], ip| {
            let within = |p: &crate::Prefix| (p.range().0..=p.range().1).contains(&address_to_u128(ip));
            list.is_empty() || list.iter().any(within)
        };
        let name = quote(&path.name.value);
        if !among(&path.destination, t.remote.ip()) {
            return format!("it is not over path {name}: its destination is {}", t.remote.ip());
        }
        if !among(&path.source, t.local.ip()) {
            return format!("it is not over path {name}: its source is {}", t.local.ip());
        }
        let interface = path.interface.as_deref().unwrap_or_default();
        format!("it is not over path {name}: {} is not known as an address of {interface}", t.local.ip())
    }
}

/// A copy with only one of the conditions.
fn single_condition(when: &Match, key: &str) -> Match {
    let w = when.clone();
    match key {
        "source" => Match { source: w.source, ..Match::default() },
        "destination" => Match { destination: w.destination, ..Match::default() },
        "source_port" => Match { source_port: w.source_port, ..Match::default() },
        "destination_port" => Match { destination_port: w.destination_port, ..Match::default() },
        "carrier" => Match { carrier: w.carrier, ..Match::default() },
        "dscp" => Match { dscp: w.dscp, ..Match::default() },
        "path" => Match { path: w.path, ..Match::default() },
        "qos" => Match { qos: w.qos, ..Match::default() },
        "priority" => Match { priority: w.priority, ..Match::default() },
        _ => Match { application: w.application, ..Match::default() },
    }
}

fn algorithm(text: &str) -> AlgorithmView {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let pairs = rest.split(',').filter_map(|p| p.split_once('='));
    AlgorithmView {
        name: name.trim().to_owned(),
        summary: cc::registry::find(name.trim()).map_or(String::new(), |d| d.summary.to_owned()),
        parameters: pairs.map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned())).collect(),
    }
}

fn rate(bits: u64) -> Rate {
    Rate::from_bits_per_sec(bits)
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = &self.flow;
        write!(f, "flow        {} -> {} by {}", flow.source, flow.destination, flow.carrier)?;
        write!(f, ", dscp {}, qos {}", flow.dscp, flow.qos)?;
        if flow.priority != 0 {
            write!(f, ", priority {}", flow.priority)?;
        }
        if !flow.application.is_empty() {
            write!(f, ", application {}", quote(&flow.application))?;
        }
        match &self.rule {
            Some(r) => writeln!(f, "\nrule        {} (line {})", quote(&r.name), r.line)?,
            None => writeln!(f, "\nrule        none")?,
        }
        write!(f, "algorithm   {}", self.algorithm.name)?;
        for (k, v) in &self.algorithm.parameters {
            write!(f, " {k}={v}")?;
        }
        match self.algorithm.summary.as_str() {
            "" => writeln!(f, ": a program that is not loaded here")?,
            summary => writeln!(f, ": {summary}")?,
        }
        writeln!(f, "fallback    {}", self.fallback)?;
        let c = &self.class;
        write!(f, "class       {}: level {}, weight {}, {}", c.path, c.level, c.weight, c.order)?;
        show_limits(f, c.guarantee_bits_per_second, c.cap_bits_per_second)?;
        write!(f, "\nits part    weight {} in the class", self.weight)?;
        show_limits(f, self.guarantee_bits_per_second, self.cap_bits_per_second)?;
        match &self.share {
            Some(s) => writeln!(
                f,
                "\nshare       of {}: its class gets {} while every class sends, it {} alone",
                rate(s.process_bits_per_second),
                rate(s.class_bits_per_second),
                rate(s.alone_bits_per_second)
            )?,
            None => writeln!(f, "\nshare       the process has no cap: what its path gives")?,
        }
        let peer = self.peer.phrases();
        if !peer.is_empty() {
            writeln!(f, "other end   {}", peer.join("; "))?;
        }
        for (i, why) in self.reasons.iter().enumerate() {
            writeln!(f, "{}{why}", if i == 0 { "why         " } else { "            " })?;
        }
        for (i, p) in self.unmatched_rules.iter().take(MAX_RULES_SHOWN).enumerate() {
            let head = if i == 0 { "not matched " } else { "            " };
            writeln!(f, "{head}{} (line {}): {}", quote(&p.name), p.line, p.reasons.join("; "))?;
        }
        match self.unmatched_rules.len().saturating_sub(MAX_RULES_SHOWN) {
            0 => Ok(()),
            n => writeln!(f, "            and {n} more"),
        }
    }
}

fn show_limits(f: &mut fmt::Formatter<'_>, guarantee: Option<u64>, cap: Option<u64>) -> fmt::Result {
    if let Some(g) = guarantee {
        write!(f, ", guarantee {}", rate(g))?;
    }
    if let Some(c) = cap {
        write!(f, ", cap {}", rate(c))?;
    }
    Ok(())
}
