//! Names of algorithms, and which of them a policy may use.

use super::table::{Reader, Refusal, Table};
use crate::problem::{did_you_mean, quote};
use crate::spec::{At, MAX_NAMES, Peer};
use cc::Marks;
use cc::registry::{self, Error, NameFault};
use std::rc::Rc;

/// Where a policy is to be in force, and the programs that it says are loaded there.
#[derive(Debug, Default)]
pub struct Known {
    /// On hosts of which nothing is known here: what they have loaded is only what the policy says.
    pub elsewhere: bool,
    /// Names of the programs that the policy says are loaded.
    pub programs: Vec<String>,
}

impl Known {
    fn declares(&self, name: &str) -> bool {
        self.programs.iter().any(|p| p == name)
    }

    /// Names that can be written.
    fn names(&self) -> Vec<&str> {
        let here = registry::names().into_iter().filter(|n| !self.elsewhere || registry::is_built_in(n));
        here.chain(self.programs.iter().map(String::as_str)).collect()
    }

    fn unknown(&self, name: &str) -> Refusal {
        let e = Error::UnknownAlgorithm { name: name.chars().take(registry::MAX_TEXT).collect() };
        let how = match self.elsewhere {
            true => "a program goes into programs = [...] of the policy, and is loaded at each host",
            false => "one that is to be loaded must be loaded first",
        };
        Refusal {
            what: format!("cannot be used: {e}"),
            remedy: format!("{}; {how}", did_you_mean(name, self.names())),
        }
    }

    /// A name of an algorithm, without parameters.
    fn name(&self, text: &str) -> Result<String, Refusal> {
        if self.names().contains(&text) { Ok(text.to_owned()) } else { Err(self.unknown(text)) }
    }

    /// A name with parameters. Those of a program that is not loaded here are checked where it is.
    pub fn selection(&self, text: &str) -> Result<String, Refusal> {
        let (name, params) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        if self.elsewhere && !registry::is_built_in(name) && !self.declares(name) {
            return Err(self.unknown(name));
        }
        let e = match registry::parse(text) {
            Ok(_) => return Ok(text.to_owned()),
            Err(Error::UnknownAlgorithm { .. }) if self.declares(name) => match form(params) {
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

    /// What may take another one's place.
    pub fn substitute(&self, text: &str) -> Result<String, Refusal> {
        let text = self.selection(text)?;
        let needs = registry::parse(&text).map(|(def, _)| def.needs).unwrap_or_default();
        if needs.telemetry || needs.marks != Marks::Optional {
            return Err(Refusal {
                what: "needs marks or telemetry of the path itself, so that it can be no substitute".into(),
                remedy: format!("choose one that needs neither, such as {}", cc::DEFAULT),
            });
        }
        Ok(text)
    }
}

/// Whether a text has the form of parameters.
fn form(params: &str) -> Result<(), Error> {
    if params.len() > registry::MAX_TEXT {
        return Err(Error::TooLong { len: params.len() });
    }
    let mut pieces = params.split(',').map(str::trim).filter(|p| !p.is_empty());
    match pieces.find(|p| !p.contains('=')) {
        Some(piece) => Err(Error::Syntax { text: piece.to_owned() }),
        None => Ok(()),
    }
}

/// The programs that the policy says are loaded: those that are not are told, where it is known what is.
pub fn programs(root: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Vec<At<String>> {
    let read = |text: &str| match registry::loadable(text) {
        // The kernel's own are what rules for TCP connections name so.
        Ok(()) | Err(Error::BadName { fault: NameFault::Kernel, .. }) => Ok(vec![text.to_owned()]),
        Err(Error::BadName { fault: NameFault::BuiltIn, .. }) => {
            Err(Refusal { what: "is built in: every host has it".into(), remedy: "leave it out".into() })
        }
        Err(e) => Err(Refusal { what: "is not the name of a program".into(), remedy: e.to_string() }),
    };
    let all = root.values("programs", r, read);
    let elsewhere = r.algorithms.elsewhere;
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
    r.algorithms = Rc::new(Known { elsewhere, programs });
    all
}

/// Names of one key, each once; `none` alone stands for an empty list. `None`: the key is not there.
fn names(
    key: &'static str,
    t: &mut Table<'_, '_>,
    r: &mut Reader<'_>,
    read: impl Fn(&Known, &str) -> Result<String, Refusal>,
) -> Option<Vec<At<String>>> {
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
        if all[..i].iter().any(|before| bare(&before.value) == bare(&n.value)) {
            let what = format!("{key} of {} names {} twice", t.what, bare(&n.value));
            r.problems.error(n.line, what, "name it once");
        }
    }
    Some(all)
}

/// The name alone.
fn bare(selection: &str) -> &str {
    selection.split(':').next().unwrap_or_default().trim()
}

/// What is to be settled with the other end.
pub fn peer(t: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Peer {
    let peer = Peer {
        firm: t.switch("cc_firm", r),
        allow: names("cc_allow", t, r, Known::name),
        wish: names("cc_wish", t, r, Known::selection),
        wish_only: t.switch("cc_wish_only", r),
        refuse: names("cc_refuse", t, r, Known::name),
    };
    let wished = peer.wish.iter().flatten();
    let refused = |w: &str| peer.refuse.iter().flatten().any(|n| n.value == bare(w));
    for w in wished.clone().filter(|w| refused(&w.value)) {
        let what = format!("{} both wishes and refuses {}", t.what, bare(&w.value));
        r.problems.error(w.line, what, "leave it out of cc_wish or of cc_refuse");
    }
    if peer.wish_only == Some(true) && wished.count() == 0 {
        let what = format!("{} has cc_wish_only, but wishes nothing", t.what);
        r.problems.error(t.line, what, "add cc_wish = [...], or leave cc_wish_only out");
    }
    peer
}
