//! The guest's own programs against peers of ours that play the other side.

use crate::matrix::{From, Lab, Row, both};
use crate::peer::config;
use crate::perftest::{self, Program};
use crate::rping::Rping;
use crate::rstream::{self, Amount};
use crate::sends::{self, Meeting, Messages};
use anyhow::{Result, ensure};
use iwarp::Config;

/// rounds and bytes of `rping`.
const ROUNDS: usize = 20;
const SIZE: usize = 4000;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for crc in [false, true] {
        rows.push(Row::new("rping", From::Us, crc, move |lab| rping_client(lab, config(crc))));
        rows.push(Row::new("rping", From::Siw, crc, move |lab| rping_server(lab, config(crc))));
        rows.push(Row::new("ucmatose", From::Us, crc, move |lab| ucmatose_client(lab, config(crc))));
        rows.push(Row::new("ucmatose", From::Siw, crc, move |lab| ucmatose_server(lab, config(crc))));
        rows.push(Row::new("rdma_client and rdma_server", From::Us, crc, move |lab| rdma_client(lab, crc)));
        rows.push(Row::new("rdma_client and rdma_server", From::Siw, crc, move |lab| rdma_server(lab, crc)));
        for program in Program::ALL {
            let name = program.name();
            rows.push(Row::new(name, From::Us, crc, move |lab| {
                perftest_client(lab, crc, program, request(program))
            }));
            rows.push(Row::new(name, From::Siw, crc, move |lab| {
                perftest_server(lab, crc, program, request(program))
            }));
        }
        rows.push(Row::new("rstream", From::Us, crc, move |lab| rstream_client(lab, config(crc), STREAM)));
        rows.push(Row::new("rstream", From::Siw, crc, move |lab| rstream_server(lab, config(crc), STREAM)));
        let p2p = Config { peer_to_peer: true, ..config(crc) };
        rows.push(Row::new("rping, peer to peer", From::Us, crc, move |lab| rping_client(lab, p2p)));
    }
    rows
}

/// A selection of them for a path that loses.
pub fn under_loss(crc: bool) -> Vec<Row> {
    let lossy = |what: &str| format!("{what}, 1 % lost, 5 ms");
    vec![
        Row::new(lossy("rping"), From::Us, crc, move |lab| rping_client(lab, config(crc))),
        Row::new(lossy("rping"), From::Siw, crc, move |lab| rping_server(lab, config(crc))),
        Row::new(lossy("ucmatose"), From::Siw, crc, move |lab| ucmatose_server(lab, config(crc))),
        Row::new(lossy("rstream"), From::Us, crc, move |lab| rstream_client(lab, config(crc), STREAM)),
        Row::new(lossy("rstream"), From::Siw, crc, move |lab| rstream_server(lab, config(crc), STREAM)),
        Row::new(lossy("ib_read_bw"), From::Us, crc, move |lab| {
            perftest_client(lab, crc, Program::ReadBw, LITTLE)
        }),
        Row::new(lossy("ib_write_bw"), From::Siw, crc, move |lab| {
            perftest_server(lab, crc, Program::WriteBw, LITTLE)
        }),
    ]
}

/// Our client, the guest's server.
pub fn rping_client(lab: &Lab, config: Config) -> Result<String> {
    let port = lab.port();
    let server = lab.start(&format!("rping -s -a {} -p {port} -S {SIZE}", lab.siw()));
    let mut r = Rping::new(SIZE)?;
    let ours = r.p.connect(lab.guest_at(port), config, b"").and_then(|()| r.client(ROUNDS, SIZE));
    both(ours, server).map(|_| String::new())
}

/// The guest's client, our server.
pub fn rping_server(lab: &Lab, config: Config) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("rping -c -V -a {} -p {port} -S {SIZE} -C {ROUNDS}", lab.us()));
    let mut r = Rping::new(SIZE)?;
    r.p.accept(&listener, config, |_| Vec::new())?;
    let rounds = r.server()?;
    ensure!(rounds == ROUNDS, "{rounds} rounds instead of {ROUNDS}");
    client.succeeds()?;
    Ok(String::new())
}

/// What `ucmatose` sends each way.
const MESSAGES: Messages = Messages { count: 20, size: 3000 };

fn ucmatose_client(lab: &Lab, config: Config) -> Result<String> {
    let (port, m) = (lab.port(), MESSAGES);
    let server = lab.start(&format!("ucmatose -b {} -p {port} -C {} -S {}", lab.siw(), m.count, m.size));
    both(sends::ucmatose_client(lab.guest_at(port), config, m, &Meeting::of(1)), server)
        .map(|_| String::new())
}

fn ucmatose_server(lab: &Lab, config: Config) -> Result<String> {
    let (port, m) = (lab.port(), MESSAGES);
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("ucmatose -s {} -p {port} -C {} -S {}", lab.us(), m.count, m.size));
    both(sends::ucmatose_server(&listener, config, m, &Meeting::of(1)), client).map(|_| String::new())
}

fn rdma_client(lab: &Lab, crc: bool) -> Result<String> {
    let port = lab.port();
    let server = lab.start(&format!("rdma_server -s {} -p {port}", lab.siw()));
    both(sends::rdma_client(lab.guest_at(port), crc), server).map(|_| String::new())
}

fn rdma_server(lab: &Lab, crc: bool) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("rdma_client -s {} -p {port}", lab.us()));
    both(sends::rdma_server(&listener, crc), client).map(|_| String::new())
}

/// Requests of the perftest programs.
const REQUESTS: usize = 200;

/// Bytes of a request on a path that loses.
const LITTLE: usize = 16 << 10;

/// Bytes of a request.
fn request(program: Program) -> usize {
    if program == Program::SendLat { 64 } else { 64 << 10 }
}

fn perftest_client(lab: &Lab, crc: bool, program: Program, size: usize) -> Result<String> {
    let (port, name) = (lab.port(), program.name());
    let server = lab.start(&format!("{name} -R -d siw0 -p {port} -n {REQUESTS} -s {size}"));
    both(perftest::client(lab.guest_at(port), crc, program, REQUESTS, size), server).map(|_| String::new())
}

fn perftest_server(lab: &Lab, crc: bool, program: Program, size: usize) -> Result<String> {
    let (port, name) = (lab.port(), program.name());
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("{name} -R -d siw0 -p {port} -n {REQUESTS} -s {size} {}", lab.us()));
    both(perftest::server(&listener, crc, program, size), client).map(|_| String::new())
}

/// What `rstream` sends.
const STREAM: Amount = Amount { size: 50_000, count: 60, rounds: 2 };

fn rstream_client(lab: &Lab, config: Config, amount: Amount) -> Result<String> {
    let port = lab.port();
    let server = lab.start(&format!("rstream -b {} -p {port} {}", lab.siw(), amount.options()));
    verified(&both(rstream::client(lab.guest_at(port), config, amount), server)?)
}

fn rstream_server(lab: &Lab, config: Config, amount: Amount) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("rstream -s {} -p {port} {}", lab.us(), amount.options()));
    verified(&both(rstream::server(&listener, config, amount), client)?)
}

/// rstream has found nothing wrong and come to its end.
pub fn verified(text: &str) -> Result<String> {
    ensure!(text.contains("custom") && !text.contains("failed"), "rstream says: {text}");
    Ok(String::new())
}
