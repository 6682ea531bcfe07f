//! The matrix: rows that each are one kind of traffic in one direction, and what came of them.

use crate::clock;
use crate::guest::{DATA, Guest, Task};
use anyhow::{Result, anyhow, ensure};
use std::cell::Cell;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long a program in the guest may take, unless it is known to need longer.
pub const LIMIT: Duration = Duration::from_secs(40);
/// The first port that rows use.
const FIRST_PORT: u16 = 20_000;

/// Who connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    /// We do.
    Us,
    /// siw does.
    Siw,
}

/// What a row works with.
pub struct Lab {
    pub guest: Guest,
    /// Everything at its full length.
    pub full: bool,
    port: Cell<u16>,
}

impl Lab {
    pub fn new(guest: Guest, full: bool) -> Lab {
        Lab { guest, full, port: Cell::new(FIRST_PORT) }
    }
    /// A port that no row used yet: ports that were used are kept for a while by either kernel.
    pub fn port(&self) -> u16 {
        self.port.replace(self.port.get() + 1)
    }
    /// Where we listen on that port.
    pub fn listen(&self, port: u16) -> Result<TcpListener> {
        Ok(TcpListener::bind(SocketAddr::from((DATA[0], port)))?)
    }
    /// Where the guest listens on that port.
    pub fn guest_at(&self, port: u16) -> SocketAddr {
        SocketAddr::from((DATA[1], port))
    }
    /// Our address, for the guest.
    pub fn us(&self) -> String {
        DATA[0].to_string()
    }
    /// The guest's address.
    pub fn siw(&self) -> String {
        DATA[1].to_string()
    }
    /// Starts a program in the guest.
    pub fn start(&self, script: &str) -> Task {
        self.guest.start(script, LIMIT)
    }
}

/// What came of both sides: of ours, which has ended, and the guest's program; gives what that printed.
pub fn both(ours: Result<()>, theirs: Task) -> Result<String> {
    let theirs = theirs.succeeds();
    match (ours, theirs) {
        (Err(ours), Err(theirs)) => Err(ours.context(format!("the guest's program: {theirs:#}; ours"))),
        (Err(ours), Ok(_)) => Err(ours),
        (Ok(()), theirs) => theirs,
    }
}

/// What a row does; gives what is worth saying of it.
type Run = Box<dyn Fn(&Lab) -> Result<String>>;

/// One line of the table.
pub struct Row {
    /// What is done.
    pub what: String,
    pub from: From,
    /// Whether CRCs are used.
    pub crc: bool,
    skipped: Option<&'static str>,
    run: Run,
}

impl Row {
    pub fn new(
        what: impl Into<String>,
        from: From,
        crc: bool,
        run: impl Fn(&Lab) -> Result<String> + 'static,
    ) -> Row {
        Row { what: what.into(), from, crc, skipped: None, run: Box::new(run) }
    }

    /// A row that cannot be run against siw, and why.
    pub fn skipped(what: impl Into<String>, from: From, crc: bool, reason: &'static str) -> Row {
        Row { skipped: Some(reason), ..Row::new(what, from, crc, |_| Ok(String::new())) }
    }

    /// The same row between two steps; the second one is done in any case.
    pub fn within(self, before: fn(&Lab) -> Result<()>, after: fn(&Lab) -> Result<()>) -> Row {
        let run = self.run;
        let run = move |lab: &Lab| {
            before(lab)?;
            let result = run(lab);
            after(lab)?;
            result
        };
        Row { run: Box::new(run), ..self }
    }

    fn title(&self) -> String {
        let from = if self.from == From::Us { "we" } else { "siw" };
        format!("{} | {from} | {}", self.what, if self.crc { "on" } else { "off" })
    }
}

/// Runs the rows whose lines contain `only`, and prints the table.
///
/// # Errors
/// A row failed, or there was none.
pub fn run(lab: &Lab, rows: &[Row], only: &str) -> Result<()> {
    let (mut failed, mut passed, mut skipped) = (Vec::new(), 0, 0);
    println!("| what | who connects | CRC | result | seconds |");
    println!("| --- | --- | --- | --- | ---: |");
    for row in rows.iter().filter(|r| r.title().contains(only)) {
        if let Some(reason) = row.skipped {
            println!("| {} | skip: {reason} | |", row.title());
            skipped += 1;
            continue;
        }
        let start = clock::now();
        // A row that panics has failed; the others still run.
        let result = catch_unwind(AssertUnwindSafe(|| (row.run)(lab)))
            .unwrap_or_else(|_| Err(anyhow!("it panicked; see above")));
        let result = result.and_then(|note| lab.guest.survived().map(|()| note));
        let seconds = (clock::now() - start).as_secs_f64();
        let word = match &result {
            Ok(note) if note.is_empty() => "pass".to_owned(),
            Ok(note) => format!("pass: {note}"),
            Err(e) => format!("FAIL: {e:#}"),
        };
        println!("| {} | {word} | {seconds:.1} |", row.title());
        match result {
            Ok(_) => passed += 1,
            Err(_) => failed.push(row.title()),
        }
        // Nothing answers any more in a guest whose kernel is broken.
        lab.guest.survived()?;
    }
    println!("\nrows: {passed} passed, {} failed, {skipped} skipped", failed.len());
    ensure!(failed.is_empty(), "these rows failed: {}", failed.join("; "));
    ensure!(passed > 0, "no row has `{only}` in its line");
    Ok(())
}
