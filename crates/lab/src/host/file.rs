//! The file of a host's parameters.

use base::Span;
use serde::Deserialize;
use sim::world::{HostModel, Lateness, POINTS};

/// Most bytes of such a file.
pub const MAX_TEXT: usize = 64 << 10;
/// Longest time in it, and most datagrams of a train, as with segmentation offload.
const LONGEST_US: f64 = 1e6;
const MOST_JOINED: usize = 64;

/// A file of a host's parameters, in TOML.
#[derive(Clone, Debug, PartialEq)]
pub struct HostFile {
    /// What was measured, for people.
    pub machine: String,
    /// The parameters.
    pub model: HostModel,
}

/// Why a file is none of a host's parameters.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFileError {
    /// It is not such a file.
    #[error("cannot read it as a host's parameters: {0}; try a file that `longhaul lab host` wrote")]
    Syntax(String),
    /// A value makes no sense.
    #[error("cannot use {key}: {why}")]
    Value {
        /// Its key.
        key: &'static str,
        /// Why, and what to write.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    #[serde(default)]
    machine: String,
    timer_us: [f64; POINTS.len()],
    wake_us: [f64; POINTS.len()],
    turn_us: f64,
    receive_us: f64,
    send_us: f64,
    joined: usize,
}

fn span(key: &'static str, us: f64) -> Result<Span, HostFileError> {
    if !(0.0..=LONGEST_US).contains(&us) {
        let why = format!("{us} is out of range; write 0 to {LONGEST_US} microseconds");
        return Err(HostFileError::Value { key, why });
    }
    Ok(Span::from_nanos((us * 1e3).round() as u64))
}

fn lateness(key: &'static str, us: [f64; POINTS.len()]) -> Result<Lateness, HostFileError> {
    let mut points = [Span::ZERO; POINTS.len()];
    for (point, us) in points.iter_mut().zip(us) {
        *point = span(key, us)?;
    }
    let lateness = Lateness(points);
    if !lateness.is_ordered() {
        let why = "a point is below the one before it; write them in rising order".to_owned();
        return Err(HostFileError::Value { key, why });
    }
    Ok(lateness)
}

impl HostFile {
    /// Parses a file.
    ///
    /// # Errors
    /// What is wrong in it.
    pub fn parse(text: &str) -> Result<HostFile, HostFileError> {
        if text.len() > MAX_TEXT {
            return Err(HostFileError::Syntax(format!("{} bytes are too long", text.len())));
        }
        let k: Keys = toml::from_str(text).map_err(|e| HostFileError::Syntax(e.message().to_owned()))?;
        if !(1..=MOST_JOINED).contains(&k.joined) {
            let why = format!("{} is out of range; write 1 to {MOST_JOINED} datagrams", k.joined);
            return Err(HostFileError::Value { key: "joined", why });
        }
        let model = HostModel {
            timer: lateness("timer_us", k.timer_us)?,
            wake: lateness("wake_us", k.wake_us)?,
            turn: span("turn_us", k.turn_us)?,
            receive: span("receive_us", k.receive_us)?,
            send: span("send_us", k.send_us)?,
            joined: k.joined,
        };
        Ok(HostFile { machine: k.machine, model })
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let us = |s: Span| format!("{:?}", s.as_nanos() as f64 / 1e3);
        let points = |l: &Lateness| l.0.map(us).join(", ");
        let m = &self.model;
        format!(
            "# What a host takes time for, for simulations: `longhaul lab run PLAN --sim --host FILE`.\n\
             machine = {:?}\n\
             # Microseconds: least, median, percentiles 90, 99 and 99.9, largest. How much later than asked for a wait ends, and\n\
             # how long after a datagram's arrival the loop runs that slept until it came.\n\
             timer_us = [{}]\nwake_us = [{}]\n\
             # A turn of the loop, and more for each datagram that it receives and sends.\n\
             turn_us = {}\nreceive_us = {}\nsend_us = {}\n\
             # Most datagrams that are received as one train.\n\
             joined = {}\n",
            self.machine,
            points(&m.timer),
            points(&m.wake),
            us(m.turn),
            us(m.receive),
            us(m.send),
            m.joined
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_says_what_was_measured() {
        let file = HostFile { machine: "a \"b\" \\c".into(), model: HostModel::default() };
        assert_eq!(HostFile::parse(&file.text()), Ok(file.clone()), "{}", file.text());
        assert!(file.text().len() < MAX_TEXT / 16);
    }

    #[test]
    fn mistakes_are_named_with_what_to_write() {
        let good = HostFile { machine: String::new(), model: HostModel::default() }.text();
        let wrong = |from: &str, to: &str| {
            let at = good.lines().find(|l| l.starts_with(from)).expect("a line");
            HostFile::parse(&good.replace(at, to)).expect_err("a mistake").to_string()
        };
        assert!(wrong("turn_us", "turn_us = -1.0").contains("cannot use turn_us: -1 is out of range"));
        assert!(wrong("turn_us", "turn_us = nan").contains("cannot use turn_us: NaN is out of range"));
        assert!(wrong("joined", "joined = 65").contains("write 1 to 64 datagrams"));
        assert!(wrong("wake_us", "wake_us = [1, 2, 3, 4, 5, 4.5]").contains("in rising order"));
        assert!(wrong("wake_us", "wake_us = [1, 2]").contains("try a file that `longhaul lab host` wrote"));
        assert!(wrong("wake_us", "").contains("missing field"));
        assert!(wrong("joined", "joined = 4\nspeed = 1").contains("unknown field"));
        assert!(HostFile::parse(&"#".repeat(MAX_TEXT + 1)).is_err());
    }
}
