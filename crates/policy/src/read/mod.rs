//! Parses a policy file from TOML into [`Spec`] and collects the problems of single values.

mod algorithms;
mod table;

use crate::problem::{did_you_mean, quote};
use crate::spec::{
    ClassSpec, DEFAULT_LEVEL, DEFAULT_WEIGHT, Located, MAX_CLASSES, MAX_FILE, MAX_LEVEL, MAX_PATHS,
    MAX_RULES, Match, PathSpec, Process, QosKind, Rule, Spec, Treatment, order_name,
};
use crate::units::{self, BadPrefix, Ports, Prefix, Priorities};
use cc::platform::{Carrier, Order};
pub(crate) use table::Reader;
use table::{Item, Refusal, Table, name, one_of};
use toml::de::{DeTable, DeValue};

const ORDERS: [(&str, Order); 3] = [
    (order_name(Order::Fair), Order::Fair),
    (order_name(Order::Strict), Order::Strict),
    (order_name(Order::Deadline), Order::Deadline),
];
const CARRIERS: [(&str, Carrier); 3] = [
    (Carrier::Native.name(), Carrier::Native),
    (Carrier::Tcp.name(), Carrier::Tcp),
    (Carrier::Roce.name(), Carrier::Roce),
];

/// Parses everything that can be parsed; the problems are in the reader.
pub(crate) fn spec(text: &str, r: &mut Reader<'_>) -> Spec {
    let mut spec = Spec::default();
    if text.len() > MAX_FILE {
        let what = format!("the policy is {} bytes long; at most {MAX_FILE} are read", text.len());
        r.problems.error(1, what, "leave rules out, or use shorter prefixes");
        return spec;
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    for e in &errors {
        let line = e.span().map_or(1, |span| r.line(&span));
        r.problems.error(
            line,
            format!("not TOML: {}", e.message().replace('\n', ", ")),
            "see https://toml.io",
        );
    }
    let mut root = Table::root(document.get_ref());
    // Programs come first, since the other parts may name them.
    spec.programs = algorithms::programs(&mut root, r);
    spec.process = process(&mut root, r);
    if let Some(t) = root.get("default").and_then(|i| Table::of("[default]", i, r)) {
        spec.default = treatment_table(t, r);
    }
    if let Some(t) = root.get("qos").and_then(|i| Table::of("[qos]", i, r)) {
        qos(&t, &mut spec, r);
    }
    if let Some(t) = root.get("dscp").and_then(|i| Table::of("[dscp]", i, r)) {
        dscp(t, &mut spec, r);
    }
    if let Some(t) = root.get("path").and_then(|i| Table::of("[path]", i, r)) {
        paths(&t, &mut spec, r);
    }
    let classes = tables("class", MAX_CLASSES, root.get("class"), r);
    spec.classes = classes.into_iter().filter_map(|t| class(t, r)).collect();
    let rules = tables("rule", MAX_RULES, root.get("rule"), r);
    spec.rules = rules.into_iter().filter_map(|t| rule(t, r)).collect();
    root.reject_unknown_keys(r);
    spec
}

/// The tables of `[[key]]`, at most `max`.
fn tables<'t, 'a>(
    key: &str,
    max: usize,
    item: Option<&'t Item<'a>>,
    r: &mut Reader<'_>,
) -> Vec<Table<'t, 'a>> {
    let Some(item) = item else { return Vec::new() };
    let DeValue::Array(all) = item.get_ref() else {
        r.problems.error(
            r.line(&item.span()),
            format!("{key} is not a list of tables"),
            format!("write [[{key}]]"),
        );
        return Vec::new();
    };
    if let Some(first) = all.get(max) {
        let what = format!("there are {} {key} tables; at most {max} are taken", all.len());
        r.problems.error(r.line(&first.span()), what, "put several prefixes, ports or names into one list");
    }
    all.iter().take(max).filter_map(|i| Table::of(format!("[[{key}]]"), i, r)).collect()
}

fn process(root: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Process {
    let (now, before) = (root.get("process"), root.get("host"));
    if let Some(t) = before.and_then(|i| Table::of("[host]", i, r)) {
        let what =
            "[host] promises what is not so: each process of the host that has the policy sends as much";
        r.problems.error(t.line, what, "write [process], with what each of them is to have");
    }
    let name = if now.is_some() { "[process]" } else { "[host]" };
    let Some(mut t) = now.or(before).and_then(|i| Table::of(name, i, r)) else { return Process::default() };
    let process = Process { cap: t.rate("cap", r), rate: t.rate("rate", r) };
    t.reject_unknown_keys(r);
    process
}

/// Parses the name of a class or rule, which then identifies it in problems of its other keys.
fn read_name(t: &mut Table<'_, '_>, kind: &str, r: &mut Reader<'_>) -> Option<Located<String>> {
    let line = t.line;
    match t.text("name", r, name) {
        Some(n) => {
            t.what = format!("{kind} {}", quote(&n.value));
            Some(Located { line, ..n })
        }
        None => {
            t.what = format!("the {kind} of line {line}");
            if t.get("name").is_none() {
                r.problems.error(line, format!("{} has no name", t.what), "add name = \"...\"");
            }
            None
        }
    }
}

fn class(mut t: Table<'_, '_>, r: &mut Reader<'_>) -> Option<ClassSpec> {
    let name_at = read_name(&mut t, "class", r);
    let parent = t.text("parent", r, name);
    let weight = t.weight(r).unwrap_or(DEFAULT_WEIGHT);
    let level = t
        .number("level", 0..=u32::from(MAX_LEVEL), r)
        .and_then(|n| u8::try_from(n).ok())
        .unwrap_or(DEFAULT_LEVEL);
    let (guarantee, cap) = (t.rate("guarantee", r), t.rate("cap", r));
    let order = t.text("order", r, |text| one_of(text, &ORDERS)).map_or(Order::Fair, |o| o.value);
    t.reject_unknown_keys(r);
    Some(ClassSpec { name: name_at?, parent, weight, level, guarantee, cap, order })
}

fn paths(t: &Table<'_, '_>, spec: &mut Spec, r: &mut Reader<'_>) {
    let entries = t.entries(r);
    if let Some((key, _)) = entries.get(MAX_PATHS) {
        let what = format!("there are {} paths; at most {MAX_PATHS} are taken", entries.len());
        r.problems.error(key.line, what, "put several prefixes into one path");
    }
    for (key, item) in entries.into_iter().take(MAX_PATHS) {
        let Some(mut t) = Table::of(format!("path {}", quote(&key.value)), item, r) else { continue };
        if let Err(no) = name(&key.value) {
            r.problems.error(key.line, format!("path {} {}", quote(&key.value), no.what), no.remedy);
        }
        let source = prefixes("source", &mut t, r);
        let destination = prefixes("destination", &mut t, r);
        let interface = t.text("interface", r, name).map(|i| i.value);
        if source.is_empty() && destination.is_empty() && interface.is_none() {
            let what = format!("path {} says nothing", quote(&key.value));
            r.problems.error(key.line, what, "add destination = \"PREFIX\", source or interface");
        }
        t.reject_unknown_keys(r);
        spec.paths.push(PathSpec { name: key, source, destination, interface });
    }
}

fn qos(t: &Table<'_, '_>, spec: &mut Spec, r: &mut Reader<'_>) {
    for (key, item) in t.entries(r) {
        let Some(word) = QosKind::ALL.into_iter().find(|w| w.name() == key.value) else {
            let what = format!("[qos] has no word {}", quote(&key.value));
            r.problems.error(key.line, what, did_you_mean(&key.value, QosKind::ALL.map(QosKind::name)));
            continue;
        };
        if let Some(t) = Table::of(format!("[qos.{}]", word.name()), item, r) {
            spec.qos.insert(word, treatment_table(t, r));
        }
    }
}

fn qos_without_value(text: &str) -> Result<QosKind, Refusal> {
    one_of(text, &QosKind::WITHOUT_VALUE.map(|w| (w.name(), w)))
}

fn dscp(t: Table<'_, '_>, spec: &mut Spec, r: &mut Reader<'_>) {
    for (key, item) in t.entries(r) {
        let points = match code_points(&key.value) {
            Ok(points) => points,
            Err(no) => {
                r.problems.error(key.line, format!("{} of [dscp] {}", quote(&key.value), no.what), no.remedy);
                continue;
            }
        };
        let word = match item.get_ref() {
            DeValue::String(s) => qos_without_value(s),
            _ => Err(Refusal {
                what: "is not a text".into(),
                remedy: "write a word such as \"latency\"".into(),
            }),
        };
        match word {
            Err(no) => {
                let what = format!("what {} of [dscp] stands for {}", quote(&key.value), no.what);
                r.problems.error(r.line(&item.span()), what, no.remedy);
            }
            Ok(word) => {
                for point in points {
                    if spec.dscp.insert(point, word).is_some_and(|before| before != word) {
                        let what =
                            format!("{} of [dscp] stands for two different words", units::show_dscp(point));
                        r.problems.error(key.line, what, "keep one of them");
                    }
                }
            }
        }
    }
}

fn code_points(text: &str) -> Result<Vec<u8>, Refusal> {
    units::dscp(text).ok_or_else(|| {
        let hints = units::dscp_hints();
        Refusal {
            what: "is not a code point".into(),
            remedy: format!(
                "write 0 to 63, a name such as EF, CS1 or AF11, or a service class of RFC 4594; {}",
                did_you_mean(text, hints.iter().map(String::as_str))
            ),
        }
    })
}

/// Parses the one code point that packets are to carry.
fn code_point(text: &str) -> Result<u8, Refusal> {
    match code_points(text)?[..] {
        [point] => Ok(point),
        _ => Err(Refusal {
            what: "stands for several code points, and a packet carries one".into(),
            remedy: "name one of them, such as AF11".into(),
        }),
    }
}

fn prefixes(key: &'static str, t: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Vec<Prefix> {
    let read = |text: &str| {
        Prefix::parse(text).map(|p| vec![p]).map_err(|bad| match bad {
            BadPrefix::Form => Refusal {
                what: "is not an address or prefix".into(),
                remedy: "write one such as \"10.0.0.0/8\" or \"fd00::/8\"".into(),
            },
            BadPrefix::Length { max } => Refusal {
                what: "has a length beyond its address".into(),
                remedy: format!("write a length of 0 to {max} behind the slash"),
            },
            BadPrefix::HostBits(meant) => Refusal {
                what: "has bits set behind its length".into(),
                remedy: format!("write \"{meant}\", or a longer length"),
            },
        })
    };
    t.values(key, r, read).into_iter().map(|p| p.value).collect()
}

fn ports(key: &'static str, t: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Vec<Ports> {
    let read = |text: &str| {
        Ports::parse(text).map(|p| vec![p]).ok_or_else(|| Refusal {
            what: "is not a port or range of ports".into(),
            remedy: "write 1 to 65535, or a range such as \"5000-5010\"".into(),
        })
    };
    t.values(key, r, read).into_iter().map(|p| p.value).collect()
}

fn priorities(t: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Vec<Priorities> {
    let read = |text: &str| {
        Priorities::parse(text).map(|p| vec![p]).ok_or_else(|| Refusal {
            what: "is not a priority or range of priorities".into(),
            remedy: "write a number such as 6 (SO_PRIORITY), or a range such as \"4-6\"".into(),
        })
    };
    without_lines(t.values("priority", r, read))
}

fn conditions(mut t: Table<'_, '_>, r: &mut Reader<'_>) -> Match {
    let words = QosKind::ALL.map(|w| (w.name(), w));
    let plain = |all: Vec<Located<u8>>| {
        let mut all: Vec<u8> = all.into_iter().map(|d| d.value).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let m = Match {
        source: prefixes("source", &mut t, r),
        destination: prefixes("destination", &mut t, r),
        source_port: ports("source_port", &mut t, r),
        destination_port: ports("destination_port", &mut t, r),
        carrier: without_lines(t.values("carrier", r, |text| one_of(text, &CARRIERS).map(|c| vec![c]))),
        dscp: plain(t.values("dscp", r, code_points)),
        path: t.values("path", r, |text| name(text).map(|n| vec![n])),
        application: without_lines(t.values("application", r, |text| name(text).map(|n| vec![n]))),
        qos: without_lines(t.values("qos", r, |text| one_of(text, &words).map(|w| vec![w]))),
        priority: priorities(&mut t, r),
    };
    t.reject_unknown_keys(r);
    m
}

fn without_lines<T>(all: Vec<Located<T>>) -> Vec<T> {
    all.into_iter().map(|v| v.value).collect()
}

fn rule(mut t: Table<'_, '_>, r: &mut Reader<'_>) -> Option<Rule> {
    let name = read_name(&mut t, "rule", r);
    let when = match t.get("match") {
        Some(item) => Table::of(format!("match of {}", t.what), item, r).map(|m| conditions(m, r)),
        None => {
            let remedy =
                "add match = { ... } (match = {} if every flow is meant), or move what it says to [default]";
            r.problems.error(t.line, format!("{} has no match", t.what), remedy);
            None
        }
    };
    let qos = t.text("qos", r, qos_without_value).map(|w| w.value);
    let then = treatment(&mut t, r);
    t.reject_unknown_keys(r);
    Some(Rule { name: name?, when: when?, qos, then })
}

fn treatment_table(mut t: Table<'_, '_>, r: &mut Reader<'_>) -> Treatment {
    let treatment = treatment(&mut t, r);
    t.reject_unknown_keys(r);
    treatment
}

fn treatment(t: &mut Table<'_, '_>, r: &mut Reader<'_>) -> Treatment {
    let known = r.algorithms.clone();
    Treatment {
        algorithm: t.text("algorithm", r, |text| known.selection(text)),
        fallback: t.text("fallback", r, |text| known.fallback(text)),
        class: t.text("class", r, name),
        weight: t.weight(r),
        cap: t.rate("cap", r),
        guarantee: t.rate("guarantee", r),
        dscp: t.text("dscp", r, code_point).map(|d| d.value),
        allow_override: t.boolean("allow_override", r),
        peer: algorithms::peer(t, r),
    }
}
