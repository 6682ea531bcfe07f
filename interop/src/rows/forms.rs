//! Ways to start, and forms of sends.

use crate::matrix::{From, LIMIT, Lab, Row, both};
use crate::peer::{Peer, config};
use crate::rping::{INFO, Rping};
use crate::sends::{self, Meeting, Messages};
use anyhow::{Result, ensure};
use iwarp::rdmap::terminate;
use iwarp::{Config, End, Rtr};
use verbs::{Access, Data, Opcode, SendOp, SendWr};

const SIZE: usize = 256;
/// siw offers a write to begin with, whatever was asked for; who wanted something else has to end the connection there.
const UNMATCHED: &str = "an end of the connection between siw's reply and the first record is a BUG in Linux 6.1's iw_cm \
                         (cm_work_handler), and the guest does not survive it; `longhaul-iwarp` tests this by itself";

pub fn rows() -> Vec<Row> {
    let none = Rtr { send: false, write: false, read: false };
    let mut rows = Vec::new();
    for crc in [false, true] {
        let forms: [(&str, Rtr); 2] = [
            ("peer to peer, a write to begin with", Rtr { write: true, ..none }),
            ("peer to peer, a read to begin with", Rtr { read: true, ..none }),
        ];
        for (what, rtr) in forms {
            let c = Config { peer_to_peer: true, rtr, ..config(crc) };
            rows.push(Row::new(what, From::Us, crc, move |lab| super::tools::rping_client(lab, c)));
        }
        rows.push(Row::skipped("peer to peer, with nothing in common", From::Us, crc, UNMATCHED));
        let c = Config { enhanced: false, ..config(crc) };
        rows.push(Row::new("revision 1, sends", From::Us, crc, move |lab| first_revision(lab, c)));
        let c = Config { markers: true, ..config(crc) };
        rows.push(Row::new("siw refuses markers", From::Us, crc, move |lab| markers(lab, c)));
        rows.push(Row::new("we refuse", From::Siw, crc, move |lab| refusal(lab, crc)));
        for (what, attention) in
            [("our Send with Invalidate", false), ("our Send with Solicited Event, and with both", true)]
        {
            rows.push(Row::new(what, From::Siw, crc, move |lab| invalidates(lab, crc, attention)));
        }
        rows.push(Row::new("siw's Send with Solicited Event", From::Siw, crc, move |lab| {
            solicited(lab, crc)
        }));
    }
    rows
}

/// Over revision 1 siw allows itself no reads; sends work.
fn first_revision(lab: &Lab, c: Config) -> Result<String> {
    let (port, m) = (lab.port(), Messages { count: 5, size: 2000 });
    let server = lab.start(&format!("ucmatose -b {} -p {port} -C {} -S {}", lab.siw(), m.count, m.size));
    let ours = sends::ucmatose_client(lab.guest_at(port), c, m, &Meeting::of(1));
    both(ours, server).map(|_| String::new())
}

fn markers(lab: &Lab, c: Config) -> Result<String> {
    let port = lab.port();
    let server = lab.start(&format!("rping -s -P -a {} -p {port}", lab.siw()));
    let mut p = Peer::new()?;
    p.begin(lab.guest_at(port), c, b"")?;
    let end = p.wait_end()?;
    lab.guest.run("killall rping", LIMIT)?;
    server.wait()?;
    ensure!(end == (End::Rejected, true), "the end is {end:?}");
    Ok(String::new())
}

fn refusal(lab: &Lab, crc: bool) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("rping -c -a {} -p {port} -C 1", lab.us()));
    let end = Peer::new()?.refuse(&listener, config(crc))?;
    ensure!(end == (End::Rejected, false), "the end is {end:?}");
    let text = client.wait()?.text;
    ensure!(text.contains("REJECTED"), "rping says: {text}");
    Ok(String::new())
}

/// A send of ours makes the key of the guest's buffer void, which the next read with it shows.
fn invalidates(lab: &Lab, crc: bool, attention: bool) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("rping -c -a {} -p {port} -S {SIZE} -C 3", lab.us()));
    let mut r = Rping::new(SIZE)?;
    r.p.accept(&listener, config(crc), |_| Vec::new())?;
    let message = || Data::Inline(vec![0; INFO].into());
    let with = |op| SendWr { solicited: attention, ..SendWr::new(0, op, message()) };
    let (source, len) = r.wait_info()?;
    r.read_from(source, len)?;
    r.p.a.post_send(r.p.qp, with(SendOp::Send))?;
    let (sink, len) = r.wait_info()?;
    r.write_to(sink, len)?;
    r.p.a.post_send(r.p.qp, with(SendOp::SendInvalidate { rkey: source.rkey }))?;
    let (again, len) = r.wait_info()?;
    ensure!(again == source, "rping names another buffer than in the first round");
    ensure!(r.read_from(again, len).is_err(), "the key is not void");
    let end = r.p.wait_end()?;
    ensure!(end == (End::Terminated(terminate::STAG), true), "the end is {end:?}");
    client.wait()?;
    Ok(String::new())
}

fn solicited(lab: &Lab, crc: bool) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("solicited {} {port}", lab.us()));
    let mut p = Peer::new()?;
    let buffer = p.region(3 * INFO, Access::LOCAL_WRITE)?;
    for i in 0..3 {
        p.post_recv(buffer, i * INFO as u64, INFO as u64)?;
    }
    p.accept(&listener, config(crc), |_| Vec::new())?;
    for want in [false, true, false] {
        let got = p.wait(Opcode::Recv)?.solicited;
        ensure!(got == want, "asks for attention: {got} instead of {want}");
    }
    let ours = p.send(&[0; INFO]).and_then(|()| p.wait_end()).map(drop);
    both(ours, client).map(|_| String::new())
}
