//! Compiles a policy's rules to a BPF program that the kernel runs when a TCP socket connects or accepts.
//!
//! The rows of [`Policy::table`](policy::Policy::table) become comparisons in order; the first row that matches calls
//! [`apply`](code::apply) with its action. As the table is in the code, replacing a link's program replaces the whole
//! table atomically.

mod code;
mod names;
#[cfg(test)]
mod tests;

use super::asm::Asm;
use super::btf::Btf;
use super::object::Function;
use super::{Error, load};
use code::{Action, MapFds, Socket};
use policy::table::{Conditions, Outcome, Row};
use policy::{Policy, Process};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Most comparisons of all rules together: the kernel's verifier keeps no more of them in mind (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`
/// is 8,192, and what comes before the rules has some).
const MAX_BRANCHES: usize = 8_000;
/// Most names in a remark.
const MAX_NAMES: usize = 5;
/// A rate of so many bytes per second or more cannot be said: options of sockets have 32 bits, and all ones are no limit.
const NO_CAP: u64 = u32::MAX as u64;
/// Bytes of what is kept of a listening socket: its program's name.
pub(crate) const NAME_ROOM: u32 = names::ROOM as u32;
/// What the programs are licensed under, for the kernel's helpers.
const LICENCE: &std::ffi::CStr = c"Dual MIT/GPL";

/// Rules that the kernel can be given.
#[derive(Clone, Debug)]
pub struct Rules {
    rows: Vec<PreparedRow>,
    acts: Vec<Action>,
    remarks: Vec<String>,
}

/// Rows that differ only in code points and in what is done, with the names in the kernel's form.
#[derive(Clone, Debug)]
struct PreparedRow {
    rule: Option<usize>,
    /// The conditions, except for the code points.
    when: Conditions,
    /// `None` means any name.
    names: Option<Vec<names::NameMatch>>,
    /// Disjoint sets of code points, each with the index of its action.
    acts: Vec<(u64, usize)>,
}

/// The algorithm that the kernel uses for a flow of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The one that the policy names.
    Algorithm(String),
    /// The policy's fallback, since the kernel lacks the algorithm.
    Fallback(String),
    /// The system's default, since the kernel has neither.
    Neither,
}

/// Selects the algorithm, or its fallback if the kernel lacks it. Both are written as in policies, with parameters; `has`
/// returns whether the kernel has a name.
pub fn select_algorithm(algorithm: &str, fallback: &str, has: impl Fn(&str) -> bool) -> Selection {
    let there = |spec: &str| kernel_name(spec, &has).filter(|n| has(n));
    match (there(algorithm), there(fallback)) {
        (Some(name), _) => Selection::Algorithm(name),
        (None, Some(name)) => Selection::Fallback(name),
        (None, None) => Selection::Neither,
    }
}

/// The kernel's name of an algorithm of a policy, whether it has it or not; `None` if it cannot be a name there.
fn kernel_name(spec: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let mut names = policy::kernel_names(spec);
    names.retain(|name| load::check_name(name).is_ok());
    names.iter().find(|name| has(name)).or(names.last()).cloned()
}

impl Rules {
    /// The rules of a policy. `has` returns whether the kernel has an algorithm of this name now; those that it gets later
    /// are used from then on.
    pub fn of(policy: &Policy, has: impl Fn(&str) -> bool) -> Rules {
        // A query for a name that the kernel lacks makes it search for a module, so each name is queried once.
        let asked = RefCell::new(BTreeMap::new());
        let has = |name: &str| *asked.borrow_mut().entry(name.to_owned()).or_insert_with(|| has(name));
        let table = policy.table();
        let mut out = Rules { rows: Vec::new(), acts: Vec::new(), remarks: Vec::new() };
        let mut known: BTreeMap<Action, usize> = BTreeMap::new();
        let mut untold: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for row in table.iter() {
            let names = match &row.when.application {
                None => None,
                Some(patterns) => {
                    let ways: Vec<_> = patterns.iter().map(|p| (p.as_str(), names::ways(p))).collect();
                    for (pattern, _) in ways.iter().filter(|(_, w)| w.is_none()) {
                        untold.entry(pattern).or_default().extend(row.rule);
                    }
                    Some(ways.into_iter().filter_map(|(_, w)| w).flatten().collect::<Vec<_>>())
                }
            };
            if names.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let act = Action::of(&row.then, &has);
            let next = out.acts.len();
            let act = *known.entry(act.clone()).or_insert_with(|| {
                out.acts.push(act);
                next
            });
            let when = Conditions { dscp: 0, ..row.when.clone() };
            match out.rows.last_mut().filter(|r| r.rule == row.rule && r.when == when) {
                Some(same) => same.acts.push((row.when.dscp, act)),
                None => out.rows.push(PreparedRow {
                    rule: row.rule,
                    when,
                    names,
                    acts: vec![(row.when.dscp, act)],
                }),
            }
        }
        out.remarks = remarks(policy, &table, &untold, has);
        out
    }

