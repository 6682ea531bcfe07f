//! A policy as it is written: plain values, each that can be wrong with its line.

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
pub const WEIGHT: u32 = 100;
/// Lowest level of a class; 0 is the highest.
pub const MAX_LEVEL: u8 = 7;
/// Level of a class that has none.
pub const LEVEL: u8 = 2;

/// A value and the line it stands on. Where it was written does not make it another value.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The line, from 1.
    pub line: usize,
}

impl<T: PartialEq> PartialEq for At<T> {
    fn eq(&self, other: &At<T>) -> bool {
        self.value == other.value
    }
}
impl<T: Eq> Eq for At<T> {}

/// What an application asks for, without numbers: the words of [`Qos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
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

impl Word {
    /// All of them.
    pub const ALL: [Word; 7] = [
        Word::Ordinary,
        Word::Latency,
        Word::Bulk,
        Word::Deadline,
        Word::Guaranteed,
        Word::Target,
        Word::Scavenger,
    ];
    /// Those that need no number: what a flow can be taken for without its asking.
    pub const PLAIN: [Word; 4] = [Word::Ordinary, Word::Latency, Word::Bulk, Word::Scavenger];

    /// The word, as applications and policies write it.
    pub const fn name(self) -> &'static str {
        match self {
            Word::Ordinary => "ordinary",
            Word::Latency => "latency",
            Word::Bulk => "bulk",
            Word::Deadline => "deadline",
            Word::Guaranteed => "guaranteed",
            Word::Target => "target",
            Word::Scavenger => "scavenger",
        }
    }

    /// The word a wish begins with.
    pub const fn of(qos: &Qos) -> Word {
        match qos {
            Qos::Ordinary => Word::Ordinary,
            Qos::Latency => Word::Latency,
            Qos::Bulk => Word::Bulk,
            Qos::Deadline { .. } => Word::Deadline,
            Qos::Guaranteed(_) => Word::Guaranteed,
            Qos::Target(_) => Word::Target,
            Qos::Scavenger => Word::Scavenger,
        }
    }
}

/// What there is to divide: of each process that has the policy, by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// What all flows of a process together may send at most.
    pub cap: Option<At<Rate>>,
    /// What the interface carries: bounds what can be promised, and is the cap where none is named.
    pub rate: Option<At<Rate>>,
}

/// A class of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSpec {
    /// Its name.
    pub name: At<String>,
    /// The class it is a part of.
    pub parent: Option<At<String>>,
    /// 1 to [`MAX_WEIGHT`].
    pub weight: u32,
    /// 0 to [`MAX_LEVEL`].
    pub level: u8,
    /// What it may count on.
    pub guarantee: Option<At<Rate>>,
    /// What it may send at most.
    pub cap: Option<At<Rate>>,
    /// How its flows are put in order.
    pub order: Order,
}

/// A path with a name: all of its conditions hold for flows over it. At least one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSpec {
    /// Its name.
    pub name: At<String>,
    /// Addresses of this host.
    pub source: Vec<Prefix>,
    /// Addresses of the other ends.
    pub destination: Vec<Prefix>,
    /// The interface that has this host's address.
    pub interface: Option<String>,
}

/// Conditions of a rule: all that are there must hold; of several values of one, any.
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
    pub path: Vec<At<String>>,
    /// Patterns of the application's name.
    pub application: Vec<String>,
    /// What the application asks for, or is taken for by its code point.
    pub qos: Vec<Word>,
    /// Priorities of a program's socket.
    pub priority: Vec<Priorities>,
}

/// What is done with flows. What is not said is left to the next layer: the rule, then the QoS word, then the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// Algorithm with parameters.
    pub algorithm: Option<At<String>>,
    /// What takes its place where it cannot work.
    pub substitute: Option<At<String>>,
    /// Name of the class.
    pub class: Option<At<String>>,
    /// Weight within the class, 1 to [`MAX_WEIGHT`].
    pub weight: Option<u32>,
    /// What each flow may send at most.
    pub cap: Option<At<Rate>>,
    /// What each flow may count on.
    pub guarantee: Option<At<Rate>>,
    /// Code point that packets are to carry, 0 to 63.
    pub dscp: Option<u8>,
    /// Whether an algorithm that the application itself names is used instead.
    pub may_choose: Option<bool>,
    /// What is settled with the other end.
    pub peer: Peer,
}

/// What both ends are to settle about congestion control, beside this end's algorithm. Each list has at most [`MAX_NAMES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Whether this end's order goes before what the other end wishes.
    pub firm: Option<bool>,
    /// Names of the only algorithms that the other end may have this one send with, beside its own choice.
    pub allow: Option<Vec<At<String>>>,
    /// What the other end is to send with, best first, with parameters.
    pub wish: Option<Vec<At<String>>>,
    /// Whether it may send with nothing else.
    pub wish_only: Option<bool>,
    /// Names of algorithms that it must not send with.
    pub refuse: Option<Vec<At<String>>>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name; the line is that of the rule.
    pub name: At<String>,
    /// When it applies.
    pub when: Match,
    /// What its flows are taken for, whatever they ask; one of [`Word::PLAIN`].
    pub treat_as: Option<Word>,
    /// What is done with them.
    pub then: Treatment,
}

/// A policy as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Names of the programs that have to be loaded where this policy is in force.
    pub programs: Vec<At<String>>,
    /// What there is to divide.
    pub process: Process,
    /// Classes, in the order of the file.
    pub classes: Vec<ClassSpec>,
    /// Paths, in the order of their names.
    pub paths: Vec<PathSpec>,
    /// Rules, in the order of the file.
    pub rules: Vec<Rule>,
    /// What a QoS word means.
    pub qos: BTreeMap<Word, Treatment>,
    /// What flows that ask for nothing are taken for by their code point; of [`Word::PLAIN`].
    pub dscp: BTreeMap<u8, Word>,
    /// What holds where nothing else is said.
    pub default: Treatment,
}

/// The name of an order, in policies.
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
    /// Each condition that is there, with its values in words.
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

/// As it is written in a policy: the same text for what is the same.
impl fmt::Display for Treatment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts =
            [("algorithm", &self.algorithm), ("substitute", &self.substitute), ("class", &self.class)];
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
        if let Some(b) = self.may_choose {
            writeln!(f, "may_choose = {b}")?;
        }
        write!(f, "{}", self.peer)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, names) in [("cc_allow", &self.allow), ("cc_wish", &self.wish), ("cc_refuse", &self.refuse)]
        {
            match names.as_deref() {
                None => {}
                Some([]) => writeln!(f, "{key} = \"none\"")?,
                Some(names) => writeln!(f, "{key} = {}", list(names, |n| n.value.clone()))?,
            }
        }
        for (key, switch) in [("cc_firm", self.firm), ("cc_wish_only", self.wish_only)] {
            if let Some(b) = switch {
                writeln!(f, "{key} = {b}")?;
            }
        }
        Ok(())
    }
}

fn rates<const N: usize>(f: &mut fmt::Formatter<'_>, rates: [(&str, &Option<At<Rate>>); N]) -> fmt::Result {
    for (key, rate) in rates {
        if let Some(r) = rate {
            writeln!(f, "{key} = \"{}\"", units::show_rate(r.value))?;
        }
    }
    Ok(())
}

/// The policy in its canonical form: TOML that reads as the same policy.
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
    if let Some(w) = r.treat_as {
        writeln!(f, "treat_as = \"{}\"", w.name())?;
    }
    write!(f, "{}", r.then)
}
