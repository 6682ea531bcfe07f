//! A policy as it is written: plain values, with the line number of each that later checks may find wrong.

use crate::units::{self, Ports, Prefix, Priorities};
use base::Rate;
use cc::platform::{Carrier, Order, Qos};
use core::fmt;
use std::collections::BTreeMap;

/// Most bytes of a policy file.
pub const MAX_FILE: usize = 1 << 20;
/// Most rules of a policy.
pub const MAX_RULES: usize = 4_096;
/// Most classes of a policy, the built-in ones not counted.
pub const MAX_CLASSES: usize = 256;
/// Most named paths of a policy.
pub const MAX_PATHS: usize = 256;
/// Most values of one condition.
pub const MAX_VALUES: usize = 256;
/// Most classes from one directly below the host down to the deepest.
pub const MAX_DEPTH: usize = 8;
/// Most names of algorithms in one list of [`Peer`]: two such lists are what a handshake carries.
pub const MAX_NAMES: usize = 16;
/// Longest name or pattern, in characters.
pub const MAX_NAME: usize = 64;
/// Greatest weight of a class or flow; systemd's CPUWeight and IOWeight have the same range.
pub const MAX_WEIGHT: u32 = 10_000;
/// Weight of what has none.
pub const DEFAULT_WEIGHT: u32 = 100;
/// Lowest level of a class; 0 is the highest.
pub const MAX_LEVEL: u8 = 7;
/// Level of a class that has none.
pub const DEFAULT_LEVEL: u8 = 2;

/// A value and the line it is written on. Equality ignores the line.
#[derive(Clone, Debug)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The line, from 1.
    pub line: usize,
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Located<T>) -> bool {
        self.value == other.value
    }
}
impl<T: Eq> Eq for Located<T> {}

/// The kind of service that an application asks for: [`Qos`] without its rates and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosKind {
    /// [`Qos::Ordinary`].
    Ordinary,
    /// [`Qos::Latency`].
    Latency,
    /// [`Qos::Bulk`].
    Bulk,
    /// [`Qos::Deadline`].
    Deadline,
    /// [`Qos::Guaranteed`].
    Guaranteed,
    /// [`Qos::Target`].
    Target,
    /// [`Qos::Scavenger`].
    Scavenger,
}

impl QosKind {
    /// All of them.
    pub const ALL: [QosKind; 7] = [
        QosKind::Ordinary,
        QosKind::Latency,
        QosKind::Bulk,
        QosKind::Deadline,
        QosKind::Guaranteed,
        QosKind::Target,
        QosKind::Scavenger,
    ];
    /// The kinds that carry no rate or time, which a policy can assign to flows that do not ask for them.
    pub const WITHOUT_VALUE: [QosKind; 4] =
        [QosKind::Ordinary, QosKind::Latency, QosKind::Bulk, QosKind::Scavenger];

    /// The kind's name in policies and in requests of applications.
    pub const fn name(self) -> &'static str {
        match self {
            QosKind::Ordinary => "ordinary",
            QosKind::Latency => "latency",
            QosKind::Bulk => "bulk",
            QosKind::Deadline => "deadline",
            QosKind::Guaranteed => "guaranteed",
            QosKind::Target => "target",
            QosKind::Scavenger => "scavenger",
        }
    }

    /// The kind of a request.
    pub const fn of(qos: &Qos) -> QosKind {
        match qos {
            Qos::Ordinary => QosKind::Ordinary,
            Qos::Latency => QosKind::Latency,
            Qos::Bulk => QosKind::Bulk,
            Qos::Deadline { .. } => QosKind::Deadline,
            Qos::Guaranteed(_) => QosKind::Guaranteed,
            Qos::Target(_) => QosKind::Target,
            Qos::Scavenger => QosKind::Scavenger,
        }
    }
}

/// What each process that has the policy may send and divides among its classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The maximum rate of all flows of the process together.
    pub cap: Option<Located<Rate>>,
    /// The rate of the interface: bounds the guarantees, and is the cap where none is given.
    pub rate: Option<Located<Rate>>,
}

/// A class of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSpec {
    /// Its name.
    pub name: Located<String>,
    /// The parent class; `None` for a class directly below the root.
    pub parent: Option<Located<String>>,
    /// 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// 0 to [`MAX_LEVEL`].
    pub level: u8,
    /// The guaranteed rate.
    pub guarantee: Option<Located<Rate>>,
    /// The maximum rate.
    pub cap: Option<Located<Rate>>,
    /// How its flows share its rate.
    pub order: Order,
}

/// A named path: flows for which all of the conditions hold. It has at least one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Its name.
    pub name: Located<String>,
    /// Addresses of this host.
    pub source: Vec<Prefix>,
    /// Addresses of the other ends.
    pub destination: Vec<Prefix>,
    /// The interface that has this host's address of the flow.
    pub interface: Option<String>,
}

