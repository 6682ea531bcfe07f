//! `longhaul cc list` and `describe`: algorithms, from their own definitions.

use crate::exit::{Failure, Outcome};

/// Names and what they are.
pub fn list() {
    for d in cc::registry::list() {
        let mark = if d.name == cc::registry::DEFAULT { " (default)" } else { "" };
        out_line!("{:<12} {}{mark}", d.name, d.summary);
    }
}

/// Parameters of the algorithm called `name`, or of all.
pub fn describe(name: Option<&str>) -> Outcome<()> {
    let Some(name) = name else {
        out_text!("{}", cc::registry::help());
        return Ok(());
    };
    let d = cc::registry::find(name).map_err(Failure::usage)?;
    out_line!("{}: {}", d.name, d.summary);
    for p in d.params {
        out_line!("    {}={}  {}", p.name, p.kind.describe(), p.help);
    }
    Ok(())
}
