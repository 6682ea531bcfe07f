//! The tree of classes: its order, what is wrong with it, and how a host's cap is divided.

use crate::problem::{Problems, did_you_mean, quote};
use crate::spec::{At, ClassSpec, Host, MAX_DEPTH};
use crate::units::show_rate;
use base::Rate;
use cc::platform::Class;
use std::collections::BTreeMap;

/// What this host may send at most: the cap, or else what its interface carries.
pub(crate) fn host_cap(host: &Host) -> Option<At<Rate>> {
    [&host.cap, &host.rate].into_iter().flatten().min_by_key(|r| r.value).cloned()
}

/// The classes, parents before children, each with the line it stands on. What is wrong is told of those of `ours` only,
/// since those of `built_in` are right by themselves and taken where none of ours has the name.
pub(crate) fn classes(
    ours: &[ClassSpec],
    built_in: &[ClassSpec],
    problems: &mut Problems,
) -> Vec<(Class, usize)> {
    let mut by_name: BTreeMap<&str, &ClassSpec> = BTreeMap::new();
    for c in ours {
        if let Some(before) = by_name.insert(&c.name.value, c) {
            let what =
                format!("class {} is there twice: also in line {}", quote(&c.name.value), before.name.line);
            problems.error(c.name.line, what, "give it another name, or make one of both");
        }
    }
    let rest: Vec<_> = built_in.iter().filter(|c| !by_name.contains_key(c.name.value.as_str())).collect();
    by_name.extend(rest.iter().map(|c| (c.name.value.as_str(), *c)));
    let mut out: Vec<(Class, usize)> = Vec::new();
    for c in ours.iter().chain(rest) {
        if let Some(line) = lineage(c, &by_name, problems) {
            line.into_iter().rev().for_each(|c| place(c, &mut out));
        }
    }
    out
}

/// The class and those above it, unless there is something wrong with them.
fn lineage<'a>(
    class: &'a ClassSpec,
    by_name: &BTreeMap<&str, &'a ClassSpec>,
    problems: &mut Problems,
) -> Option<Vec<&'a ClassSpec>> {
    let mut line = vec![class];
    while let Some(parent) = line.last().and_then(|c| c.parent.as_ref()) {
        let at = class.parent.as_ref().map_or(class.name.line, |p| p.line);
        let Some(&next) = by_name.get(parent.value.as_str()) else {
            // Told of the class that names it; those below are left out silently.
            if line.len() == 1 {
                let what = format!(
                    "class {} has the parent {}, which there is not",
                    quote(&class.name.value),
                    quote(&parent.value)
                );
                problems.error(at, what, did_you_mean(&parent.value, by_name.keys().copied()));
            }
            return None;
        };
        if let Some(from) = line.iter().position(|c| c.name == next.name) {
            // Told of each class of the cycle, not of those that lead to it.
            if from == 0 {
                let names: Vec<_> = line.iter().map(|c| quote(&c.name.value)).collect();
                let what =
                    format!("class {} is a part of itself: {} -> {}", names[0], names.join(" -> "), names[0]);
                problems.error(at, what, "leave out the parent of one of them");
            }
            return None;
        }
        line.push(next);
        if line.len() > MAX_DEPTH {
            let what =
                format!("class {} is more than {MAX_DEPTH} levels of classes deep", quote(&class.name.value));
            problems.error(at, what, "name a parent nearer to the host");
            return None;
        }
    }
    Some(line)
}

/// Appends a class, whose parent is there already, unless it is there itself.
fn place(c: &ClassSpec, out: &mut Vec<(Class, usize)>) {
    let find = |name: &str, out: &[(Class, usize)]| out.iter().position(|(have, _)| have.name == name);
    if find(&c.name.value, out).is_none() {
        let parent = c.parent.as_ref().and_then(|p| find(&p.value, out));
        let rate = |r: &Option<At<Rate>>| r.as_ref().map(|r| r.value);
        let class = Class {
            name: c.name.value.clone(),
            parent,
            weight: c.weight,
            level: c.level,
            guarantee: rate(&c.guarantee),
            cap: rate(&c.cap),
            order: c.order,
        };
        out.push((class, c.name.line));
    }
}

/// Whether guarantees fit into caps: of each class, of its parent, and of the host.
pub(crate) fn sums(classes: &[(Class, usize)], host: &Host, problems: &mut Problems) {
    if let (Some(cap), Some(rate)) = (&host.cap, &host.rate)
        && cap.value > rate.value
    {
        let what = format!(
            "the host's cap of {} is above its interface's rate of {}",
            show_rate(cap.value),
            show_rate(rate.value)
        );
        problems.error(cap.line, what, "lower cap, or correct rate");
    }
    // What each class and those below it were promised.
    let own = |c: &Class| c.guarantee.unwrap_or(Rate::ZERO).bytes_per_sec();
    let mut below = vec![0_u64; classes.len()];
    let mut top = 0_u64;
    for (i, (c, line)) in classes.iter().enumerate().rev() {
        let needs = own(c).max(below[i]);
        match c.parent {
            Some(p) => below[p] = below[p].saturating_add(needs),
            None => top = top.saturating_add(needs),
        }
        let Some(cap) = c.cap.filter(|cap| needs > cap.bytes_per_sec()) else { continue };
        let (name, cap, sum) = (quote(&c.name), show_rate(cap), show_rate(Rate::from_bytes_per_sec(needs)));
        let what = if own(c) >= below[i] {
            format!("class {name} has a guarantee of {sum}, above its cap of {cap}")
        } else {
            format!("the guarantees below class {name} add up to {sum}, above its cap of {cap}")
        };
        problems.error(*line, what, "lower guarantees, or raise the cap");
    }
    let promised = || classes.iter().find(|(c, _)| c.guarantee.is_some());
    match host_cap(host) {
        Some(cap) if top > cap.value.bytes_per_sec() => {
            let (sum, cap_text) = (show_rate(Rate::from_bytes_per_sec(top)), show_rate(cap.value));
            let what = format!("all guarantees add up to {sum}; the host sends {cap_text} at most");
            problems.error(cap.line, what, "lower guarantees, or raise the host's cap and rate");
        }
        None if top > 0 => {
            let line = promised().map_or(1, |(_, line)| *line);
            let what = "a guarantee is given, but not what this host can send";
            problems.warning(
                line,
                what,
                "add rate = \"...\" (of its interface) or cap to [host]: without, a guarantee cannot be kept",
            );
        }
        _ => {}
    }
}

