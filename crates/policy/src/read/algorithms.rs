//! Parses names of algorithms and checks which of them a policy may use.

use super::table::{Reader, Refusal, Table};
use crate::problem::{did_you_mean, quote};
use crate::spec::{Located, MAX_NAMES, Peer};
use cc::Marks;
use cc::registry::{self, Error, NameFault};
use std::rc::Rc;

/// The algorithms that a policy may name.
#[derive(Debug, Default)]
pub struct KnownAlgorithms {
    /// The policy is for other hosts, whose loaded programs are known only from the policy's own declaration.
    pub for_other_hosts: bool,
    /// Programs that the policy declares as loaded.
    pub programs: Vec<String>,
}

impl KnownAlgorithms {
    fn declares(&self, name: &str) -> bool {
        self.programs.iter().any(|p| p == name)
    }

    /// Every name that may be used.
    fn names(&self) -> Vec<&str> {
        let here =
            registry::names().into_iter().filter(|n| !self.for_other_hosts || registry::is_built_in(n));
        here.chain(self.programs.iter().map(String::as_str)).collect()
    }

    fn unknown(&self, name: &str) -> Refusal {
        let e = Error::UnknownAlgorithm { name: name.chars().take(registry::MAX_TEXT).collect() };
        let how = match self.for_other_hosts {
            true => "a program goes into programs = [...] of the policy, and is loaded at each host",
            false => "one that is to be loaded must be loaded first",
        };
        Refusal {
            what: format!("cannot be used: {e}"),
            remedy: format!("{}; {how}", did_you_mean(name, self.names())),
        }
    }

    /// Parses a name without parameters.
    fn name(&self, text: &str) -> Result<String, Refusal> {
        if self.names().contains(&text) { Ok(text.to_owned()) } else { Err(self.unknown(text)) }
    }

    /// Parses a name with parameters. Parameters of a program that is not loaded here are checked on the hosts
    /// that have it.
    pub fn selection(&self, text: &str) -> Result<String, Refusal> {
        let (name, params) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        if self.for_other_hosts && !registry::is_built_in(name) && !self.declares(name) {
            return Err(self.unknown(name));
        }
        let e = match registry::parse(text) {
            Ok(_) => return Ok(text.to_owned()),
            Err(Error::UnknownAlgorithm { .. }) if self.declares(name) => match check_syntax(params) {
                Ok(()) => return Ok(text.to_owned()),
                Err(e) => e,
            },
            Err(Error::UnknownAlgorithm { .. }) => return Err(self.unknown(name)),
            Err(e) => e,
        };
        let remedy = match &e {
            Error::UnknownParameter { algorithm, key } => {
                let def = registry::find(algorithm).ok();
                did_you_mean(key, def.into_iter().flat_map(|d| d.params).map(|p| p.name))
            }
            _ => "see `longhaul cc describe`".into(),
        };
        Err(Refusal { what: format!("cannot be used: {e}"), remedy })
    }

    /// Parses a fallback, which must need no signals of its own.
    pub fn fallback(&self, text: &str) -> Result<String, Refusal> {
        let text = self.selection(text)?;
        let needs = registry::parse(&text).map(|(def, _)| def.needs).unwrap_or_default();
        if needs.telemetry || needs.marks != Marks::Optional {
            return Err(Refusal {
                what: "needs marks or telemetry of the path itself, so that it can be no fallback".into(),
                remedy: format!("choose one that needs neither, such as {}", cc::DEFAULT),
            });
        }
        Ok(text)
    }
}

/// Checks the syntax of parameters.
fn check_syntax(params: &str) -> Result<(), Error> {
    if params.len() > registry::MAX_TEXT {
        return Err(Error::TooLong { len: params.len() });
    }
    let mut pieces = params.split(',').map(str::trim).filter(|p| !p.is_empty());
    match pieces.find(|p| !p.contains('=')) {
        Some(piece) => Err(Error::Syntax { text: piece.to_owned() }),
        None => Ok(()),
    }
}

