//! The tree of classes: sorts and checks it, and computes how the cap of a process is divided.

use crate::problem::{Problems, did_you_mean, quote};
use crate::spec::{ClassSpec, Located, MAX_DEPTH, Process};
use crate::units::show_rate;
use base::Rate;
use cc::platform::Class;
use std::collections::BTreeMap;

/// What a process may send at most: its cap or, without one, the rate of its interface.
pub(crate) fn process_cap(process: &Process) -> Option<Located<Rate>> {
    [&process.cap, &process.rate].into_iter().flatten().min_by_key(|r| r.value).cloned()
}

/// The classes, parents before children, each with its line. Classes of `built_in` are added where `ours` has
/// none of that name; problems are reported for `ours` only, since the built-in ones are valid.
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
            line.into_iter().rev().for_each(|c| push_once(c, &mut out));
        }
    }
    out
}

/// The class and its ancestors; `None` if one of them has a problem.
fn lineage<'a>(
    class: &'a ClassSpec,
    by_name: &BTreeMap<&str, &'a ClassSpec>,
    problems: &mut Problems,
) -> Option<Vec<&'a ClassSpec>> {
    let mut line = vec![class];
    while let Some(parent) = line.last().and_then(|c| c.parent.as_ref()) {
        let at = class.parent.as_ref().map_or(class.name.line, |p| p.line);
        let Some(&next) = by_name.get(parent.value.as_str()) else {
            // Reported for the class that names the missing parent; its descendants are left out without another
            // report.
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
            // Reported for each class of the cycle, but not for classes that lead into it.
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

/// Appends a class, whose parent is already in the list, unless it is in the list itself.
fn push_once(c: &ClassSpec, out: &mut Vec<(Class, usize)>) {
    let find = |name: &str, out: &[(Class, usize)]| out.iter().position(|(have, _)| have.name == name);
    if find(&c.name.value, out).is_none() {
        let parent = c.parent.as_ref().and_then(|p| find(&p.value, out));
        let rate = |r: &Option<Located<Rate>>| r.as_ref().map(|r| r.value);
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

/// Checks that guarantees fit into the caps of each class, of its parent, and of the process.
pub(crate) fn check_guarantees(classes: &[(Class, usize)], process: &Process, problems: &mut Problems) {
    if let (Some(cap), Some(rate)) = (&process.cap, &process.rate)
        && cap.value > rate.value
    {
        let what = format!(
            "the cap of {} is above its interface's rate of {}",
            show_rate(cap.value),
            show_rate(rate.value)
        );
        problems.error(cap.line, what, "lower cap, or correct rate");
    }
    // The sum of the guarantees below each class.
    let own = |c: &Class| c.guarantee.unwrap_or(Rate::ZERO).bytes_per_sec();
    let mut below = vec![0_u64; classes.len()];
    let mut top = 0_u64;
    for (i, (c, line)) in classes.iter().enumerate().rev() {
        let needs = own(c).max(below[i]);
        match c.parent {
            Some(p) => below[p] = below[p].saturating_add(needs),
            None => top = top.saturating_add(needs),
        }
        // The guarantees below a class must fit into its own guarantee or, without one, into its cap.
        let (name, show) = (quote(&c.name), |bytes| show_rate(Rate::from_bytes_per_sec(bytes)));
        let room = c.guarantee.map(|g| (g, "guarantee")).or(c.cap.map(|c| (c, "cap")));
        if let Some((room, which)) = room.filter(|(room, _)| below[i] > room.bytes_per_sec()) {
            let (sum, room) = (show(below[i]), show_rate(room));
            let what =
                format!("the guarantees below class {name} add up to {sum}, above its {which} of {room}");
            problems.error(*line, what, format!("lower them, or raise the {which}"));
        }
        if let Some(cap) = c.cap.filter(|cap| own(c) > cap.bytes_per_sec()) {
            let what = format!(
                "class {name} has a guarantee of {}, above its cap of {}",
                show(own(c)),
                show_rate(cap)
            );
            problems.error(*line, what, "lower the guarantee, or raise the cap");
        }
    }
    let promised = || classes.iter().find(|(c, _)| c.guarantee.is_some());
    match process_cap(process) {
        Some(cap) if top > cap.value.bytes_per_sec() => {
            let (sum, cap_text) = (show_rate(Rate::from_bytes_per_sec(top)), show_rate(cap.value));
            let what = format!("all guarantees add up to {sum}; a process sends {cap_text} at most");
            problems.error(cap.line, what, "lower guarantees, or raise cap and rate of [process]");
        }
        None if top > 0 => {
            let line = promised().map_or(1, |(_, line)| *line);
            let what = "a guarantee is given, but not what this process can send";
            problems.warning(
                line,
                what,
                "add rate = \"...\" (of its interface) or cap to [process]: without, a guarantee cannot be kept",
            );
        }
        _ => {}
    }
}

/// The share of each class in `total` while all classes in `used` have enough to send: levels in order, weights
/// within a level, each class between its guarantee and its cap.
pub(crate) fn shares(classes: &[Class], used: &[bool], total: Rate) -> Vec<Rate> {
    let mut floor: Vec<u64> = classes.iter().map(|c| c.guarantee.map_or(0, Rate::bytes_per_sec)).collect();
    let mut below = vec![0_u64; classes.len()];
    let mut room = vec![0_u64; classes.len()];
    for (i, c) in classes.iter().enumerate().rev() {
        floor[i] = floor[i].max(below[i]);
        let inside = if used[i] { u64::MAX } else { room[i] };
        room[i] = inside.min(c.cap.map_or(u64::MAX, Rate::bytes_per_sec));
        floor[i] = floor[i].min(room[i]);
        if let Some(p) = c.parent {
            below[p] = below[p].saturating_add(floor[i]);
            room[p] = room[p].saturating_add(room[i]);
        }
    }
    let mut shares = vec![0_u64; classes.len()];
    // Parents come before their children, so a parent's share is known when it is divided.
    for parent in core::iter::once(None).chain((0..classes.len()).map(Some)) {
        let mut left = parent.map_or(total.bytes_per_sec(), |p| shares[p]);
        let mut children: Vec<usize> = (0..classes.len()).filter(|i| classes[*i].parent == parent).collect();
        children.sort_by_key(|i| classes[*i].level);
        while let Some(&first) = children.first() {
            let (level, lower) =
                children.iter().partition::<Vec<usize>, _>(|i| classes[**i].level == classes[first].level);
            let kept: u64 = lower.iter().map(|i| floor[*i]).fold(0, u64::saturating_add);
            let members: Vec<_> =
                level.iter().map(|i| (u64::from(classes[*i].weight), floor[*i], room[*i])).collect();
            for (i, share) in level.iter().zip(divide(left.saturating_sub(kept), &members)) {
                shares[*i] = share;
                left = left.saturating_sub(share);
            }
            children = lower;
        }
    }
    shares.into_iter().map(Rate::from_bytes_per_sec).collect()
}

/// Divides an amount by weights, each part within bounds. Of the parts below their minimum and those above their
/// maximum, the kind with the greater total violation is fixed at its bounds, and the rest is divided again (as in
/// CSS Flexible Box Layout, section 9.7). Members are weight, minimum and maximum.
fn divide(amount: u64, members: &[(u64, u64, u64)]) -> Vec<u64> {
    let mut held: Vec<Option<u64>> = vec![None; members.len()];
    // Each iteration fixes at least one part.
    for _ in 0..=members.len() {
        let used: u64 = held.iter().flatten().fold(0, |a, b| a.saturating_add(*b));
        let left = u128::from(amount.saturating_sub(used));
        let open: Vec<usize> = (0..members.len()).filter(|i| held[*i].is_none()).collect();
        let weights: u128 = open.iter().map(|i| u128::from(members[*i].0)).sum();
        let part =
            |i: usize| u64::try_from(left * u128::from(members[i].0) / weights.max(1)).unwrap_or(u64::MAX);
        let clamped = |i: usize| part(i).min(members[i].2).max(members[i].1);
        let more: u128 = open.iter().map(|i| u128::from(clamped(*i).saturating_sub(part(*i)))).sum();
        let less: u128 = open.iter().map(|i| u128::from(part(*i).saturating_sub(clamped(*i)))).sum();
        for i in open {
            let bound = clamped(i);
            let out = if more > less { bound > part(i) } else { bound < part(i) };
            if out || more == less {
                held[i] = Some(bound);
            }
        }
        if held.iter().all(Option::is_some) {
            break;
        }
    }
    // Where the minima exceed the amount, earlier members come first.
    let mut left = amount;
    let give = |share: u64| {
        let given = share.min(left);
        left -= given;
        given
    };
    held.into_iter().map(Option::unwrap_or_default).map(give).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::platform::Order;

    fn class(name: &str, parent: Option<usize>, level: u8, weight: u32) -> Class {
        Class { name: name.into(), parent, weight, level, guarantee: None, cap: None, order: Order::Fair }
    }
    fn mbit(classes: &[Class], total: u64) -> Vec<u64> {
        let used: Vec<_> = (0..classes.len()).map(|i| classes.iter().all(|c| c.parent != Some(i))).collect();
        shares(classes, &used, Rate::from_mbit(total)).iter().map(|r| r.bits_per_sec() / 1_000_000).collect()
    }

    #[test]
    fn weights_divide_a_level_and_lower_levels_get_the_rest() {
        let c = [class("a", None, 0, 300), class("b", None, 0, 100), class("c", None, 1, 100)];
        assert_eq!(mbit(&c, 1000), [750, 250, 0]);
    }

    #[test]
    fn capped_share_goes_to_others_and_guarantees_come_first() {
        let mut c = [class("a", None, 0, 100), class("b", None, 0, 100), class("c", None, 7, 100)];
        c[0].cap = Some(Rate::from_mbit(100));
        c[2].guarantee = Some(Rate::from_mbit(300));
        assert_eq!(mbit(&c, 1000), [100, 600, 300]);
        // A guarantee below the weighted share changes nothing; one above it is taken from the others.
        let mut w = [class("a", None, 0, 100), class("b", None, 0, 300), class("c", None, 0, 100)];
        w[1].guarantee = Some(Rate::from_mbit(500));
        assert_eq!(mbit(&w, 1000), [200, 600, 200]);
        w[1].guarantee = Some(Rate::from_mbit(800));
        assert_eq!(mbit(&w, 1000), [100, 800, 100]);
        w[0].cap = Some(Rate::from_mbit(50));
        assert_eq!(mbit(&w, 1000), [50, 800, 150]);
        c[1].cap = Some(Rate::from_mbit(100));
        assert_eq!(mbit(&c, 1000), [100, 100, 800]);
    }

    #[test]
    fn children_divide_the_share_of_their_parent() {
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