/// What each class gets of `total` while all that have none below them have enough to send: guarantees first, then the
/// rest level by level, within a level by weights, nobody more than its cap.
pub(crate) fn shares(classes: &[Class], total: Rate) -> Vec<Rate> {
    let mut shares = vec![0_u64; classes.len()];
    let mut promised = vec![0_u64; classes.len()];
    let mut room = vec![0_u64; classes.len()];
    for (i, c) in classes.iter().enumerate().rev() {
        promised[i] = promised[i].max(c.guarantee.map_or(0, Rate::bytes_per_sec));
        let leaf = !classes.iter().any(|o| o.parent == Some(i));
        let inside = if leaf { u64::MAX } else { room[i] };
        room[i] = inside.min(c.cap.map_or(u64::MAX, Rate::bytes_per_sec));
        if let Some(p) = c.parent {
            promised[p] = promised[p].saturating_add(promised[i]);
            room[p] = room[p].saturating_add(room[i]);
        }
    }
    // Parents stand before their children, so that each has its share when it is divided.
    for parent in core::iter::once(None).chain((0..classes.len()).map(Some)) {
        let amount = parent.map_or(total.bytes_per_sec(), |p| shares[p]);
        let children: Vec<usize> = (0..classes.len()).filter(|i| classes[*i].parent == parent).collect();
        divide(amount, &children, classes, &promised, &room, &mut shares);
    }
    shares.into_iter().map(Rate::from_bytes_per_sec).collect()
}

fn divide(
    amount: u64,
    children: &[usize],
    classes: &[Class],
    promised: &[u64],
    room: &[u64],
    shares: &mut [u64],
) {
    let mut left = amount;
    for &i in children {
        shares[i] = promised[i].min(room[i]).min(left);
        left -= shares[i];
    }
    let mut levels: Vec<u8> = children.iter().map(|i| classes[*i].level).collect();
    levels.sort_unstable();
    levels.dedup();
    for level in levels {
        let mut open: Vec<usize> = children.iter().copied().filter(|i| classes[*i].level == level).collect();
        // Each turn gives out everything or closes a class: at most as many turns as classes.
        while left > 0 {
            open.retain(|i| shares[*i] < room[*i]);
            let weights: u64 = open.iter().map(|i| u64::from(classes[*i].weight)).sum();
            if weights == 0 {
                break;
            }
            let part = |i: usize| {
                let n = u128::from(left) * u128::from(classes[i].weight) / u128::from(weights);
                u64::try_from(n).unwrap_or(u64::MAX)
            };
            let full: Vec<usize> =
                open.iter().copied().filter(|i| part(*i) >= room[*i] - shares[*i]).collect();
            if full.is_empty() {
                let given: Vec<_> = open.iter().map(|i| (*i, part(*i))).collect();
                given.into_iter().for_each(|(i, n)| shares[i] += n);
                return;
            }
            for i in full {
                left -= (room[i] - shares[i]).min(left);
                shares[i] = room[i];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::platform::Order;

    fn class(name: &str, parent: Option<usize>, level: u8, weight: u32) -> Class {
        Class { name: name.into(), parent, weight, level, guarantee: None, cap: None, order: Order::Fair }
    }
    fn mbit(classes: &[Class], total: u64) -> Vec<u64> {
        shares(classes, Rate::from_mbit(total)).iter().map(|r| r.bits_per_sec() / 1_000_000).collect()
    }

    #[test]
    fn weights_divide_a_level_and_levels_come_one_after_the_other() {
        let c = [class("a", None, 0, 300), class("b", None, 0, 100), class("c", None, 1, 100)];
        assert_eq!(mbit(&c, 1000), [750, 250, 0]);
    }

    #[test]
    fn caps_leave_room_to_others_and_guarantees_come_first() {
        let mut c = [class("a", None, 0, 100), class("b", None, 0, 100), class("c", None, 7, 100)];
        c[0].cap = Some(Rate::from_mbit(100));
        c[2].guarantee = Some(Rate::from_mbit(300));
        assert_eq!(mbit(&c, 1000), [100, 600, 300]);
        c[1].cap = Some(Rate::from_mbit(100));
        assert_eq!(mbit(&c, 1000), [100, 100, 800]);
    }

    #[test]
    fn children_divide_what_their_parent_has() {
        let mut c = [
            class("storage", None, 2, 300),
            class("web", None, 2, 100),
            class("backup", Some(0), 2, 100),
            class("query", Some(0), 0, 100),
        ];
        c[3].cap = Some(Rate::from_mbit(50));
        assert_eq!(mbit(&c, 1000), [750, 250, 700, 50]);
        c[2].cap = Some(Rate::from_mbit(100));
        assert_eq!(mbit(&c, 1000), [150, 850, 100, 50]);
        c[2].guarantee = Some(Rate::from_mbit(100));
        assert_eq!(mbit(&c, 100), [100, 0, 100, 0]);
    }
}
