//! Checks the parts of a policy against each other: undefined names, guarantees that cannot be kept, rules that
//! are never reached.

use crate::problem::{Problems, did_you_mean, quote};
use crate::region::{Budget, NameField, Names, NumericField, Ranges, Region};
use crate::spec::{Located, Match, PathSpec, QosKind, Rule, Spec, Treatment};
use crate::units::{Prefix, show_rate};
use base::Rate;
use cc::platform::Class;
use std::collections::BTreeMap;

/// Most pieces into which a rule's traffic is cut to find out whether earlier rules cover it. Beyond that, the
/// rule counts as reachable.
const MAX_PIECES: usize = 64;
/// Most steps of the overlap check of a whole policy (see [`Budget`]): comparing every rule with every other
/// takes 8,386,560, which leaves four to five steps for each pair.
pub(crate) const MAX_OVERLAP_STEPS: usize = 40_000_000;
/// Most earlier rules that a problem names.
const MAX_RULES_NAMED: usize = 3;

/// The traffic of a rule: one region for each of its paths, or one in all.
pub(crate) fn regions(when: &Match, paths: &[PathSpec]) -> Vec<Region> {
    let addresses = |p: &[Prefix]| Ranges::of(p.iter().map(|p| p.range()));
    let ports = |p: &[crate::Ports]| Ranges::of(p.iter().map(|p| (u128::from(p.first), u128::from(p.last))));
    let single = |n: u8| (u128::from(n), u128::from(n));
    let priorities =
        |p: &[crate::Priorities]| Ranges::of(p.iter().map(|p| (u128::from(p.first), u128::from(p.last))));
    let mut base = Region::all().with_names(NameField::Application, Names::of(&when.application));
    for (which, ranges, is_there) in [
        (NumericField::Source, addresses(&when.source), !when.source.is_empty()),
        (NumericField::Destination, addresses(&when.destination), !when.destination.is_empty()),
        (NumericField::SourcePort, ports(&when.source_port), !when.source_port.is_empty()),
        (NumericField::DestinationPort, ports(&when.destination_port), !when.destination_port.is_empty()),
        (
            NumericField::Carrier,
            Ranges::of(when.carrier.iter().map(|c| single(*c as u8))),
            !when.carrier.is_empty(),
        ),
        (NumericField::Dscp, Ranges::of(when.dscp.iter().map(|d| single(*d))), !when.dscp.is_empty()),
        (NumericField::Qos, Ranges::of(when.qos.iter().map(|w| single(*w as u8))), !when.qos.is_empty()),
        (NumericField::Priority, priorities(&when.priority), !when.priority.is_empty()),
    ] {
        if is_there {
            base = base.with_numbers(which, &ranges);
        }
    }
    if when.path.is_empty() {
        return vec![base];
    }
    let named = |name: &Located<String>| paths.iter().find(|p| p.name.value == name.value);
    let over = |p: &PathSpec| {
        let mut region = base.clone();
        for (which, prefixes) in
            [(NumericField::Source, &p.source), (NumericField::Destination, &p.destination)]
        {
            if !prefixes.is_empty() {
                region = region.with_numbers(which, &addresses(prefixes));
            }
        }
        match &p.interface {
            Some(i) => region.with_names(NameField::Interface, Names::of(core::slice::from_ref(i))),
            None => region,
        }
    };
    when.path.iter().filter_map(named).map(over).filter(|r| !r.is_empty()).collect()
}

