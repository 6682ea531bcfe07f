//! Turns a plan file into a checked plan: all combinations, names and limits.

use super::error::{PlanError, Source};
use super::file::{self, File, Kind, Number, Program, Text};
use super::grid::{self, Swept};
use super::{
    Cell, Flow, Lineup, MAX_DURATION, MAX_FLOWS, MAX_NODES, MAX_PUBLISHED, MAX_REPETITIONS, MAX_STREAMS,
    MAX_TEXT, Metric, Plan, Published, Regret, Topology, Truth, parts, trace, units, vary,
};
use crate::workload;
use base::{Rate, Span};
use netem::{Change, LinkConfig};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

pub(super) type Result<T> = std::result::Result<T, PlanError>;

/// Default number of valid runs.
const REPETITIONS: u32 = 5;
/// Default size of a request.
const REQUEST: u64 = 64 << 10;
/// The meaning of `:lose=1`: a chain that loses its first packet and none after it.
const LOSE_ONE: &str = ":loss=burst(p=100%,r=0%,good=100%,bad=0%)";
/// Longest congestion-control name that Linux has (`TCP_CA_NAME_MAX`).
const MAX_CC: usize = 15;

pub(super) fn plan(name: &str, text: &str) -> Result<Plan> {
    let src = Source { name, text };
    if text.len() > MAX_TEXT {
        let why = format!("{} bytes; a plan has at most {MAX_TEXT}", text.len());
        return Err(src.error(0..0, "the file", why));
    }
    let mut file: File = toml::from_str(text).map_err(|e| src.toml(&e))?;
    let x = Expander { src, simulator_only: file.simulator_only };
    file.peer = x.varied(&file.peer)?;
    let mut metrics = Vec::new();
    for m in &file.metrics {
        metrics.push(Metric::from_name(m.get_ref()).ok_or_else(|| {
            let all: Vec<_> = Metric::ALL.iter().map(|m| m.name()).collect();
            x.error_at(
                m,
                "metrics",
                format!("no metric is called `{}`; choose of: {}", m.get_ref(), all.join(", ")),
            )
        })?);
    }
    if metrics.is_empty() {
        return Err(src.error(0..0, "metrics", "none is named; write at least metrics = [\"goodput\"]"));
    }
    let repetitions = match &file.repetitions {
        Some(n) => x.check_range(n, "repetitions", 1, MAX_REPETITIONS)?,
        None => REPETITIONS,
    };
    let cells = x.cells(&file)?;
    Ok(Plan {
        name: name.to_owned(),
        title: file.title,
        about: file.about,
        repetitions,
        seed: file.seed.unwrap_or(1),
        metrics,
        simulator_only: file.simulator_only,
        published: x.published(file.published, &cells)?,
        regret: x.regret(file.regret.as_ref(), &cells)?,
        truth: x.truth(file.truth.as_ref(), &cells)?,
        cells,
    })
}

pub(super) struct Expander<'a> {
    src: Source<'a>,
    simulator_only: bool,
}