/// The conditions of a rule. All that are given must hold; of several values of one condition, any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// This host's address.
    pub source: Vec<Prefix>,
    /// The other end's address.
    pub destination: Vec<Prefix>,
    /// This host's port.
    pub source_port: Vec<Ports>,
    /// The other end's port.
    pub destination_port: Vec<Ports>,
    /// What carries the flow.
    pub carrier: Vec<Carrier>,
    /// Code points, 0 to 63.
    pub dscp: Vec<u8>,
    /// Names of paths.
    pub path: Vec<Located<String>>,
    /// Patterns of the application's name.
    pub application: Vec<String>,
    /// Kinds of service that the application asks for, or that its code point stands for.
    pub qos: Vec<QosKind>,
    /// Priorities of a socket (`SO_PRIORITY`).
    pub priority: Vec<Priorities>,
}

/// What is done with a flow. Settings that are `None` are left to the next layer: the rule, then its kind of QoS,
/// then the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// Algorithm with parameters.
    pub algorithm: Option<Located<String>>,
    /// The fallback where the algorithm lacks the signals it needs.
    pub fallback: Option<Located<String>>,
    /// Name of the class.
    pub class: Option<Located<String>>,
    /// Weight within the class, 1 to [`MAX_WEIGHT`].
    pub weight: Option<u32>,
    /// The maximum rate of each flow.
    pub cap: Option<Located<Rate>>,
    /// The guaranteed rate of each flow.
    pub guarantee: Option<Located<Rate>>,
    /// Code point that packets are to carry, 0 to 63.
    pub dscp: Option<u8>,
    /// Whether an algorithm that the application names has priority over this one.
    pub allow_override: Option<bool>,
    /// The terms for congestion control at the peer.
    pub peer: Peer,
}

/// Terms that are negotiated with the peer, besides this end's algorithm. Each list has at most [`MAX_NAMES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Whether this end's preference order has priority over the peer's preferences.
    pub prefer_own: Option<bool>,
    /// Names of the only algorithms that the peer may request of this end, besides this end's own choice.
    pub allow: Option<Vec<Located<String>>>,
    /// The algorithms that the peer should send with, best first, with parameters.
    pub preferred: Option<Vec<Located<String>>>,
    /// Whether the peer may send with nothing else.
    pub preferred_only: Option<bool>,
    /// Names of algorithms that the peer must not send with.
    pub refuse: Option<Vec<Located<String>>>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, with the line of the rule.
    pub name: Located<String>,
    /// The flows it applies to.
    pub when: Match,
    /// The kind of QoS that its flows get, whatever they ask for; one of [`QosKind::WITHOUT_VALUE`].
    pub qos: Option<QosKind>,
    /// What is done with its flows.
    pub then: Treatment,
}

/// A policy as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Names of the programs that have to be loaded where this policy is in force.
    pub programs: Vec<Located<String>>,
    /// What the process may send in all.
    pub process: Process,
    /// Classes, in the order of the file.
    pub classes: Vec<ClassSpec>,
    /// Paths, in the order of their names.
    pub paths: Vec<PathSpec>,
    /// Rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// The treatment of each kind of QoS.
    pub qos: BTreeMap<QosKind, Treatment>,
    /// The kind of QoS that a code point stands for where a flow asks for nothing; of [`QosKind::WITHOUT_VALUE`].
    pub dscp: BTreeMap<u8, QosKind>,
    /// The treatment where no rule and no kind of QoS says otherwise.
    pub default: Treatment,
}

/// The name of an order of flows, in policies.
pub const fn order_name(order: Order) -> &'static str {
    match order {
        Order::Fair => "fair",
        Order::Strict => "strict",
        Order::Deadline => "deadline",
    }
}

/// A text in TOML's quotation marks.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