/// Checks references to classes, paths and algorithms. `classes` is the complete list.
pub(crate) fn references(
    spec: &Spec,
    classes: &[(Class, usize)],
    process_cap: Option<Rate>,
    problems: &mut Problems,
) {
    let c = Definitions { classes, process_cap };
    c.treatment("[default]", &spec.default, problems);
    for (word, t) in &spec.qos {
        c.treatment(&format!("[qos.{}]", word.name()), t, problems);
        if *word == QosKind::Guaranteed
            && let Some(g) = &t.guarantee
        {
            let what = "[qos.guaranteed] has a guarantee, but the application names its own";
            problems.warning(g.line, what, "leave it out unless every such flow is to get this instead");
        }
    }
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in &spec.rules {
        let (name, line) = (rule.name.value.as_str(), rule.name.line);
        if let Some(before) = names.insert(name, line) {
            let what = format!("rule {} is there twice: also in line {before}", quote(name));
            problems.error(line, what, "give it another name");
        }
        c.treatment(&format!("rule {}", quote(name)), &rule.then, problems);
        if let Some(allowed) = rule.then.peer.allow.as_ref().filter(|a| !a.is_empty())
            && rule.then.algorithm.is_some()
            && rule.then.allow_override != Some(true)
        {
            let line = allowed.first().map_or(rule.name.line, |n| n.line);
            let what =
                format!("cc_allow of rule {} allows nothing: the rule names its algorithm", quote(name));
            problems.warning(line, what, "add allow_override = true, or leave out algorithm or cc_allow");
        }
        for p in &rule.when.path {
            let known = spec.paths.iter().map(|p| p.name.value.as_str());
            if known.clone().all(|k| k != p.value) {
                let what =
                    format!("rule {} names the path {}, which there is not", quote(name), quote(&p.value));
                problems.error(
                    p.line,
                    what,
                    format!("{}; paths are written as [path.NAME]", did_you_mean(&p.value, known)),
                );
            }
        }
    }
}

struct Definitions<'a> {
    classes: &'a [(Class, usize)],
    process_cap: Option<Rate>,
}

impl Definitions<'_> {
    fn treatment(&self, what: &str, t: &Treatment, problems: &mut Problems) {
        if let (Some(g), Some(cap)) = (&t.guarantee, &t.cap)
            && g.value > cap.value
        {
            let text = format!(
                "{what} guarantees {}, above its cap of {}",
                show_rate(g.value),
                show_rate(cap.value)
            );
            problems.error(g.line, text, "lower the guarantee, or raise the cap");
        }
        let class = t.class.as_ref().and_then(|name| self.class(what, name, problems));
        let Some(g) = &t.guarantee else { return };
        let mut at = class;
        while let Some(i) = at {
            let c = &self.classes[i].0;
            if let Some(cap) = c.cap.filter(|cap| g.value > *cap) {
                let text = format!(
                    "{what} guarantees {} to each flow, above the cap of {} of class {}",
                    show_rate(g.value),
                    show_rate(cap),
                    quote(&c.name)
                );
                problems.error(g.line, text, "lower the guarantee, or raise the class's cap");
                return;
            }
            at = c.parent;
        }
        if let Some(cap) = self.process_cap.filter(|cap| g.value > *cap) {
            let text = format!(
                "{what} guarantees {}; a process sends {} at most",
                show_rate(g.value),
                show_rate(cap)
            );
            problems.error(g.line, text, "lower the guarantee, or raise cap and rate of [process]");
        }
    }

    fn class(&self, what: &str, name: &Located<String>, problems: &mut Problems) -> Option<usize> {
        let at = self.classes.iter().position(|(c, _)| c.name == name.value);
        if at.is_none() {
            let known = self.classes.iter().map(|(c, _)| c.name.as_str());
            let text = format!("{what} names the class {}, which there is not", quote(&name.value));
            problems.error(name.line, text, did_you_mean(&name.value, known));
        }
        at
    }
}