impl Expander<'_> {
    pub(super) fn error_at<T>(&self, at: &toml::Spanned<T>, key: &str, text: impl Display) -> PlanError {
        self.src.error(at.span(), key, text)
    }
    /// An error of the file as a whole.
    pub(super) fn file_error(&self, key: &str, text: String) -> PlanError {
        self.src.error(0..0, key, text)
    }
    fn check_range(&self, n: &Number, key: &str, low: u32, high: u32) -> Result<u32> {
        let v = *n.get_ref();
        if (low..=high).contains(&v) {
            return Ok(v);
        }
        Err(self.error_at(n, key, format!("{v} is out of range; write {low} to {high}")))
    }
    pub(super) fn span(&self, t: &Text, key: &str) -> Result<Span> {
        units::span(t.get_ref()).map_err(|e| self.error_at(t, key, e))
    }
    pub(super) fn duration(&self, t: &Text, key: &str) -> Result<Span> {
        let s = self.span(t, key)?;
        if s.is_zero() || s > MAX_DURATION {
            return Err(self.error_at(t, key, "write a time above zero of an hour (3600s) at most"));
        }
        Ok(s)
    }

    fn varied(&self, peers: &[file::Peer]) -> Result<Vec<file::Peer>> {
        let mut out = Vec::new();
        for p in peers {
            let all = vary::expand(p);
            if all.is_empty() || all.len() > vary::MAX_EXPANDED {
                let why =
                    format!("it stands for {} peers; vary it into 1 to {}", all.len(), vary::MAX_EXPANDED);
                return Err(self.error_at(&p.name, "peer.vary", why));
            }
            out.extend(all);
        }
        Ok(out)
    }

    fn cells(&self, file: &File) -> Result<Vec<Cell>> {
        let points = grid::points(self, file)?;
        let mut names: Vec<&str> = Vec::new();
        for p in &file.peer {
            let name = p.name.get_ref();
            if names.contains(&name.as_str()) || name.is_empty() {
                return Err(self.error_at(&p.name, "peer.name", "each peer needs a name of its own"));
            }
            names.push(name);
            for case in p.cases.iter().flatten() {
                let mut cases = file.case.iter().chain(file.grid.iter().flat_map(|g| &g.case));
                if !cases.any(|c| c.name.get_ref() == case.get_ref()) {
                    let why = format!("there is no [[case]] named `{}`; correct the name", case.get_ref());
                    return Err(self.error_at(case, "peer.cases", why));
                }
            }
        }
        let (mut cells, mut firsts) = (Vec::new(), BTreeMap::new());
        for (place, point) in (0..).zip(points) {
            let (seed, first) = match point.first() {
                Some(Swept::Grid(g)) if g.seed.is_some() => {
                    (g.seed, *firsts.entry(g.name.get_ref().clone()).or_insert(place))
                }
                _ => (file.seed, 0),
            };
            cells.extend(self.cell(file, &point, (seed.unwrap_or(1), place - first))?);
        }
        Ok(cells)
    }

    /// Checks the comparison of a peer with others.
    fn regret(&self, regret: Option<&toml::Spanned<Regret>>, cells: &[Cell]) -> Result<Option<Regret>> {
        let Some(at) = regret else { return Ok(None) };
        let r = at.get_ref();
        let known = |n: &String| cells.iter().any(|c| c.peers.iter().any(|p| p.name == *n));
        if let Some(n) = [&r.of].into_iter().chain(&r.against).find(|n| !known(n)) {
            return Err(self.error_at(at, "regret", format!("there is no peer `{n}`; correct the name")));
        }
        if r.against.is_empty() {
            return Err(self.error_at(at, "regret.against", "name one peer at least to compare with"));
        }
        Ok(Some(r.clone()))
    }

    /// Checks the comparison of the simulator with real time.
    fn truth(&self, truth: Option<&toml::Spanned<Truth>>, cells: &[Cell]) -> Result<Option<Truth>> {
        let Some(at) = truth else { return Ok(None) };
        let t = at.get_ref();
        if self.simulator_only {
            return Err(self.error_at(
                at,
                "truth",
                "the plan runs in the simulator only; remove one of both",
            ));
        }
        if !(t.within > 0.0 && t.within <= 1.0) {
            return Err(self.error_at(at, "truth.within", "write a difference above 0 of 1 at most"));
        }
        if !(1..=MAX_REPETITIONS).contains(&t.simulated) {
            let why = format!("{} is out of range; write 1 to {MAX_REPETITIONS}", t.simulated);
            return Err(self.error_at(at, "truth.simulated", why));
        }
        if let Some(r) = t.reasons.iter().find(|r| !cells.iter().any(|c| c.id == r.cell)) {
            let why = format!("there is no cell `{}`; correct the name", r.cell);
            return Err(self.error_at(at, "truth.reasons", why));
        }
        Ok(Some(t.clone()))
    }

    /// Checks published tables and the cells and peers that they refer to.
    fn published(&self, all: Vec<Published>, cells: &[Cell]) -> Result<Vec<Published>> {
        let bad =
            |title: &str, why: String| Err(self.src.error(0..0, "published", format!("{title}: {why}")));
        for p in &all {
            let even = p.rows.iter().all(|r| r.len() == p.columns.len());
            if !even
                || p.columns.is_empty()
                || all.len().max(p.rows.len()).max(p.columns.len()) > MAX_PUBLISHED
            {
                let why =
                    format!("write as many values in each row as columns, {MAX_PUBLISHED} of each at most");
                return bad(&p.title, why);
            }
            let peer = |n: &&String| !cells.iter().any(|c| c.peers.iter().any(|p| p.name == **n));
            if let Some(n) = p.cells.iter().find(|n| !cells.iter().any(|c| c.id == **n)) {
                return bad(&p.title, format!("there is no cell `{n}`; correct the name"));
            }
            if let Some(o) = p.ours.iter().find(|o| o.peers.len() + 1 != p.columns.len()) {
                let why = format!("write {} peers in ours, one for each column", p.columns.len() - 1);
                return bad(&p.title, format!("{}: {why}", o.title));
            }
            if let Some(n) = p.peers.iter().chain(p.ours.iter().flat_map(|o| &o.peers)).find(peer) {
                return bad(&p.title, format!("there is no peer `{n}`; correct the name"));
            }
        }
        Ok(all)
    }

    fn cell(&self, file: &File, point: &[Swept], chance: (u64, u64)) -> Result<Option<Cell>> {
        let mut t = file.topology.clone();
        let (mut duration, mut warm_up) = (&file.duration, file.warm_up.as_ref());
        let (mut streams, mut count, mut case, mut size) = (None, None, None, None);
        for v in point {
            match v {
                Swept::Grid(g) => {
                    overlay(&mut t, g.topology.clone());
                    duration = g.duration.as_ref().unwrap_or(duration);
                    warm_up = g.warm_up.as_ref().or(warm_up);
                }
                Swept::Case(c) => {
                    overlay(&mut t, c.topology.clone());
                    duration = c.duration.as_ref().unwrap_or(duration);
                    warm_up = c.warm_up.as_ref().or(warm_up);
                    case = Some(c.name.get_ref().as_str());
                }
                Swept::Number("streams", n) => streams = Some(n),
                Swept::Number(_, n) => count = Some(n),
                Swept::Text("size", text) => size = Some(text),
                Swept::Text(key, text) => *grid::field(&mut t, key) = Some(text.clone()),
            }
        }
        let length = self.duration(duration, "duration")?;
        let skip = warm_up.map_or(Ok(Span::ZERO), |w| self.span(w, "warm_up"))?;
        if let Some(w) = warm_up.filter(|_| skip >= length) {
            return Err(self.error_at(w, "warm_up", "it must be shorter than the duration"));
        }
        let topology = self.topology(&t, count)?;
        let mut peers = Vec::new();
        for p in &file.peer {
            if p.cases.as_ref().is_some_and(|c| !c.iter().any(|c| Some(c.get_ref().as_str()) == case)) {
                continue;
            }
            let mut flows = Vec::new();
            for f in &p.flow {
                let mut f = f.clone();
                f.size = size.cloned().or(f.size);
                self.flow(&mut flows, &f, &topology, (length, skip), (streams, count), false)?;
            }
            for f in &file.background {
                self.flow(&mut flows, f, &topology, (length, skip), (None, None), true)?;
            }
            peers.push(Lineup { name: p.name.get_ref().clone(), flows });
        }
        if peers.is_empty() {
            return Ok(None);
        }
        let point: Vec<_> = point.iter().map(Swept::words).collect();
        let id = point
            .iter()
            .map(|(k, v)| if k == "case" || k == "grid" { v.clone() } else { format!("{k}={v}") });
        let id = id.collect::<Vec<_>>().join(",");
        Ok(Some(Cell { id, point, topology, duration: length, warm_up: skip, peers, chance }))
    }

    /// Builds a link from the keys that describe it.
    fn link(&self, keys: &[(&'static str, Option<&Text>)], delay: Span, at: &[Text]) -> Result<LinkConfig> {
        let mut words = format!("delay={}ns", delay.as_nanos());
        for (key, text) in keys.iter().filter_map(|(k, t)| t.map(|t| (k, t))) {
            self.one_word(key, text)?;
            let word = format!(" {key}={}", text.get_ref());
            LinkConfig::parse(&format!("{words}{word}")).map_err(|e| {
                self.error_at(text, &format!("topology.{key}"), units::strip(&e.to_string(), key))
            })?;
            words.push_str(&word);
        }
        for text in at {
            self.one_word("at", text)?;
            let word = format!(" at={}", text.get_ref().replace(":lose=1", LOSE_ONE));
            LinkConfig::parse(&format!("{words}{word}"))
                .map_err(|e| self.error_at(text, "topology.at", units::strip(&e.to_string(), "at")))?;
            words.push_str(&word);
        }
        // Each piece has been parsed already; only their total length can be too much.
        LinkConfig::parse(&words).map_err(|e| self.src.error(0..0, "topology", e))
    }

    fn one_word(&self, key: &str, text: &Text) -> Result<()> {
        let (mut depth, mut stray) = (0i32, text.get_ref().is_empty());
        for c in text.get_ref().chars() {
            depth += i32::from(c == '(') - i32::from(c == ')');
            stray |= c.is_whitespace() && depth <= 0;
        }
        if stray {
            let why = format!("cannot read `{}`; write one value without spaces", text.get_ref());
            return Err(self.error_at(text, &format!("topology.{key}"), why));
        }
        Ok(())
    }

    fn topology(&self, t: &file::Topology, count: Option<&Number>) -> Result<Topology> {
        let here = |key: &str, why: &str| self.src.error(0..0, format!("topology.{key}"), why);
        let kind = t.kind.ok_or_else(|| here("kind", "missing; write path, dumbbell, star or two_paths"))?;
        let least = count.map_or(1, |n| *n.get_ref());
        let nodes = match (kind, &t.nodes) {
            (Kind::Path | Kind::TwoPaths | Kind::Direct, None) => 2,
            (Kind::Path | Kind::TwoPaths | Kind::Direct, Some(n)) => {
                return Err(self.error_at(n, "topology.nodes", "a path has two nodes always; remove it"));
            }
            (Kind::Dumbbell, Some(n)) => self.check_range(n, "topology.nodes", 1, MAX_NODES / 2)?.max(least),
            (Kind::Star, Some(n)) => self.check_range(n, "topology.nodes", 2, MAX_NODES)?.max(least + 1),
            (Kind::Dumbbell | Kind::Star, None) => {
                return Err(here("nodes", "missing; write how many pairs or hosts there are"));
            }
        };
        let most = if kind == Kind::Dumbbell { MAX_NODES / 2 } else { MAX_NODES };
        if let Some(n) = count.filter(|_| nodes > most) {
            return Err(self.error_at(
                n,
                "sweep.flows",
                format!("a topology has {most} nodes on a side at most"),
            ));
        }
        let rtts = self.rtts(t)?;
        let least = rtts.iter().min().copied().unwrap_or(Span::ZERO);
        let trace = t.trace.as_ref().map(|s| self.trace(s)).transpose()?;
        let mean = match (&trace, &t.rate) {
            (Some(lines), None) => {
                let rate = format!("{}bit", (trace::mean_rate(lines) / 8.0) as u64 * 8);
                t.trace.as_ref().map(|s| toml::Spanned::new(s.span(), rate))
            }
            (Some(_), Some(r)) => {
                return Err(self.error_at(r, "topology.rate", "a trace says the rate; remove one"));
            }
            (None, r) => r.clone(),
        };
        // The rate for "1bdp" may come from a trace.
        let keys = |rate| -> Vec<(&'static str, Option<&Text>)> {
            vec![("rate", rate), ("mtu", t.mtu.as_ref()), ("order", t.order.as_ref())]
        };
        let mut forward = keys(mean.as_ref());
        forward.extend([("queue", t.queue.as_ref()), ("ecn", t.ecn.as_ref()), ("jitter", t.jitter.as_ref())]);
        forward.extend([("reorder", t.reorder.as_ref()), ("duplicate", t.duplicate.as_ref())]);
        forward.extend([
            ("police", t.police.as_ref()),
            ("ecn1", t.ecn1.as_ref()),
            ("telemetry", t.telemetry.as_ref()),
        ]);
        forward.push(("loss", t.loss.as_ref()));
        let at = t.at.as_deref().unwrap_or(&[]);
        let forward = self.link(&forward, least / 2, at)?;
        let mut reverse = keys(mean.as_ref());
        reverse.extend([("queue", t.queue.as_ref()), ("loss", None)]);
        let loss_reverse = t.loss_reverse.as_ref().map(|l| self.link(&[("loss", Some(l))], Span::ZERO, &[]));
        let mut reverse = self.link(&reverse, least - least / 2, &[])?;
        if let Some(l) = loss_reverse {
            reverse.loss = l?.loss;
        }
        reverse.schedule = both_ways(&forward);
        let second = match (kind, &t.second) {
            (Kind::TwoPaths, s) => Some(self.second(t, s.as_ref(), least, &forward)?),
            (_, Some(_)) => return Err(here("second", "only two_paths has a second path; remove it")),
            (_, None) => None,
        };
        let host_rate = t.host_rate.as_ref().map_or(Ok(None), |r| self.host_rate(r))?;
        Ok(Topology { kind, nodes, forward, reverse, second, rtts, host_rate, trace })
    }

    fn rtts(&self, t: &file::Topology) -> Result<Vec<Span>> {
        if t.kind == Some(Kind::Direct) {
            let emulated =
                [&t.rate, &t.rtt, &t.queue, &t.loss, &t.jitter, &t.reorder, &t.ecn, &t.trace, &t.duplicate];
            let signals = [&t.ecn1, &t.telemetry, &t.host_rate, &t.police];
            return match emulated.into_iter().chain(signals).flatten().next() {
                Some(s) => {
                    Err(self.error_at(s, "topology", "nothing is emulated between direct nodes; remove it"))
                }
                None => Ok(vec![Span::ZERO]),
            };
        }
        let one = |s: &Text| self.span(s, "topology.rtt");
        match (&t.rtt, &t.rtts) {
            (Some(s), None) => Ok(vec![one(s)?]),
            (None, Some(all)) if !all.is_empty() && t.kind == Some(Kind::Dumbbell) => {
                all.iter().map(one).collect::<Result<Vec<_>>>()
            }
            (None, None) => Err(self.src.error(0..0, "topology.rtt", "missing; write rtt = \"70ms\"")),
            _ => {
                let why = "write rtt, or for the pairs of a dumbbell rtts, and not both";
                Err(self.src.error(0..0, "topology.rtts", why))
            }
        }
    }

    fn host_rate(&self, r: &Text) -> Result<Option<Rate>> {
        if !self.simulator_only {
            let why = "only simulated hosts have a speed; write simulator_only = true";
            return Err(self.error_at(r, "topology.host_rate", why));
        }
        let rate = self.rate(r, "topology.host_rate")?;
        if rate == Some(Rate::ZERO) {
            return Err(self.error_at(r, "topology.host_rate", "write a rate above zero"));
        }
        Ok(rate)
    }

    fn trace(&self, spec: &Text) -> Result<Arc<Vec<u64>>> {
        trace::load(spec.get_ref()).map(Arc::new).map_err(|e| self.error_at(spec, "topology.trace", e))
    }

    fn second(
        &self,
        t: &file::Topology,
        s: Option<&file::Second>,
        rtt: Span,
        first: &LinkConfig,
    ) -> Result<(LinkConfig, LinkConfig)> {
        let none = file::Second::default();
        let s = s.unwrap_or(&none);
        let rtt = s.rtt.as_ref().map_or(Ok(rtt), |r| self.span(r, "topology.second.rtt"))?;
        let rate = s.rate.as_ref().or(t.rate.as_ref());
        let queue = s.queue.as_ref().or(t.queue.as_ref());
        let (mtu, loss) = (t.mtu.as_ref(), s.loss.as_ref().or(t.loss.as_ref()));
        let keys = [("rate", rate), ("mtu", mtu), ("queue", queue)];
        let mut forward = self.link(&keys, rtt / 2, s.at.as_deref().unwrap_or(&[]))?;
        forward.loss = loss
            .map_or(Ok(first.loss), |l| self.link(&[("loss", Some(l))], Span::ZERO, &[]).map(|c| c.loss))?;
        let mut reverse = self.link(&keys, rtt - rtt / 2, &[])?;
        reverse.schedule = both_ways(&forward);
        Ok((forward, reverse))
    }

    fn flow(
        &self,
        out: &mut Vec<Flow>,
        f: &file::Flow,
        t: &Topology,
        (length, warm_up): (Span, Span),
        (streams, count): (Option<&Number>, Option<&Number>),
        background: bool,
    ) -> Result<()> {
        let many = count.or(f.count.as_ref());
        let many = many.map_or(Ok(1), |n| self.check_range(n, "flow.count", 1, MAX_FLOWS as u32))?;
        let stagger = f.stagger.as_ref().map_or(Ok(Span::ZERO), |s| self.span(s, "flow.stagger"))?;
        let streams = streams.or(f.streams.as_ref());
        let streams = streams.map_or(Ok(1), |n| self.check_range(n, "flow.streams", 1, MAX_STREAMS))?;
        let start = f.start.as_ref().map_or(Ok(Span::ZERO), |s| self.span(s, "flow.start"))?;
        let rate = |t: Option<&Text>, key| t.map_or(Ok(None), |t| self.rate(t, key));
        for i in 0..many {
            if out.len() == MAX_FLOWS {
                let why = format!("more than {MAX_FLOWS} flows in a line-up");
                return Err(self.error_at(&f.program, "flow", why));
            }
            let start = start + stagger * u64::from(i);
            if start >= length {
                let at = f.start.as_ref().or(f.stagger.as_ref()).map_or(0..0, toml::Spanned::span);
                return Err(self.src.error(at, "flow.start", "it begins after the end of the run"));
            }
            let duration = match &f.duration {
                Some(d) => self.duration(d, "flow.duration")?.min(length - start),
                None => length - start,
            };
            let known = match f.known_rate.as_ref().map(|k| (k.get_ref().as_str(), k)) {
                Some(("path", _)) => t.forward.rate,
                Some((_, k)) => self.rate(k, "flow.known_rate")?,
                None => None,
            };
            let (from, to) = self.ends(f, t, out.len())?;
            out.push(Flow {
                name: self.name(f, out, many, i, background),
                program: *f.program.get_ref(),
                cc: self.cc(f)?,
                from,
                to,
                start,
                duration,
                bytes: f.bytes.as_ref().map_or(Ok(None), |b| self.bytes(b, "flow.bytes").map(Some))?,
                streams,
                known_rate: known,
                limit: rate(f.limit.as_ref(), "flow.limit")?,
                rate: rate(f.rate.as_ref(), "flow.rate")?,
                on: f.on.as_ref().map_or(Ok(Span::ZERO), |s| self.span(s, "flow.on"))?,
                off: f.off.as_ref().map_or(Ok(Span::ZERO), |s| self.span(s, "flow.off"))?,
                size: f.size.as_ref().map_or(Ok(REQUEST), |b| self.bytes(b, "flow.size"))?,
                every: f
                    .every
                    .as_ref()
                    .map_or(Ok(None), |s| self.span(s, "flow.every").map(|s| Some(s.as_secs_f64())))?,
                multipath: f.multipath.unwrap_or(false),
                ping_pong: f.ping_pong.unwrap_or(false),
                busy_poll: f.busy_poll.unwrap_or(false),
                args: f.args.clone(),
                policy: self.policy(f)?,
                parts: parts::of(self, f)?,
                warm_up: warm_up - start.min(warm_up),
                background,
            });
            self.check_flow(f, t.kind, out.last())?;
        }
        Ok(())
    }

    /// Checks what a program needs and what it cannot use.
    fn check_flow(&self, f: &file::Flow, kind: Kind, flow: Option<&Flow>) -> Result<()> {
        let Some(flow) = flow else { return Ok(()) };
        let need = |key: &str, why: &str| Err(self.error_at(&f.program, &format!("flow.{key}"), why));
        match flow.program {
            _ if flow.multipath && kind != Kind::TwoPaths => {
                need("multipath", "only two_paths has several; remove it")
            }
            p if flow.multipath && !matches!(p, Program::Longhaul | Program::Tcp) => {
                need("multipath", "only longhaul and tcp (as MPTCP) can; remove it")
            }
            p if is_messages(p) != (kind == Kind::Direct) => need(
                "program",
                "programs of messages (tcp_messages) are for direct nodes, and others are not",
            ),
            p if (flow.ping_pong || flow.busy_poll) && !is_messages(p) => {
                need("ping_pong", "only message programs have ping_pong and busy_poll; remove it")
            }
            p if is_messages(p) && !(1..=workload::messages::MAX_SIZE as u64).contains(&flow.size) => {
                need("size", "a message has a byte at least and 1 GiB at most")
            }
            Program::Put if flow.bytes.is_none() => need("bytes", "put needs to know how much; add bytes"),
            Program::UdpOnOff if flow.rate.is_none() => need("rate", "UDP has no rate of its own; add rate"),
            Program::TcpRequests | Program::LonghaulRequests if flow.size == 0 => {
                need("size", "a request has at least one byte")
            }
            Program::LonghaulParts if flow.parts.is_empty() => {
                need("part", "longhaul_parts needs at least one; write part = [{ name = ..., qos = ... }]")
            }
            p if p != Program::LonghaulParts && !(flow.parts.is_empty() && flow.policy.is_empty()) => {
                need("part", "only longhaul_parts has parts and a policy; remove them")
            }
            Program::LonghaulParts if flow.known_rate.or(flow.limit).is_some() || flow.bytes.is_some() => {
                need(
                    "part",
                    "rates are the policy's, and amounts those of deadlines; remove known_rate, limit and bytes",
                )
            }
            p if flow.known_rate.is_some() && !is_longhaul(p) => {
                need("known_rate", "only Longhaul can be told a known rate; remove it")
            }
            p if flow.limit.is_some() && !is_longhaul(p) => {
                need("limit", "only Longhaul has a limit; remove it")
            }
            _ => Ok(()),
        }
    }

    fn rate(&self, t: &Text, key: &str) -> Result<Option<Rate>> {
        units::rate(t.get_ref()).map_err(|e| self.error_at(t, key, e))
    }
    fn bytes(&self, t: &Text, key: &str) -> Result<u64> {
        units::bytes(t.get_ref()).map_err(|e| self.error_at(t, key, e))
    }

    fn policy(&self, f: &file::Flow) -> Result<String> {
        let Some(text) = &f.policy else { return Ok(String::new()) };
        workload::parts::policy_of(text.get_ref()).map_err(|e| self.error_at(text, "flow.policy", e))?;
        Ok(text.get_ref().clone())
    }

    /// The sender's and receiver's nodes of flow `nth`: its own pair, unless given.
    fn ends(&self, f: &file::Flow, t: &Topology, nth: usize) -> Result<(String, String)> {
        let names = t.node_names();
        let pair = nth % t.nodes.max(1) as usize + 1;
        let (from, to) = match t.kind {
            Kind::Path | Kind::TwoPaths | Kind::Direct => ("a".to_owned(), "b".to_owned()),
            Kind::Dumbbell => (format!("s{pair}"), format!("r{pair}")),
            // All send to the first host, whose port is the bottleneck.
            Kind::Star => (format!("n{}", nth % (t.nodes.max(2) as usize - 1) + 2), "n1".to_owned()),
        };
        let choose = |t: Option<&Text>, default: String, key: &str| match t {
            None => Ok(default),
            Some(t) if names.contains(t.get_ref()) => Ok(t.get_ref().clone()),
            Some(t) => {
                let why = format!("there is no node `{}`; there are {}", t.get_ref(), names.join(", "));
                Err(self.error_at(t, key, why))
            }
        };
        let ends = (choose(f.from.as_ref(), from, "flow.from")?, choose(f.to.as_ref(), to, "flow.to")?);
        if ends.0 == ends.1 {
            return Err(self.error_at(&f.program, "flow.to", "a flow goes from one node to another"));
        }
        Ok(ends)
    }

    fn cc(&self, f: &file::Flow) -> Result<String> {
        let Some(text) = &f.cc else { return Ok(String::new()) };
        let cc = text.get_ref();
        match f.program.get_ref() {
            p if is_longhaul(*p) || *p == Program::LonghaulMessages => {
                cc::registry::parse(cc).map_err(|e| self.error_at(text, "flow.cc", e))?;
            }
            Program::Quic if !["cubic", "bbr", "newreno"].contains(&cc.as_str()) => {
                return Err(self.error_at(text, "flow.cc", "quinn has cubic, bbr and newreno; choose one"));
            }
            _ => {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                if cc.is_empty() || cc.len() > MAX_CC || !cc.chars().all(plain) {
                    let why = "write the name of one of the kernel's algorithms, such as cubic or bbr";
                    return Err(self.error_at(text, "flow.cc", why));
                }
            }
        }
        Ok(cc.clone())
    }

    /// A unique name within the line-up.
    fn name(&self, f: &file::Flow, out: &[Flow], many: u32, i: u32, background: bool) -> String {
        let word = match f.program.get_ref() {
            Program::Longhaul
            | Program::Put
            | Program::LonghaulRequests
            | Program::LonghaulParts
            | Program::LonghaulMessages => "longhaul",
            Program::Tcp
            | Program::Iperf3
            | Program::TcpRequests
            | Program::TcpOnOff
            | Program::TcpMessages => "tcp",
            Program::IwarpMessages => "iwarp",
            Program::Quic => "quic",
            Program::Udt => "udt",
            Program::UdpOnOff => "udp",
        };
        let mut base = f.name.clone().unwrap_or_else(|| match &f.cc {
            Some(cc) => format!("{word} {}", cc.get_ref()),
            None => word.to_owned(),
        });
        if background && f.name.is_none() {
            base.push_str(" background");
        }
        let mut name = if many > 1 { format!("{base} {}", i + 1) } else { base.clone() };
        let mut n = 2;
        while out.iter().any(|o| o.name == name) {
            name = format!("{base} {n}");
            n += 1;
        }
        name
    }
}

/// Whether a program is Longhaul's and uses the registry of algorithms.
fn is_longhaul(p: Program) -> bool {
    matches!(p, Program::Longhaul | Program::Put | Program::LonghaulRequests | Program::LonghaulParts)
}

/// Whether a program sends messages between direct nodes.
fn is_messages(p: Program) -> bool {
    matches!(p, Program::TcpMessages | Program::IwarpMessages | Program::LonghaulMessages)
}

/// Overrides the topology with the settings of a case.
fn overlay(t: &mut file::Topology, c: file::Topology) {
    fn put<T>(to: &mut Option<T>, from: Option<T>) {
        if from.is_some() {
            *to = from;
        }
    }
    if c.rtts.is_some() || c.rtt.is_some() {
        (t.rtt, t.rtts) = (None, None);
    }
    if c.trace.is_some() {
        t.rate = None;
    }
    put(&mut t.kind, c.kind);
    put(&mut t.nodes, c.nodes);
    put(&mut t.rate, c.rate);
    put(&mut t.rtt, c.rtt);
    put(&mut t.rtts, c.rtts);
    put(&mut t.queue, c.queue);
    put(&mut t.police, c.police);
    put(&mut t.loss, c.loss);
    put(&mut t.loss_reverse, c.loss_reverse);
    put(&mut t.jitter, c.jitter);
    put(&mut t.order, c.order);
    put(&mut t.reorder, c.reorder);
    put(&mut t.duplicate, c.duplicate);
    put(&mut t.ecn, c.ecn);
    put(&mut t.ecn1, c.ecn1);
    put(&mut t.telemetry, c.telemetry);
    put(&mut t.host_rate, c.host_rate);
    put(&mut t.mtu, c.mtu);
    put(&mut t.trace, c.trace);
    put(&mut t.at, c.at);
    put(&mut t.second, c.second);
}

/// The part of a schedule that applies to both directions: outages do, everything else only forward.
fn both_ways(there: &LinkConfig) -> Vec<(base::Time, Change)> {
    there.schedule.iter().filter(|(_, c)| matches!(c, Change::BlackOut(_))).cloned().collect()
}