fn list<T>(values: &[T], show: impl Fn(&T) -> String) -> String {
    let all: Vec<_> = values.iter().map(|v| Quoted(&show(v)).to_string()).collect();
    match all.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

impl Match {
    /// The conditions that are given, each with its values as text.
    pub(crate) fn conditions(&self) -> Vec<(&'static str, String)> {
        let all = [
            ("source", list(&self.source, ToString::to_string), self.source.len()),
            ("destination", list(&self.destination, ToString::to_string), self.destination.len()),
            ("source_port", list(&self.source_port, ToString::to_string), self.source_port.len()),
            (
                "destination_port",
                list(&self.destination_port, ToString::to_string),
                self.destination_port.len(),
            ),
            ("carrier", list(&self.carrier, |c| c.name().to_owned()), self.carrier.len()),
            ("dscp", list(&self.dscp, |d| units::show_dscp(*d)), self.dscp.len()),
            ("path", list(&self.path, |p| p.value.clone()), self.path.len()),
            ("application", list(&self.application, String::clone), self.application.len()),
            ("qos", list(&self.qos, |w| w.name().to_owned()), self.qos.len()),
            ("priority", list(&self.priority, ToString::to_string), self.priority.len()),
        ];
        all.into_iter().filter(|(_, _, n)| *n > 0).map(|(key, text, _)| (key, text)).collect()
    }
}

/// The canonical form: equal treatments print the same text.
impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = [("algorithm", &self.algorithm), ("fallback", &self.fallback), ("class", &self.class)];
        for (key, value) in texts {
            if let Some(v) = value {
                writeln!(f, "{key} = {}", Quoted(&v.value))?;
            }
        }
        if let Some(w) = self.weight {
            writeln!(f, "weight = {w}")?;
        }
        rates(f, [("guarantee", &self.guarantee), ("cap", &self.cap)])?;
        if let Some(d) = self.dscp {
            writeln!(f, "dscp = \"{}\"", units::show_dscp(d))?;
        }
        if let Some(b) = self.allow_override {
            writeln!(f, "allow_override = {b}")?;
        }
        write!(f, "{}", self.peer)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, names) in
            [("cc_allow", &self.allow), ("peer_cc", &self.preferred), ("peer_cc_refuse", &self.refuse)]
        {
            match names.as_deref() {
                None => {}
                Some([]) => writeln!(f, "{key} = \"none\"")?,
                Some(names) => writeln!(f, "{key} = {}", list(names, |n| n.value.clone()))?,
            }
        }
        for (key, switch) in [("cc_prefer_own", self.prefer_own), ("peer_cc_only", self.preferred_only)] {
            if let Some(b) = switch {
                writeln!(f, "{key} = {b}")?;
            }
        }
        Ok(())
    }
}

fn rates<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    rates: [(&str, &Option<Located<Rate>>); N],
) -> fmt::Result {
    for (key, rate) in rates {
        if let Some(r) = rate {
            writeln!(f, "{key} = \"{}\"", units::show_rate(r.value))?;
        }
    }
    Ok(())
}

/// The canonical form: TOML that parses to the same policy.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.programs.is_empty() {
            writeln!(f, "programs = {}\n", list(&self.programs, |p| p.value.clone()))?;
        }
        if self.process != Process::default() {
            writeln!(f, "[process]")?;
            rates(f, [("cap", &self.process.cap), ("rate", &self.process.rate)])?;
        }
        if self.default != Treatment::default() {
            writeln!(f, "\n[default]")?;
            write!(f, "{}", self.default)?;
        }
        for (word, treatment) in &self.qos {
            writeln!(f, "\n[qos.{}]", word.name())?;
            write!(f, "{treatment}")?;
        }
        if !self.dscp.is_empty() {
            writeln!(f, "\n[dscp]")?;
            for (point, word) in &self.dscp {
                writeln!(f, "{} = \"{}\"", units::show_dscp(*point), word.name())?;
            }
        }
        self.classes.iter().try_for_each(|c| class(f, c))?;
        self.paths.iter().try_for_each(|p| path(f, p))?;
        self.rules.iter().try_for_each(|r| rule(f, r))
    }
}

fn class(f: &mut fmt::Formatter<'_>, c: &ClassSpec) -> fmt::Result {
    writeln!(f, "\n[[class]]\nname = {}", Quoted(&c.name.value))?;
    if let Some(p) = &c.parent {
        writeln!(f, "parent = {}", Quoted(&p.value))?;
    }
    writeln!(f, "weight = {}\nlevel = {}", c.weight, c.level)?;
    rates(f, [("guarantee", &c.guarantee), ("cap", &c.cap)])?;
    writeln!(f, "order = \"{}\"", order_name(c.order))
}

fn path(f: &mut fmt::Formatter<'_>, p: &PathSpec) -> fmt::Result {
    writeln!(f, "\n[path.{}]", Quoted(&p.name.value))?;
    for (key, prefixes) in [("source", &p.source), ("destination", &p.destination)] {
        if !prefixes.is_empty() {
            writeln!(f, "{key} = {}", list(prefixes, ToString::to_string))?;
        }
    }
    match &p.interface {
        Some(i) => writeln!(f, "interface = {}", Quoted(i)),
        None => Ok(()),
    }
}

fn rule(f: &mut fmt::Formatter<'_>, r: &Rule) -> fmt::Result {
    let conditions: Vec<_> =
        r.when.conditions().into_iter().map(|(key, text)| format!("{key} = {text}")).collect();
    let inside = if conditions.is_empty() { String::new() } else { format!(" {} ", conditions.join(", ")) };
    writeln!(f, "\n[[rule]]\nname = {}\nmatch = {{{inside}}}", Quoted(&r.name.value))?;
    if let Some(w) = r.qos {
        writeln!(f, "qos = \"{}\"", w.name())?;
    }
    write!(f, "{}", r.then)
}
