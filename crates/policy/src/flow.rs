//! Parses descriptions of flows: `10.0.0.1:5000->10.0.0.2:4460 app=backup dscp=CS1 qos=bulk carrier=native`.

use crate::problem::{did_you_mean, quote};
use crate::units;
use cc::platform::{Carrier, Qos, Traffic};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Longest description of a flow, in bytes.
pub const MAX_FLOW: usize = 1_024;

const KEYS: [&str; 6] = ["app", "dscp", "qos", "carrier", "cc", "priority"];

/// A text that does not describe a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}; write a flow such as \"10.0.0.1:5000->10.0.0.2:4460 app=backup dscp=CS1 qos=bulk carrier=native\""
)]
pub struct BadFlow {
    /// What is wrong, as text.
    pub what: String,
}

fn bad(what: impl Into<String>) -> BadFlow {
    BadFlow { what: what.into() }
}

/// Parses a flow: addresses with or without ports, then, in any order, `app=`, `dscp=`, `qos=`, `carrier=`, `cc=`
/// (the algorithm that the application asks for) and `priority=` (`SO_PRIORITY` of a socket).
///
/// # Errors
/// What is wrong, as text.
pub fn parse_flow(text: &str) -> Result<Traffic, BadFlow> {
    if text.len() > MAX_FLOW {
        return Err(bad(format!("the flow is {} bytes long; at most {MAX_FLOW} are read", text.len())));
    }
    // Spaces are allowed around the arrow and within brackets.
    let (local, rest) = text.split_once("->").ok_or_else(|| bad("there is no -> between two addresses"))?;
    let rest = rest.trim_start();
    let (remote, words) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
    let mut t = Traffic {
        carrier: Carrier::Native,
        local: socket_address(local)?,
        remote: socket_address(remote)?,
        dscp: 0,
        application: String::new(),
        qos: Qos::Ordinary,
        asked: String::new(),
        priority: 0,
    };
    for piece in split_words(words) {
        let (key, value) =
            piece.split_once('=').ok_or_else(|| bad(format!("{} is not KEY=VALUE", quote(&piece))))?;
        set(&mut t, key, value)?;
    }
    if t.local.is_ipv4() != t.remote.is_ipv4() && !t.local.ip().is_unspecified() {
        return Err(bad("one address is IPv4 and the other one IPv6"));
    }
    Ok(t)
}

/// Splits at spaces, except within parentheses.
fn split_words(text: &str) -> Vec<String> {
    let (mut out, mut piece, mut depth) = (Vec::new(), String::new(), 0_usize);
    for c in text.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c.is_whitespace() && depth == 0 {
            if !piece.is_empty() {
                out.push(core::mem::take(&mut piece));
            }
        } else {
            piece.push(c);
        }
    }
    out.extend((!piece.is_empty()).then_some(piece));
    out
}

fn socket_address(text: &str) -> Result<SocketAddr, BadFlow> {
    let text = text.trim();
    if text == "*" {
        return Ok((Ipv4Addr::UNSPECIFIED, 0).into());
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    text.parse()
        .or_else(|_| bare.map(|ip| SocketAddr::new(ip, 0)))
        .map_err(|_| bad(format!("{} is not an address, with or without a port", quote(text))))
}

fn set(t: &mut Traffic, key: &str, value: &str) -> Result<(), BadFlow> {
    match key {
        "app" => value.clone_into(&mut t.application),
        "dscp" => {
            let points =
                units::dscp(value).ok_or_else(|| bad(format!("{} is not a code point", quote(value))))?;
            t.dscp = points.first().copied().unwrap_or_default();
        }
        "qos" => t.qos = value.parse().map_err(|e: cc::platform::BadQos| bad(e.to_string()))?,
        "carrier" => {
            let all = [Carrier::Native, Carrier::Tcp, Carrier::Roce];
            t.carrier = all.into_iter().find(|c| c.name() == value).ok_or_else(|| {
                bad(format!(
                    "{} is not a carrier: {}",
                    quote(value),
                    did_you_mean(value, all.map(Carrier::name))
                ))
            })?;
        }
        "priority" => {
            t.priority =
                value.parse().map_err(|_| bad(format!("{} is not a socket's priority", quote(value))))?;
        }
        "cc" => {
            cc::registry::parse(value).map_err(|e| bad(e.to_string()))?;
            value.clone_into(&mut t.asked);
        }
        _ => return Err(bad(format!("{} is unknown: {}", quote(key), did_you_mean(key, KEYS)))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Rate, Span};

    #[test]
    fn flow_descriptions_are_parsed() {
        let t = parse_flow("10.0.0.1:5000->10.0.0.2:4460 app=backup dscp=CS1 qos=bulk carrier=tcp cc=bbr")
            .unwrap();
        assert_eq!(t.local, "10.0.0.1:5000".parse().unwrap());
        assert_eq!(t.remote, "10.0.0.2:4460".parse().unwrap());
        assert_eq!((t.application.as_str(), t.dscp, t.qos), ("backup", 8, Qos::Bulk));
        assert_eq!((t.carrier, t.asked.as_str()), (Carrier::Tcp, "bbr"));
        let t = parse_flow("* -> [fd00::1]:80 qos=deadline(10GB, 30s)").unwrap();
        assert_eq!(t.qos, Qos::Deadline { bytes: 10_000_000_000, within: Span::from_secs(30) });
        assert_eq!(t.remote, "[fd00::1]:80".parse().unwrap());
        let t = parse_flow("fd00::1->fd00::2 qos=guaranteed(300M)").unwrap();
        assert_eq!(t.qos, Qos::Guaranteed(Rate::from_mbit(300)));
    }

    #[test]
    fn malformed_flow_descriptions_are_errors() {
        for (text, word) in [
            ("", "->"),
            ("10.0.0.1", "->"),
            ("10.0.0.1->host", "host"),
            ("10.0.0.1->fd00::1", "IPv6"),
            ("1.1.1.1->2.2.2.2 ap=x", "\"app\""),
            ("1.1.1.1->2.2.2.2 app", "KEY=VALUE"),
            ("1.1.1.1->2.2.2.2 dscp=64", "code point"),
            ("1.1.1.1->2.2.2.2 qos=fast", "fast"),
            ("1.1.1.1->2.2.2.2 carrier=udp", "carrier"),
            ("1.1.1.1->2.2.2.2 cc=nonsense", "nonsense"),
        ] {
            let e = parse_flow(text).unwrap_err().to_string();
            assert!(e.contains(word) && e.contains("write a flow such as"), "{text}: {e}");
        }
        assert!(parse_flow(&format!("1.1.1.1->2.2.2.2 app={}", "x".repeat(MAX_FLOW))).is_err());
    }
}
