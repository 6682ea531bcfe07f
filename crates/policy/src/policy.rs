//! A checked policy, prepared for quick lookups.

use crate::problem::Problems;
use crate::read::{self, Reader};
use crate::region::{Budget, FlowPoint, Names, NumericField, Ranges, Region};
use crate::spec::{Located, QosKind, Spec, Treatment};
use crate::units::address_to_u128;
use crate::{check, tree};
use base::Rate;
use cc::engine::admission::assured_rate;
use cc::platform::{Choice, Class, Order, PeerTerms, Qos, Traffic};
use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::OnceLock;

/// The built-in policy in TOML, which applies where a policy says nothing.
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

/// A checked policy.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) spec: Spec,
    classes: Vec<Class>,
    /// For each rule, the traffic it applies to.
    regions: Vec<Vec<Region>>,
    /// The addresses of the interfaces that paths name.
    interfaces: BTreeMap<String, Ranges>,
    cap: Option<Rate>,
    version: u64,
}

/// A setting and the layer it comes from.
pub(crate) struct Setting<T> {
    pub value: T,
    pub layer: String,
}

/// The layers of settings for a flow; the first that has a setting determines it.
pub(crate) struct Layers<'a> {
    layers: [(Option<&'a Treatment>, Layer); 5],
    pub rule: Option<usize>,
    /// The flow's kind of QoS.
    pub qos: QosKind,
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
    /// Reads and checks a policy for this process: it may name the algorithms that are registered now, and the
    /// programs it declares must be among them. Returns the warnings with it.
    ///
    /// # Errors
    /// All problems, including warnings.
    pub fn read(text: &str) -> Result<(Policy, Problems), Problems> {
        Policy::read_checked(text, false)
    }

    /// Reads and checks a policy for other hosts: it may name built-in algorithms and the programs it declares,
    /// whose presence and parameters each host checks for itself.
    ///
    /// # Errors
    /// All problems, including warnings.
    pub fn read_for_hosts(text: &str) -> Result<(Policy, Problems), Problems> {
        Policy::read_checked(text, true)
    }

    fn read_checked(text: &str, for_other_hosts: bool) -> Result<(Policy, Problems), Problems> {
        let mut reader = Reader::new(text, for_other_hosts);
        let spec = read::spec(text, &mut reader);
        let mut problems = reader.problems;
        let classes = tree::classes(&spec.classes, &built_in().classes, &mut problems);
        tree::check_guarantees(&classes, &spec.process, &mut problems);
        let cap = tree::process_cap(&spec.process).map(|r| r.value);
        check::references(&spec, &classes, cap, &mut problems);
        let regions: Vec<_> = spec.rules.iter().map(|r| check::regions(&r.when, &spec.paths)).collect();
        let rules: Vec<_> = spec.rules.iter().zip(regions.iter().map(Vec::as_slice)).collect();
        check::overlaps(&rules, &mut Budget::new(check::MAX_OVERLAP_STEPS), &mut problems);
        problems.sort();
        if !problems.is_usable() {
            return Err(problems);
        }
        let classes = classes.into_iter().map(|(c, _)| c).collect();
        let policy = Policy { spec, classes, regions, interfaces: BTreeMap::new(), cap, version: 0 };
        Ok((policy, problems))
    }

    /// The policy that applies where none is configured.
    pub fn built_in() -> Policy {
        match Policy::read("") {
            Ok((policy, _)) => policy,
            Err(problems) => unreachable!("an empty policy is right: {problems}"),
        }
    }

    /// The policy with another version number, which must grow with every change.
    #[must_use]
    pub fn with_version(self, version: u64) -> Policy {
        Policy { version, ..self }
    }

    /// The interfaces that the policy's paths name.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.spec.paths.iter().filter_map(|p| p.interface.as_deref())
    }

    /// The policy with the addresses of its interfaces, as `addresses` returns them. Without them, no flow
    /// matches an interface.
    #[must_use]
    pub fn with_interfaces(mut self, addresses: impl Fn(&str) -> Vec<IpAddr>) -> Policy {
        let ranges = |name: &str| {
            Ranges::of(addresses(name).into_iter().map(|a| (address_to_u128(a), address_to_u128(a))))
        };
        self.interfaces = self.interfaces().map(|name| (name.to_owned(), ranges(name))).collect();
        self
    }

    /// The policy as it was written.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(crate) fn point<'a>(&'a self, t: &'a Traffic) -> FlowPoint<'a> {
        let local = address_to_u128(t.local.ip());
        let by = self.interfaces.iter().filter(|(_, ranges)| ranges.contains(local));
        FlowPoint {
            numbers: NumericField::ALL.map(|n| match n {
                NumericField::Source => local,
                NumericField::Destination => address_to_u128(t.remote.ip()),
                NumericField::SourcePort => t.local.port().into(),
                NumericField::DestinationPort => t.remote.port().into(),
                NumericField::Carrier => t.carrier as u128,
                NumericField::Dscp => t.dscp.into(),
                NumericField::Qos => self.qos_kind(t) as u128,
                NumericField::Priority => t.priority.into(),
            }),
            application: &t.application,
            interfaces: by.map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// The kind of QoS that the application asks for or, if it asks for nothing, that its code point stands for.
    pub(crate) fn qos_kind(&self, t: &Traffic) -> QosKind {
        match t.qos {
            Qos::Ordinary => self.qos_kind_of_dscp(t.dscp),
            _ => QosKind::of(&t.qos),
        }
    }

    /// The kind of QoS that a code point stands for.
    pub(crate) fn qos_kind_of_dscp(&self, dscp: u8) -> QosKind {
        let said = self.spec.dscp.get(&dscp).or_else(|| built_in().dscp.get(&dscp));
        said.copied().unwrap_or(QosKind::Ordinary)
    }

    /// For each rule, in order, the traffic it applies to.
    pub(crate) fn regions(&self) -> &[Vec<Region>] {
        &self.regions
    }

    /// The known addresses of all interfaces whose name is in `names`.
    pub(crate) fn addresses(&self, names: &Names) -> Ranges {
        let of = self.interfaces.iter().filter(|(name, _)| names.contains(name));
        Ranges::of(of.flat_map(|(_, ranges)| ranges.list().iter().copied()))
    }

    /// Whether an algorithm that the application names has priority. A rule that names an algorithm overrides the
    /// application, unless it says otherwise.
    pub(crate) fn allow_override(&self, l: &Layers<'_>) -> bool {
        match l.layers[0].0 {
            Some(r) if r.algorithm.is_some() => r.allow_override.unwrap_or(false),
            _ => self.setting(l, |t| t.allow_override).is_none_or(|s| s.value),
        }
    }

    pub(crate) fn layers(&self, t: &Traffic) -> Layers<'_> {
        let point = self.point(t);
        let rule = self.regions.iter().position(|all| all.iter().any(|r| r.contains(&point)));
        self.layers_of(rule, self.qos_kind(t))
    }

    /// The layers for flows that match this rule first, or none, and that ask for this kind of QoS.
    pub(crate) fn layers_of(&self, rule: Option<usize>, asked: QosKind) -> Layers<'_> {
        let word = rule.and_then(|i| self.spec.rules[i].qos).unwrap_or(asked);
        let built_in = built_in();
        let layers = [
            (rule.map(|i| &self.spec.rules[i].then), Layer::Rule),
            (self.spec.qos.get(&word), Layer::Qos),
            (built_in.qos.get(&word), Layer::BuiltInQos),
            (Some(&self.spec.default), Layer::Default),
            (Some(&built_in.default), Layer::BuiltInDefault),
        ];
        Layers { layers, rule, qos: word }
    }

    fn layer_name(&self, layer: Layer, l: &Layers<'_>) -> String {
        match layer {
            Layer::Rule => {
                let name = l.rule.map_or("", |i| &self.spec.rules[i].name.value);
                format!("rule {}", crate::problem::quote(name))
            }
            Layer::Qos => format!("[qos.{}]", l.qos.name()),
            Layer::BuiltInQos => format!("the built-in [qos.{}]", l.qos.name()),
            Layer::Default => "[default]".into(),
            Layer::BuiltInDefault => "the built-in [default]".into(),
        }
    }

    /// The first layer's setting, if any layer has one.
    pub(crate) fn setting<'a, T>(
        &self,
        l: &Layers<'a>,
        pick: impl Fn(&'a Treatment) -> Option<T>,
    ) -> Option<Setting<T>> {
        l.layers.iter().find_map(|(t, layer)| {
            let value = t.and_then(&pick)?;
            Some(Setting { value, layer: self.layer_name(*layer, l) })
        })
    }

    /// Chooses the algorithm: the application's where that is allowed, else the first layer's.
    fn algorithm(&self, t: &Traffic, l: &Layers<'_>, class: usize, why: &mut Vec<String>) -> String {
        let ours = always_set(self.setting(l, |t| t.algorithm.as_ref()));
        let may = self.allow_override(l);
        let mut text = ours.value.value.clone();
        if !t.asked.is_empty() {
            match cc::registry::parse(&t.asked) {
                Ok(_) if may => {
                    why.push(format!("the application asks for the algorithm {}", t.asked));
                    return t.asked.clone();
                }
                Ok(_) => why.push(format!(
                    "the application asks for {}, which {} does not leave to it",
                    t.asked, ours.layer
                )),
                Err(e) => why.push(format!("the application asks for an algorithm that cannot be used: {e}")),
            }
        }
        why.push(format!("{} says algorithm {text}", ours.layer));
        // An algorithm with a parameter for a known rate starts at that rate.
        if let Some((rate, what)) = self.known_rate(t, l, class)
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

    /// The rate that this host has reserved for the flow, and its name: its guarantee, or the rate for which its
    /// deadline was admitted. Starting at it saves the time that a search would take.
    fn known_rate(&self, t: &Traffic, l: &Layers<'_>, class: usize) -> Option<(Rate, &'static str)> {
        match (l.qos, t.qos) {
            (QosKind::Guaranteed, Qos::Guaranteed(rate)) => Some((rate, "the guaranteed rate")),
            (QosKind::Deadline, Qos::Deadline { .. }) if self.classes[class].order == Order::Deadline => {
                let sure = assured_rate(&self.classes, self.cap, class);
                let cap = self.setting(l, |t| t.cap.as_ref()).map(|s| s.value.value);
                let rate = sure.into_iter().chain(cap).min()?;
                Some((rate, "the rate that its class can count on"))
            }
            _ => None,
        }
    }

    /// The terms for the peer.
    fn peer(&self, l: &Layers<'_>, why: &mut Vec<String>) -> PeerTerms {
        let mut terms = PeerTerms::default();
        let plain = |names: &[Located<String>]| names.iter().map(|n| n.value.clone()).collect::<Vec<_>>();
        if let Some(s) = self.setting(l, |t| t.peer.prefer_own) {
            let order = if s.value { "before" } else { "behind" };
            why.push(format!("{} puts this end's order {order} the other end's preferences", s.layer));
            terms.prefer_own = Some(s.value);
        }
        if let Some(s) = self.setting(l, |t| t.peer.allow.as_deref()) {
            let names = join_names(&plain(s.value));
            why.push(format!("{} lets the other end have this one send with {names}", s.layer));
            terms.allow = Some(plain(s.value));
        }
        if let Some(s) = self.setting(l, |t| t.peer.refuse.as_deref()) {
            why.push(format!(
                "{} refuses that the other end sends with {}",
                s.layer,
                join_names(&plain(s.value))
            ));
            terms.refuse = plain(s.value);
        }
        // `preferred_only` belongs to the layer that has the preference.
        let preferred = |t: &Treatment| {
            Some((plain(t.peer.preferred.as_deref()?), t.peer.preferred_only.unwrap_or(false)))
        };
        if let Some(s) = self.setting(l, preferred) {
            let (mut names, only) = s.value;
            names.retain(|n| !terms.refuses(n));
            let only = only && !names.is_empty();
            let word = if only { "nothing but " } else { "" };
            why.push(format!("{} asks the other end to send with {word}{}", s.layer, join_names(&names)));
            (terms.preferred, terms.preferred_only) = (Some(names), only);
        }
        terms
    }

    fn rates(&self, t: &Traffic, l: &Layers<'_>, why: &mut Vec<String>) -> (Option<Rate>, Option<Rate>) {
        let mut cap = self.setting(l, |t| t.cap.as_ref()).map(|s| {
            why.push(format!("{} caps each flow at {}", s.layer, s.value.value));
            s.value.value
        });
        let mut guarantee = self.setting(l, |t| t.guarantee.as_ref()).map(|s| {
            why.push(format!("{} guarantees {} to each flow", s.layer, s.value.value));
            s.value.value
        });
        match t.qos {
            Qos::Target(rate) if l.qos == QosKind::Target => {
                why.push(format!("the application wants no more than {rate}"));
                cap = Some(cap.map_or(rate, |c| c.min(rate)));
            }
            Qos::Guaranteed(rate) if l.qos == QosKind::Guaranteed && guarantee.is_none() => {
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

/// Names of algorithms as text.
pub(crate) fn join_names(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Unwraps a setting that the built-in default always has.
pub(crate) fn always_set<T>(s: Option<Setting<T>>) -> Setting<T> {
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
        why.push(self.qos_in_words(t, &l));
        let named = always_set(self.setting(&l, |t| t.class.as_ref()));
        let class = self.classes.iter().position(|c| c.name == named.value.value).unwrap_or(0);
        let algorithm = self.algorithm(t, &l, class, &mut why);
        let fallback = always_set(self.setting(&l, |t| t.fallback.as_ref())).value.value.clone();
        why.push(format!("{} puts it into class {}", named.layer, crate::problem::quote(&named.value.value)));
        let (cap, guarantee) = self.rates(t, &l, &mut why);
        let dscp = self.setting(&l, |t| t.dscp).map(|s| {
            why.push(format!(
                "{} has its packets carry the code point {}",
                s.layer,
                crate::units::show_dscp(s.value)
            ));
            s.value
        });
        let peer = self.peer(&l, &mut why);
        let weight = always_set(self.setting(&l, |t| t.weight)).value;
        let rule = rule.map_or_else(String::new, |r| r.name.value.clone());
        Choice { rule, algorithm, fallback, class, weight, cap, guarantee, dscp, peer, why }
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
            let both = [&t.algorithm, &t.fallback].into_iter().flatten();
            both.map(move |a| (algorithm_name(&a.value).to_owned(), format!("{by}, line {}", a.line)))
        });
        let needed = s.programs.iter().map(|p| (p.value.clone(), format!("programs, line {}", p.line)));
        needed.chain(named).collect()
    }
}

/// The name without the parameters.
fn algorithm_name(selection: &str) -> &str {
    selection.split(':').next().unwrap_or_default().trim()
}

impl Policy {
    /// For each class, whether some flow can be put into it.
    pub(crate) fn classes_in_use(&self) -> Vec<bool> {
        let by_word = QosKind::ALL.map(|word| {
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

    /// Says which kind of QoS the flow has, and why.
    fn qos_in_words(&self, t: &Traffic, l: &Layers<'_>) -> String {
        let word = l.qos.name();
        let as_told = l.rule.and_then(|i| self.spec.rules[i].qos).is_some();
        match t.qos {
            _ if as_told => format!("the rule treats it as {word}"),
            Qos::Ordinary if l.qos == QosKind::Ordinary => {
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
