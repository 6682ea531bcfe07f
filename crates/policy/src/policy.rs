//! A policy that holds: checked, and quick to ask.

use crate::problem::Problems;
use crate::read::{self, Reader};
use crate::region::{Budget, Names, Number, Point, Ranges, Region};
use crate::spec::{At, Spec, Treatment, Word};
use crate::units::place;
use crate::{check, tree};
use base::Rate;
use cc::engine::admission::sure_rate;
use cc::platform::{Choice, Class, Order, PeerTerms, Qos, Traffic};
use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::OnceLock;

/// What holds where a policy says nothing, in the form of a policy.
pub const BUILT_IN: &str = include_str!("built_in.toml");

fn built_in() -> &'static Spec {
    static SPEC: OnceLock<Spec> = OnceLock::new();
    SPEC.get_or_init(|| {
        let mut reader = Reader::new(BUILT_IN, false);
        let spec = read::spec(BUILT_IN, &mut reader);
        assert!(reader.problems.list.is_empty(), "the built-in policy: {}", reader.problems);
        spec
    })
}

/// A policy that holds.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) spec: Spec,
    classes: Vec<Class>,
    /// Of each rule, the traffic it applies to.
    regions: Vec<Vec<Region>>,
    /// The addresses of the interfaces that paths name.
    interfaces: BTreeMap<String, Ranges>,
    cap: Option<Rate>,
    version: u64,
}

/// A value of a treatment and which layer said it.
pub(crate) struct Said<T> {
    pub value: T,
    pub by: String,
}