/// Parses the declaration of programs. Declared programs that are not loaded are problems, where this host's own
/// are meant.
pub fn programs(root: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Vec<Located<String>> {
    let read = |text: &str| match registry::check_name(text) {
        // Rules for TCP connections name the kernel's own algorithms like this.
        Ok(()) | Err(Error::BadName { fault: NameFault::Kernel, .. }) => Ok(vec![text.to_owned()]),
        Err(Error::BadName { fault: NameFault::BuiltIn, .. }) => {
            Err(Refusal { what: "is built in: every host has it".into(), remedy: "leave it out".into() })
        }
        Err(e) => Err(Refusal { what: "is not the name of a program".into(), remedy: e.to_string() }),
    };
    let all = root.values("programs", r, read);
    let elsewhere = r.algorithms.for_other_hosts;
    for (i, p) in all.iter().enumerate() {
        if all[..i].iter().any(|before| before.value == p.value) {
            r.problems.error(p.line, format!("programs names {} twice", quote(&p.value)), "name it once");
        } else if !elsewhere && registry::find(&p.value).is_err() {
            let what = format!("the policy needs the program {}, which is not loaded here", quote(&p.value));
            let remedy =
                "load it by `longhaul cc load FILE`, or with --cc-program FILE when the process starts";
            r.problems.error(p.line, what, remedy);
        }
    }
    let programs = all.iter().map(|p| p.value.clone()).collect();
    r.algorithms = Rc::new(KnownAlgorithms { for_other_hosts: elsewhere, programs });
    all
}

/// Parses the names of one key, each at most once; `none` alone stands for an empty list. `None`: the key is
/// absent.
fn names(
    key: &'static str,
    t: &mut Table<'_, '_>,
    r: &mut Reader<'_>,
    read: impl Fn(&KnownAlgorithms, &str) -> Result<String, Refusal>,
) -> Option<Vec<Located<String>>> {
    let item = t.get(key)?;
    if item.get_ref().as_str() == Some("none") {
        return Some(Vec::new());
    }
    let (line, known) = (r.line(&item.span()), r.algorithms.clone());
    let all = t.values(key, r, |text| read(&known, text).map(|n| vec![n]));
    if all.len() > MAX_NAMES {
        let what = format!("{key} of {} has {} values", t.what, all.len());
        r.problems.error(line, what, format!("give {MAX_NAMES} at most"));
    }
    for (i, n) in all.iter().enumerate() {
        if all[..i].iter().any(|before| algorithm_name(&before.value) == algorithm_name(&n.value)) {
            let what = format!("{key} of {} names {} twice", t.what, algorithm_name(&n.value));
            r.problems.error(n.line, what, "name it once");
        }
    }
    Some(all)
}

/// The name without the parameters.
fn algorithm_name(selection: &str) -> &str {
    selection.split(':').next().unwrap_or_default().trim()
}

/// Parses the terms for the peer.
pub fn peer(t: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Peer {
    let peer = Peer {
        prefer_own: t.boolean("cc_prefer_own", r),
        allow: names("cc_allow", t, r, KnownAlgorithms::name),
        preferred: names("peer_cc", t, r, KnownAlgorithms::selection),
        preferred_only: t.boolean("peer_cc_only", r),
        refuse: names("peer_cc_refuse", t, r, KnownAlgorithms::name),
    };
    let preferred = peer.preferred.iter().flatten();
    let refused = |w: &str| peer.refuse.iter().flatten().any(|n| n.value == algorithm_name(w));
    for w in preferred.clone().filter(|w| refused(&w.value)) {
        let what = format!("{} both prefers and refuses {}", t.what, algorithm_name(&w.value));
        r.problems.error(w.line, what, "leave it out of peer_cc or of peer_cc_refuse");
    }
    if peer.preferred_only == Some(true) && preferred.count() == 0 {
        let what = format!("{} has peer_cc_only, but no peer_cc", t.what);
        r.problems.error(t.line, what, "add peer_cc = [...], or leave peer_cc_only out");
    }
    peer
}