/// Finds rules that earlier ones cover completely, and rules that overlap an earlier one partly although their
/// treatments differ. A budget that does not suffice is a warning.
pub(crate) fn overlaps(rules: &[(&Rule, &[Region])], budget: &mut Budget, problems: &mut Problems) {
    let outcomes = outcomes(rules);
    for (j, (rule, regions)) in rules.iter().enumerate() {
        let name = quote(&rule.name.value);
        if regions.is_empty() {
            // A rule without regions names an unknown path, which has been reported, or contradicts its path.
            if problems.is_usable() {
                let what = format!("rule {name} never applies: its addresses are not on its path");
                problems.error(rule.name.line, what, "leave out one of both, or the rule");
            }
            continue;
        }
        let mut left = regions.to_vec();
        let (mut takers, mut crossing) = (Vec::new(), None);
        for (i, (earlier, theirs)) in rules[..j].iter().enumerate() {
            if subtract(&mut left, theirs, budget) {
                takers.push(*earlier);
            }
            let differs = crossing.is_none() && outcomes[i] != outcomes[j];
            if differs && any_overlap(regions, theirs, budget) && !all_within(theirs, regions, budget) {
                crossing = Some(*earlier);
            }
            if left.is_empty() || left.len() > MAX_PIECES || budget.is_spent() {
                break;
            }
        }
        if budget.is_spent() {
            let what = format!(
                "there are too many rules with long lists to find out which are unreachable from {name} on"
            );
            problems.warning(rule.name.line, what, "use fewer rules, or shorter lists");
            return;
        }
        if left.is_empty() {
            unreachable(rule, &takers, problems);
        } else if let Some(earlier) = crossing {
            let what = format!(
                "rule {name} and rule {} (line {}) both fit some flows and differ",
                quote(&earlier.name.value),
                earlier.name.line
            );
            problems.warning(
                rule.name.line,
                what,
                "the earlier one holds for those; put the more particular one first",
            );
        }
    }
}

/// Numbers for the rules' treatments; equal treatments have equal numbers.
fn outcomes(rules: &[(&Rule, &[Region])]) -> Vec<usize> {
    let mut known = BTreeMap::new();
    let of = |rule: &Rule| {
        let next = known.len();
        *known.entry((rule.then.to_string(), rule.qos)).or_insert(next)
    };
    rules.iter().map(|(rule, _)| rule).copied().map(of).collect()
}

fn unreachable(rule: &Rule, takers: &[&Rule], problems: &mut Problems) {
    let named: Vec<_> = takers
        .iter()
        .take(MAX_RULES_NAMED)
        .map(|r| format!("{} (line {})", quote(&r.name.value), r.name.line))
        .collect();
    let more = if takers.len() > MAX_RULES_NAMED {
        format!(" and {} more", takers.len() - MAX_RULES_NAMED)
    } else {
        String::new()
    };
    let what = format!(
        "rule {} is never reached: everything it fits is taken by {}{more}",
        quote(&rule.name.value),
        named.join(", ")
    );
    problems.error(rule.name.line, what, "put it before, narrow the earlier ones, or leave it out");
}

fn any_overlap(a: &[Region], b: &[Region], budget: &mut Budget) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.overlaps(b, budget)))
}

fn all_within(inner: &[Region], outer: &[Region], budget: &mut Budget) -> bool {
    if inner.iter().all(|i| outer.iter().any(|o| i.is_subset(o, budget))) {
        return true;
    }
    // Several outer regions together may cover what none of them does.
    let mut left = if outer.len() > 1 { inner.to_vec() } else { return false };
    subtract(&mut left, outer, budget);
    left.is_empty()
}

/// Removes `theirs` from `left`, unless that takes more than [`MAX_PIECES`]; returns whether anything changed.
fn subtract(left: &mut Vec<Region>, theirs: &[Region], budget: &mut Budget) -> bool {
    let mut changed = false;
    for t in theirs {
        if left.len() > MAX_PIECES || budget.is_spent() {
            break;
        }
        let mut i = 0;
        while let Some(l) = left.get(i) {
            match l.difference(t, budget) {
                None => i += 1,
                Some(pieces) => {
                    changed = true;
                    let next = i + pieces.len();
                    left.splice(i..=i, pieces);
                    i = next;
                }
            }
        }
    }
    changed
}