/// The layers that say what is done with a flow, the first that says something counts.
pub(crate) struct Layers<'a> {
    layers: [(Option<&'a Treatment>, Layer); 5],
    pub rule: Option<usize>,
    /// What the flow is taken for.
    pub word: Word,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Rule,
    Qos,
    BuiltInQos,
    Default,
    BuiltInDefault,
}

impl Policy {
    /// Reads and checks a policy as a whole, for this process: it may name the algorithms that are registered now, and
    /// the programs that it says it needs have to be among them. Warnings come with it.
    ///
    /// # Errors
    /// Everything that is wrong with it, warnings included.
    pub fn read(text: &str) -> Result<(Policy, Problems), Problems> {
        Policy::read_by(text, false)
    }

    /// The same for hosts of which nothing is known here: it may name what is built in and the programs that it says it
    /// needs, whose parameters and presence each host checks for itself.
    ///
    /// # Errors
    /// Everything that is wrong with it, warnings included.
    pub fn read_for_hosts(text: &str) -> Result<(Policy, Problems), Problems> {
        Policy::read_by(text, true)
    }

    fn read_by(text: &str, elsewhere: bool) -> Result<(Policy, Problems), Problems> {
        let mut reader = Reader::new(text, elsewhere);
        let spec = read::spec(text, &mut reader);
        let mut problems = reader.problems;
        let classes = tree::classes(&spec.classes, &built_in().classes, &mut problems);
        tree::sums(&classes, &spec.process, &mut problems);
        let cap = tree::process_cap(&spec.process).map(|r| r.value);
        check::references(&spec, &classes, cap, &mut problems);
        let regions: Vec<_> = spec.rules.iter().map(|r| check::regions(&r.when, &spec.paths)).collect();
        let rules: Vec<_> = spec.rules.iter().zip(regions.iter().map(Vec::as_slice)).collect();
        check::overlaps(&rules, &mut Budget::new(check::MAX_STEPS), &mut problems);
        problems.sort();
        if !problems.is_usable() {
            return Err(problems);
        }
        let classes = classes.into_iter().map(|(c, _)| c).collect();
        let policy = Policy { spec, classes, regions, interfaces: BTreeMap::new(), cap, version: 0 };
        Ok((policy, problems))
    }

    /// What holds where nobody wrote a policy.
    pub fn built_in() -> Policy {
        match Policy::read("") {
            Ok((policy, _)) => policy,
            Err(problems) => unreachable!("an empty policy is right: {problems}"),
        }
    }

    /// The same with another number, which must grow with every change.
    #[must_use]
    pub fn with_version(self, version: u64) -> Policy {
        Policy { version, ..self }
    }

    /// The interfaces that its paths name.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.spec.paths.iter().filter_map(|p| p.interface.as_deref())
    }

    /// The same with the addresses of its interfaces, as `addresses` knows them. Until then, no flow is by an interface.
    #[must_use]
    pub fn with_interfaces(mut self, addresses: impl Fn(&str) -> Vec<IpAddr>) -> Policy {
        let ranges = |name: &str| Ranges::of(addresses(name).into_iter().map(|a| (place(a), place(a))));
        self.interfaces = self.interfaces().map(|name| (name.to_owned(), ranges(name))).collect();
        self
    }

    /// What it says, as it was written.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn point<'a>(&'a self, t: &'a Traffic) -> Point<'a> {
        let local = place(t.local.ip());
        let by = self.interfaces.iter().filter(|(_, ranges)| ranges.holds(local));
        Point {
            numbers: Number::ALL.map(|n| match n {
                Number::Source => local,
                Number::Destination => place(t.remote.ip()),
                Number::SourcePort => t.local.port().into(),
                Number::DestinationPort => t.remote.port().into(),
                Number::Carrier => t.carrier as u128,
                Number::Dscp => t.dscp.into(),
                Number::Qos => self.word(t) as u128,
                Number::Priority => t.priority.into(),
            }),
            application: &t.application,
            interfaces: by.map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// What the application asks for or, if it asks for nothing, what its code point says.
    pub(crate) fn word(&self, t: &Traffic) -> Word {
        match t.qos {
            Qos::Ordinary => self.word_of_dscp(t.dscp),
            _ => Word::of(&t.qos),
        }
    }

    /// What a flow that asks for nothing is taken for by its code point.
    pub(crate) fn word_of_dscp(&self, dscp: u8) -> Word {
        let said = self.spec.dscp.get(&dscp).or_else(|| built_in().dscp.get(&dscp));
        said.copied().unwrap_or(Word::Ordinary)
    }

    /// Of each rule, in order, the traffic it applies to.
    pub(crate) fn regions(&self) -> &[Vec<Region>] {
        &self.regions
    }

    /// The addresses of the interfaces that are known and have a name of these.
    pub(crate) fn addresses(&self, names: &Names) -> Ranges {
        let of = self.interfaces.iter().filter(|(name, _)| names.holds(name));
        Ranges::of(of.flat_map(|(_, ranges)| ranges.list().iter().copied()))
    }

    /// Whether an algorithm that the application itself names is used instead. A rule that names one means it, unless it
    /// says otherwise.
    pub(crate) fn may_choose(&self, l: &Layers<'_>) -> bool {
        match l.layers[0].0 {
            Some(r) if r.algorithm.is_some() => r.may_choose.unwrap_or(false),
            _ => self.said(l, |t| t.may_choose).is_none_or(|s| s.value),
        }
    }

    pub(crate) fn layers(&self, t: &Traffic) -> Layers<'_> {
        let point = self.point(t);
        let rule = self.regions.iter().position(|all| all.iter().any(|r| r.holds(&point)));
        self.layers_of(rule, self.word(t))
    }

    /// The layers of flows that this rule, or none, fits first and that ask for this.
    pub(crate) fn layers_of(&self, rule: Option<usize>, asked: Word) -> Layers<'_> {
        let word = rule.and_then(|i| self.spec.rules[i].treat_as).unwrap_or(asked);
        let built_in = built_in();
        let layers = [
            (rule.map(|i| &self.spec.rules[i].then), Layer::Rule),
            (self.spec.qos.get(&word), Layer::Qos),
            (built_in.qos.get(&word), Layer::BuiltInQos),
            (Some(&self.spec.default), Layer::Default),
            (Some(&built_in.default), Layer::BuiltInDefault),
        ];
        Layers { layers, rule, word }
    }

    fn layer_name(&self, layer: Layer, l: &Layers<'_>) -> String {
        match layer {
            Layer::Rule => {
                let name = l.rule.map_or("", |i| &self.spec.rules[i].name.value);
                format!("rule {}", crate::problem::quote(name))
            }
            Layer::Qos => format!("[qos.{}]", l.word.name()),
            Layer::BuiltInQos => format!("the built-in [qos.{}]", l.word.name()),
            Layer::Default => "[default]".into(),
            Layer::BuiltInDefault => "the built-in [default]".into(),
        }
    }

    /// The first layer that says something.
    pub(crate) fn said<'a, T>(
        &self,
        l: &Layers<'a>,
        pick: impl Fn(&'a Treatment) -> Option<T>,
    ) -> Option<Said<T>> {
        l.layers.iter().find_map(|(t, layer)| {
            let value = t.and_then(&pick)?;
            Some(Said { value, by: self.layer_name(*layer, l) })
        })
    }

    /// The algorithm: the application's own choice where that counts, else the first layer's.
    fn algorithm(&self, t: &Traffic, l: &Layers<'_>, class: usize, why: &mut Vec<String>) -> String {
        let ours = said(self.said(l, |t| t.algorithm.as_ref()));
        let may = self.may_choose(l);
        let mut text = ours.value.value.clone();
        if !t.asked.is_empty() {
            match cc::registry::parse(&t.asked) {
                Ok(_) if may => {
                    why.push(format!("the application asks for the algorithm {}", t.asked));
                    return t.asked.clone();
                }
                Ok(_) => why.push(format!(
                    "the application asks for {}, which {} does not leave to it",
                    t.asked, ours.by
                )),
                Err(e) => why.push(format!("the application asks for an algorithm that cannot be used: {e}")),
            }
        }
        why.push(format!("{} says algorithm {text}", ours.by));
        // Algorithms that take a known rate begin with it.
        if let Some((rate, what)) = self.promised(t, l, class)
            && let Ok((def, params)) = cc::registry::parse(&text)
            && params.get("known_rate").is_none()
        {
            let mark = if text.contains(':') { ',' } else { ':' };
            let with = format!("{text}{mark}known_rate={}", rate.bits_per_sec());
            if def.params.iter().any(|p| p.name == "known_rate") && cc::registry::parse(&with).is_ok() {
                why.push(format!("{what} is used from the first round trip"));
                text = with;
            }
        }
        text
    }

    /// The rate that is free on this host for a flow from the first round trip, and what that is: a reserved one, or that by
    /// which its deadline was found to be possible. A flow that had to find it out would have lost the time that takes.
    fn promised(&self, t: &Traffic, l: &Layers<'_>, class: usize) -> Option<(Rate, &'static str)> {
        match (l.word, t.qos) {
            (Word::Guaranteed, Qos::Guaranteed(rate)) => Some((rate, "the guaranteed rate")),
            (Word::Deadline, Qos::Deadline { .. }) if self.classes[class].order == Order::Deadline => {
                let sure = sure_rate(&self.classes, self.cap, class);
                let cap = self.said(l, |t| t.cap.as_ref()).map(|s| s.value.value);
                let rate = sure.into_iter().chain(cap).min()?;
                Some((rate, "the rate that its class can count on"))
            }
            _ => None,
        }
    }

    /// What is to be settled with the other end.
    fn peer(&self, l: &Layers<'_>, why: &mut Vec<String>) -> PeerTerms {
        let mut terms = PeerTerms::default();
        let plain = |names: &[At<String>]| names.iter().map(|n| n.value.clone()).collect::<Vec<_>>();
        if let Some(s) = self.said(l, |t| t.peer.firm) {
            let order = if s.value { "before" } else { "behind" };
            why.push(format!("{} puts this end's order {order} the other end's wishes", s.by));
            terms.firm = Some(s.value);
        }
        if let Some(s) = self.said(l, |t| t.peer.allow.as_deref()) {
            let names = listed(&plain(s.value));
            why.push(format!("{} lets the other end have this one send with {names}", s.by));
            terms.allow = Some(plain(s.value));
        }
        if let Some(s) = self.said(l, |t| t.peer.refuse.as_deref()) {
            why.push(format!("{} refuses that the other end sends with {}", s.by, listed(&plain(s.value))));
            terms.refuse = plain(s.value);
        }
        // Whether it is all that there may be goes with the wish.
        let wish = |t: &Treatment| Some((plain(t.peer.wish.as_deref()?), t.peer.wish_only.unwrap_or(false)));
        if let Some(s) = self.said(l, wish) {
            let (mut names, only) = s.value;
            names.retain(|n| !terms.refuses(n));
            let only = only && !names.is_empty();
            let word = if only { "nothing but " } else { "" };
            why.push(format!("{} wishes that the other end sends with {word}{}", s.by, listed(&names)));
            (terms.wish, terms.wish_only) = (Some(names), only);
        }
        terms
    }

    fn rates(&self, t: &Traffic, l: &Layers<'_>, why: &mut Vec<String>) -> (Option<Rate>, Option<Rate>) {
        let mut cap = self.said(l, |t| t.cap.as_ref()).map(|s| {
            why.push(format!("{} caps each flow at {}", s.by, s.value.value));
            s.value.value
        });
        let mut guarantee = self.said(l, |t| t.guarantee.as_ref()).map(|s| {
            why.push(format!("{} guarantees {} to each flow", s.by, s.value.value));
            s.value.value
        });
        match t.qos {
            Qos::Target(rate) if l.word == Word::Target => {
                why.push(format!("the application wants no more than {rate}"));
                cap = Some(cap.map_or(rate, |c| c.min(rate)));
            }
            Qos::Guaranteed(rate) if l.word == Word::Guaranteed && guarantee.is_none() => {
                why.push(format!("the application asks for a guarantee of {rate}"));
                guarantee = Some(rate);
            }
            _ => {}
        }
        if let (Some(g), Some(c)) = (guarantee, cap)
            && g > c
        {
            why.push(format!("the guarantee is bounded by the cap of {c}"));
            guarantee = cap;
        }
        (cap, guarantee)
    }
}

