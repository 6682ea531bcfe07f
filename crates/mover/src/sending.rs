//! Applies the rate limit, congestion control and QoS that a `get` requests to the server's sending.

use crate::error::MAX_TEXT;
use crate::proto::{MAX_REASONS, Mapping, Sending};
use base::{Rate, Span};
use endpoint::{ConnId, Endpoint};
use verbs::QpId;

/// Characters of each text in a mapping: each takes four bytes at most.
const MAX_WORDS: usize = MAX_TEXT / 4;
/// Packets of the least initial window that a known rate leads to: RFC 6928's ten.
const MIN_WINDOW: u64 = 10;
/// Most packets that the algorithms' parameter `initial_window` takes.
const MAX_WINDOW: u64 = 10_000;
/// BBR paces its first round trip at 2.77 times the window it starts with (draft-ietf-ccwg-bbr, section 2.4:
/// BBRStartupPacingGain); in hundredths.
const STARTUP_GAIN: u64 = 277;

/// The server's side of it.
pub(crate) struct Policy<'a> {
    /// Names of the algorithms that clients may ask for.
    pub offered: &'a [String],
    /// The algorithm that it uses unless asked for another.
    pub own: &'a str,
}

/// The path as it is known when the client asks.
#[derive(Clone, Copy)]
pub(crate) struct PathSample {
    /// A round trip.
    pub rtt: Span,
    /// Bytes of a full packet.
    pub packet: u64,
}

/// The congestion control that is asked for, with what a known rate means to it; `None` when the connection's own
/// will do. The error says what the server offers.
pub(crate) fn congestion_control(
    s: &Sending,
    p: &Policy<'_>,
    path: PathSample,
) -> Result<Option<String>, String> {
    if s.cc.is_none() && s.known_rate.is_none() {
        return Ok(None);
    }
    let offers = || format!("it offers {}", p.offered.join(", "));
    let usable = |text: &'_ str| {
        let (def, params) = cc::registry::parse(text).map_err(|e| {
            format!("the server cannot use the congestion control `{text}`: {e}; {}", offers())
        })?;
        if s.cc.is_some() && !p.offered.iter().any(|o| o == def.name) {
            let name = def.name;
            return Err(format!(
                "the server does not lend the congestion control `{name}` to clients; {}",
                offers()
            ));
        }
        Ok((def, params))
    };
    // The first that can be had of those that are asked for, or why the first cannot.
    let list = cc::registry::preferences(s.cc.as_deref().unwrap_or(p.own));
    let text = list.iter().find(|text| usable(text).is_ok()).or(list.first()).copied().unwrap_or_default();
    let (def, params) = usable(text)?;
    let Some(known) = s.known_rate else { return Ok(Some(text.to_owned())) };
    // These take a rate; the others take the window that makes this rate in a round trip.
    let (key, value) = match def.name {
        "fixed" => ("rate", known.max(LEAST_RATE).bits_per_sec()),
        "haul" => ("known_rate", known.max(LEAST_RATE).bits_per_sec()),
        "bbr" => ("initial_window", window(known.scale(100, STARTUP_GAIN), path)),
        _ => ("initial_window", window(known, path)),
    };
    if params.get(key).is_some() || def.params.iter().all(|d| d.name != key) {
        return Ok(Some(text.to_owned())); // said more exactly already, or not to be said
    }
    let mark = if text.contains(':') { ',' } else { ':' };
    Ok(Some(format!("{text}{mark}{key}={value}")))
}

/// What the policy made of what this end sends by a queue pair, with the limits of both ends.
pub(crate) fn mapping(ep: &Endpoint, conn: ConnId, qp: QpId, limit: Option<Rate>) -> Option<Mapping> {
    let f = ep.flows().into_iter().find(|f| f.conn == conn && f.qps.contains(&qp))?;
    let cut = |text: &str| text.chars().take(MAX_WORDS).collect::<String>();
    let (rule, guarantee, why) = f.choice.map(|c| (c.rule, c.guarantee, c.why)).unwrap_or_default();
    let running = if f.facts.spec.is_empty() { f.facts.name } else { &f.facts.spec };
    Some(Mapping {
        qos: f.traffic.qos.to_string(),
        rule: cut(&rule),
        class: cut(&f.class),
        algorithm: cut(running),
        guarantee,
        cap: f.facts.cap.into_iter().chain(limit).min(),
        why: why.iter().take(MAX_REASONS).map(|w| cut(w)).collect(),
    })
}

/// The least rate that algorithms take.
const LEAST_RATE: Rate = Rate::from_bits_per_sec(64_000);

fn window(rate: Rate, path: PathSample) -> u64 {
    (rate.bytes_in(path.rtt) / path.packet.max(1)).clamp(MIN_WINDOW, MAX_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: PathSample = PathSample { rtt: Span::from_millis(100), packet: 1_500 };
    fn ask(cc: Option<&str>, mbit: Option<u64>) -> Result<Option<String>, String> {
        let offered = ["bbr".to_owned(), "cubic".to_owned(), "fixed".to_owned()];
        let s = Sending {
            cc: cc.map(str::to_owned),
            known_rate: mbit.map(Rate::from_mbit),
            ..Sending::default()
        };
        congestion_control(&s, &Policy { offered: &offered, own: "bbr" }, PATH)
    }
    fn is(s: &str) -> Result<Option<String>, String> {
        Ok(Some(s.to_owned()))
    }

    #[test]
    fn a_known_rate_becomes_what_the_algorithm_starts_with() {
        assert_eq!(ask(None, None), Ok(None));
        assert_eq!(ask(Some("cubic"), None), is("cubic"));
        // 120 Mbit/s x 100 ms = 1.5 MB = 1,000 packets.
        assert_eq!(ask(Some("cubic"), Some(120)), is("cubic:initial_window=1000"));
        assert_eq!(ask(Some("cubic:hystart=off"), Some(120)), is("cubic:hystart=off,initial_window=1000"));
        assert_eq!(ask(None, Some(277)), is("bbr:initial_window=833"));
        assert_eq!(ask(Some("cubic"), Some(1_000_000)), is("cubic:initial_window=10000"));
        assert_eq!(ask(Some("fixed"), Some(500)), is("fixed:rate=500000000"));
        assert_eq!(ask(Some("fixed:rate=1G"), Some(500)), is("fixed:rate=1G"));
        for (cc, rate) in
            [(None, 1), (Some("bbr"), 1_000_000), (Some("cubic"), 9), (Some("fixed"), 1_000_000)]
        {
            let spec = ask(cc, Some(rate)).unwrap().unwrap();
            assert!(cc::registry::parse(&spec).is_ok(), "{spec}");
        }
    }

    #[test]
    fn what_is_not_offered_is_refused_with_what_is() {
        for bad in ["reno", "vegas", "cubic:nonsense=1", "fixed:rate=1", ""] {
            let e = ask(Some(bad), None).unwrap_err();
            assert!(e.contains("it offers bbr, cubic, fixed"), "{bad}: {e}");
        }
        assert!(ask(Some("reno"), None).unwrap_err().contains("reno"));
        assert_eq!(ask(Some("reno,cubic:hystart=off,bbr"), None), is("cubic:hystart=off"));
        assert!(ask(Some("reno,vegas"), None).unwrap_err().contains("reno"));
    }
}
