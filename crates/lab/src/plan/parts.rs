//! Checks the parts of a sender's traffic.

use super::expand::{Expander, Result};
use super::{file, units};
use crate::workload::parts::{MAX_PARTS, MAX_SIZE, Part};
use cc::platform::Qos;

/// Default bytes of a message.
const MESSAGE: u64 = 64 << 10;

/// The parts of a flow, one for each QoS asked for.
pub(super) fn of(x: &Expander<'_>, f: &file::Flow) -> Result<Vec<Part>> {
    let mut out = Vec::new();
    for p in &f.part {
        let size = p
            .size
            .as_ref()
            .map_or(Ok(MESSAGE), |s| units::bytes(s.get_ref()).map_err(|e| x.error_at(s, "part.size", e)))?;
        if !(1..=MAX_SIZE).contains(&size) {
            return Err(x.error_at(&p.name, "part.size", format!("a message has 1 to {MAX_SIZE} bytes")));
        }
        let every = p.every.as_ref().map(|s| x.duration(s, "part.every")).transpose()?;
        let start = p.start.as_ref().map(|s| x.span(s, "part.start")).transpose()?;
        let asks = if p.qos.is_empty() { vec![Qos::Ordinary.to_string()] } else { p.qos.clone() };
        for (i, text) in asks.iter().enumerate() {
            let qos: Qos = text.parse().map_err(|e| x.error_at(&p.name, "part.qos", e))?;
            let bytes = if let Qos::Deadline { bytes, .. } = qos { Some(bytes) } else { None };
            let name = p.name.get_ref();
            let name = if asks.len() > 1 { format!("{name} {}", i + 1) } else { name.clone() };
            if name.is_empty() || out.iter().any(|o: &Part| o.name == name) {
                return Err(x.error_at(&p.name, "part.name", "each part needs a name of its own"));
            }
            if out.len() == MAX_PARTS {
                return Err(x.error_at(
                    &p.name,
                    "part",
                    format!("more than {MAX_PARTS} parts of one sender"),
                ));
            }
            let start = start.map_or(0.0, |s| s.as_secs_f64());
            out.push(Part {
                name,
                qos: text.clone(),
                size,
                every: every.map(|s| s.as_secs_f64()),
                start,
                bytes,
            });
        }
    }
    Ok(out)
}