/// Names of algorithms, for people.
pub(crate) fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What the built-in default always says.
pub(crate) fn said<T>(s: Option<Said<T>>) -> Said<T> {
    match s {
        Some(s) => s,
        None => unreachable!("the built-in default says everything"),
    }
}

impl cc::platform::Policy for Policy {
    fn choose(&self, t: &Traffic) -> Choice {
        let l = self.layers(t);
        let mut why = Vec::new();
        let rule = l.rule.map(|i| &self.spec.rules[i]);
        match rule {
            Some(r) => why.push(format!(
                "rule {} (line {}) is the first that fits",
                crate::problem::quote(&r.name.value),
                r.name.line
            )),
            None if self.spec.rules.is_empty() => why.push("the policy has no rules".into()),
            None => why.push("no rule fits".into()),
        }
        why.push(self.taken_for(t, &l));
        let named = said(self.said(&l, |t| t.class.as_ref()));
        let class = self.classes.iter().position(|c| c.name == named.value.value).unwrap_or(0);
        let algorithm = self.algorithm(t, &l, class, &mut why);
        let substitute = said(self.said(&l, |t| t.substitute.as_ref())).value.value.clone();
        why.push(format!("{} puts it into class {}", named.by, crate::problem::quote(&named.value.value)));
        let (cap, guarantee) = self.rates(t, &l, &mut why);
        let dscp = self.said(&l, |t| t.dscp).map(|s| {
            why.push(format!(
                "{} has its packets carry the code point {}",
                s.by,
                crate::units::show_dscp(s.value)
            ));
            s.value
        });
        let peer = self.peer(&l, &mut why);
        let weight = said(self.said(&l, |t| t.weight)).value;
        let rule = rule.map_or_else(String::new, |r| r.name.value.clone());
        Choice { rule, algorithm, substitute, class, weight, cap, guarantee, dscp, peer, why }
    }