    /// What the kernel's sockets cannot be told, and what happens instead: a sentence each.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Loads the program; `names` is the map that keeps programs' names.
    pub(crate) fn load(&self, names: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
        let constants: Vec<u8> = self.acts.iter().flat_map(Action::bytes).collect();
        let constants =
            super::sys::constants(&constants).map_err(Error::call("making a BPF map of a policy"))?;
        let socket = Socket::of(&load::types()?)?;
        let places = MapFds { constants: constants.as_raw_fd(), names: names.as_raw_fd() };
        let code = self.code(&socket, places)?.1;
        let function = Function { name: "longhaul_rules".into(), code, ..Function::default() };
        load::load_verified(&function, super::sys::Purpose::Sockets, LICENCE)
    }

    /// The program, and where its comparisons begin.
    fn code(&self, socket: &Socket, places: MapFds) -> Result<(usize, Vec<super::sys::Insn>), Error> {
        let mut asm = Asm::default();
        let apply = asm.label();
        code::gather(&mut asm, socket, places);
        let start = asm.here();
        let mut open = true;
        for row in &self.rows {
            if !code::row(&mut asm, row, apply, places) {
                // The kernel refuses code that is never reached.
                open = false;
                break;
            }
        }
        if open {
            asm.give(1);
        }
        asm.place(apply);
        code::apply(&mut asm);
        if asm.branches > MAX_BRANCHES {
            let text = format!("it takes {} comparisons, and at most {MAX_BRANCHES} are taken", asm.branches);
            return Err(Error::TooManyRules(text));
        }
        Ok((start, asm.finish()?))
    }
}

/// What of the policy does not reach the kernel's sockets, and what happens instead.
fn remarks(
    policy: &Policy,
    table: &[Row],
    untold: &BTreeMap<&str, Vec<usize>>,
    has: impl Fn(&str) -> bool,
) -> Vec<String> {
    let name = |rule: Option<usize>| match rule {
        Some(i) => format!("rule \"{}\"", policy.spec().rules[i].name.value.escape_debug()),
        None => "connections that no rule fits".to_owned(),
    };
    let mut out = Vec::new();
    for (pattern, rules) in untold {
        let whose = join_names(rules.iter().map(|i| name(Some(*i))));
        out.push(format!(
            "the pattern \"{}\" of {whose} fits none: it is longer than the 15 bytes of a name that the kernel keeps, or has too many stars",
            pattern.escape_debug()
        ));
    }
    for (i, rule) in policy.spec().rules.iter().enumerate() {
        let there = || table.iter().any(|r| r.rule == Some(i));
        let asks = &rule.when.qos;
        if !asks.is_empty() && !there() {
            let words = join_names(asks.iter().map(|w| w.name().to_owned()));
            out.push(format!(
                "{} is for what asks for {words}, which no other program's socket can: it fits none",
                name(Some(i))
            ));
        }
    }
    let mut tell = |what: &dyn Fn(&Outcome) -> Option<String>| {
        let mut all: BTreeMap<String, Vec<Option<usize>>> = BTreeMap::new();
        for row in table {
            let Some(text) = what(&row.then) else { continue };
            let rules = all.entry(text).or_default();
            if !rules.contains(&row.rule) {
                rules.push(row.rule);
            }
        }
        out.extend(
            all.into_iter()
                .map(|(text, rules)| format!("{text} ({})", join_names(rules.into_iter().map(name)))),
        );
    };
    tell(&|o| match select_algorithm(&o.algorithm, &o.fallback, &has) {
        Selection::Algorithm(_) => None,
        Selection::Fallback(s) => Some(format!("this kernel has no {}: {s} is used", o.algorithm)),
        Selection::Neither if o.fallback == o.algorithm || o.fallback.is_empty() => {
            Some(format!("this kernel has no {}: its default stays", o.algorithm))
        }
        Selection::Neither => {
            Some(format!("this kernel has neither {} nor {}: its default stays", o.algorithm, o.fallback))
        }
    });
    tell(&|o| {
        let there = matches!(select_algorithm(&o.algorithm, &o.fallback, &has), Selection::Algorithm(_));
        (there && o.algorithm.contains(':')).then(|| {
            format!("the parameters of {} are not the kernel's: it is used with its own", o.algorithm)
        })
    });
    tell(&|o| {
        let beyond = o.cap.filter(|c| c.bytes_per_sec() >= NO_CAP)?;
        Some(format!("a cap of {beyond} is above what a socket can be told, 34.3 Gbit/s: it has none"))
    });
    tell(&|o| o.guarantee.map(|g| format!("the kernel's sockets share nothing: {g} is not guaranteed")));
    out.extend(not_shared(policy));
    out
}

/// What of the policy divides what Longhaul sends, and nothing else.
fn not_shared(policy: &Policy) -> Vec<String> {
    let (spec, mut out) = (policy.spec(), Vec::new());
    let classed = spec.rules.iter().any(|r| r.then.class.is_some() || r.then.weight.is_some());
    if classed || spec.classes.iter().any(|c| c.cap.is_some()) {
        out.push("classes and weights divide what Longhaul sends: the kernel's sockets are in none".into());
    }
    if spec.process != Process::default() {
        out.push("[process] is about what Longhaul sends: of the kernel's sockets each has the cap of its rule only".into());
    }
    out
}

/// Names in a row, cut where there are many.
fn join_names(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    let mut text = names.iter().take(MAX_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMES {
        text.push_str(&format!(" and {} more", names.len() - MAX_NAMES));
    }
    text
}
