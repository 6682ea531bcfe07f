//! Many connections, much data, and a path that delays and loses.

use super::tools;
use crate::guest::Task;
use crate::matrix::{From, LIMIT, Lab, Row};
use crate::peer::config;
use crate::rping::Rping;
use crate::rstream::{self, Amount};
use crate::sends::{self, Meeting, Messages};
use anyhow::{Context, Result, anyhow, ensure};
use std::thread;
use std::time::Duration;

/// Connections at once: so many programs with so many each. With 64 in one program `ucmatose` cannot make all of its
/// queues on siw.
const PROGRAMS: usize = 4;
const EACH: usize = 16;
/// What each of them sends, each way.
const FEW: Messages = Messages { count: 5, size: 500 };
/// How long these rows may take in the guest.
const LONG: Duration = Duration::from_secs(400);
/// Bytes of a transfer of the rows with much data.
const BLOCK: usize = 1 << 20;
/// Such transfers each way: a gibibyte at full length, else a part of it that an emulated machine gets done in seconds.
const BLOCKS: [usize; 2] = [48, 1024];
/// Connections one after the other, each with a record as soon after siw's reply as the pause lets it: without the pause
/// siw misses some.
const WAKES: usize = 12;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for crc in [false, true] {
        rows.push(Row::new("64 connections at once", From::Us, crc, move |lab| many_clients(lab, crc)));
        rows.push(Row::new("64 connections at once", From::Siw, crc, move |lab| many_servers(lab, crc)));
        rows.push(Row::new("much data, contents checked", From::Us, crc, move |lab| {
            much(lab, From::Us, crc)
        }));
        rows.push(Row::new("much data, contents checked", From::Siw, crc, move |lab| {
            much(lab, From::Siw, crc)
        }));
        rows.push(Row::new("12 connections in turn, of which none hangs", From::Us, crc, move |lab| {
            wakes(lab, crc)
        }));
    }
    for crc in [false, true] {
        rows.extend(tools::under_loss(crc).into_iter().map(|row| row.within(loss_begins, loss_ends)));
    }
    rows
}

/// The shell's own `tc`, which busybox would take, knows no netem.
fn loss_begins(lab: &Lab) -> Result<()> {
    lab.guest.run("/bin/tc qdisc add dev eth0 root netem loss 1% delay 5ms", LIMIT).map(drop)
}
fn loss_ends(lab: &Lab) -> Result<()> {
    let counts = lab.guest.run("/bin/tc -s qdisc show dev eth0", LIMIT)?;
    lab.guest.run("/bin/tc qdisc del dev eth0 root", LIMIT)?;
    ensure!(counts.contains("netem") && counts.contains("delay 5"), "nothing was delayed: {counts}");
    Ok(())
}

fn many_clients(lab: &Lab, crc: bool) -> Result<String> {
    let (m, meeting) = (FEW, Meeting::of(PROGRAMS * EACH));
    let (mut programs, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..PROGRAMS {
        let port = lab.port();
        let options = format!("-p {port} -c {EACH} -C {} -S {}", m.count, m.size);
        programs.push(lab.guest.start(&format!("ucmatose -b {} {options}", lab.siw()), LONG));
        let to = lab.guest_at(port);
        for _ in 0..EACH {
            let meeting = meeting.clone();
            ends.push(thread::spawn(move || sends::ucmatose_client(to, config(crc), m, &meeting)));
        }
    }
    all_of(ends, programs)
}

fn many_servers(lab: &Lab, crc: bool) -> Result<String> {
    let (m, meeting) = (FEW, Meeting::of(PROGRAMS * EACH));
    let (mut programs, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..PROGRAMS {
        let port = lab.port();
        let listener = lab.listen(port)?;
        let options = format!("-p {port} -c {EACH} -C {} -S {}", m.count, m.size);
        programs.push(lab.guest.start(&format!("ucmatose -s {} {options}", lab.us()), LONG));
        for _ in 0..EACH {
            let (listener, meeting) = (listener.try_clone()?, meeting.clone());
            ends.push(thread::spawn(move || sends::ucmatose_server(&listener, config(crc), m, &meeting)));
        }
    }
    all_of(ends, programs)
}

/// Waits for our ends, then for the guest's programs.
fn all_of(ends: Vec<thread::JoinHandle<Result<()>>>, programs: Vec<Task>) -> Result<String> {
    // All of them are waited for before the first failure is told.
    let results: Vec<Result<()>> = ends
        .into_iter()
        .map(|end| end.join().map_err(|_| anyhow!("a thread ended in a panic")).and_then(|r| r))
        .collect();
    let failed = results.iter().filter(|r| r.is_err()).count();
    let first = results.into_iter().collect::<Result<Vec<()>>>();
    first.with_context(|| format!("{failed} ends failed"))?;
    for program in programs {
        program.succeeds()?;
    }
    Ok(String::new())
}

fn much(lab: &Lab, from: From, crc: bool) -> Result<String> {
    let amount = Amount { size: BLOCK, count: BLOCKS[usize::from(lab.full)], rounds: 1 };
    let port = lab.port();
    let options = amount.options();
    if from == From::Us {
        let server = lab.guest.start(&format!("rstream -b {} -p {port} {options}", lab.siw()), LONG);
        rstream::client(lab.guest_at(port), config(crc), amount)?;
        tools::verified(&server.succeeds()?)?;
    } else {
        let listener = lab.listen(port)?;
        let client = lab.guest.start(&format!("rstream -s {} -p {port} {options}", lab.us()), LONG);
        rstream::server(&listener, config(crc), amount)?;
        tools::verified(&client.succeeds()?)?;
    }
    Ok(format!("{} MiB each way", amount.count))
}

/// With the pause, none of them hangs.
fn wakes(lab: &Lab, crc: bool) -> Result<String> {
    let port = lab.port();
    let server = lab.start(&format!("rping -s -P -a {} -p {port} -S 64", lab.siw()));
    for i in 0..WAKES {
        let mut r = Rping::new(64)?;
        r.p.connect(lab.guest_at(port), config(crc), b"")?;
        r.client(1, 64).with_context(|| format!("connection {i}"))?;
    }
    lab.guest.run("killall rping", LIMIT)?;
    server.wait()?;
    Ok(String::new())
}