    fn classes(&self) -> &[Class] {
        &self.classes
    }

    fn process_cap(&self) -> Option<Rate> {
        self.cap
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn algorithms(&self) -> Vec<(String, String)> {
        let s = &self.spec;
        let rules =
            s.rules.iter().map(|r| (format!("rule {}", crate::problem::quote(&r.name.value)), &r.then));
        let words = s.qos.iter().map(|(word, t)| (format!("[qos.{}]", word.name()), t));
        let layers = rules.chain(words).chain([("[default]".to_owned(), &s.default)]);
        let named = layers.flat_map(|(by, t)| {
            let both = [&t.algorithm, &t.substitute].into_iter().flatten();
            both.map(move |a| (name_of(&a.value).to_owned(), format!("{by}, line {}", a.line)))
        });
        let needed = s.programs.iter().map(|p| (p.value.clone(), format!("programs, line {}", p.line)));
        needed.chain(named).collect()
    }
}

/// The name in front of an algorithm's parameters.
fn name_of(selection: &str) -> &str {
    selection.split(':').next().unwrap_or_default().trim()
}

impl Policy {
    /// Of each class, whether some flow can be put into it.
    pub(crate) fn used(&self) -> Vec<bool> {
        let by_word = Word::ALL.map(|word| {
            let built_in = built_in();
            let layers = [
                self.spec.qos.get(&word),
                built_in.qos.get(&word),
                Some(&self.spec.default),
                Some(&built_in.default),
            ];
            layers.into_iter().flatten().find_map(|t| t.class.as_ref())
        });
        let by_rule = self.spec.rules.iter().map(|r| r.then.class.as_ref());
        let names: BTreeSet<&str> =
            by_word.into_iter().chain(by_rule).flatten().map(|c| c.value.as_str()).collect();
        self.classes.iter().map(|c| names.contains(c.name.as_str())).collect()
    }

    /// What the flow is taken for, and why.
    fn taken_for(&self, t: &Traffic, l: &Layers<'_>) -> String {
        let word = l.word.name();
        let as_told = l.rule.and_then(|i| self.spec.rules[i].treat_as).is_some();
        match t.qos {
            _ if as_told => format!("the rule treats it as {word}"),
            Qos::Ordinary if l.word == Word::Ordinary => {
                "the application asks for nothing in particular".into()
            }
            Qos::Ordinary => format!("its code point {} stands for {word}", crate::units::show_dscp(t.dscp)),
            qos => format!("the application asks for {qos}"),
        }
    }
}

/// The policy in its canonical form.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.spec, f)
    }
}
