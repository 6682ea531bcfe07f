//! What one end does wrong, and how the other says so: by a Terminate message, with which code.
//!
//! siw's mistakes are those that its programs can be led into; ours are made on purpose. That siw got our message, its
//! kernel's log tells.

use crate::matrix::{From, Lab, Row};
use crate::peer::{Peer, Remote, config};
use crate::rping::{INFO, Rping};
use anyhow::{Result, ensure};
use iwarp::ddp::{self, Header, QN_SEND, Target};
use iwarp::mpa::fpdu;
use iwarp::rdmap::Opcode as Op;
use iwarp::rdmap::terminate;
use iwarp::{Cause, Config, End};
use verbs::{Opcode, SendOp, Sge};

/// Bytes of rping's buffers.
const SIZE: usize = 256;

/// What we do wrong.
#[derive(Clone, Copy, Debug)]
enum Ours {
    WriteKey,
    WriteBounds,
    ReadKey,
    ReadBounds,
    Msn,
    Offset,
    Queue,
    TooLong,
    Opcode,
    Crc,
}

impl Ours {
    fn name(self) -> &'static str {
        match self {
            Ours::WriteKey => "our write with a wrong key",
            Ours::WriteBounds => "our write out of bounds",
            Ours::ReadKey => "our read with a wrong key",
            Ours::ReadBounds => "our read out of bounds",
            Ours::Msn => "our send with a wrong MSN",
            Ours::Offset => "our send with a wrong offset",
            Ours::Queue => "our send to a wrong queue",
            Ours::TooLong => "our send too long for the receive",
            Ours::Opcode => "an opcode of ours that is none",
            Ours::Crc => "our record with a wrong CRC",
        }
    }
    /// What siw of Linux 6.1 says to it.
    fn answer(self) -> Cause {
        match self {
            Ours::WriteKey => ddp::tagged::STAG,
            Ours::WriteBounds => ddp::tagged::BOUNDS,
            Ours::ReadKey => terminate::STAG,
            Ours::ReadBounds => terminate::BOUNDS,
            Ours::Msn => ddp::untagged::MSN,
            Ours::Offset => ddp::untagged::MO,
            Ours::Queue => ddp::untagged::QN,
            // RFC 5041 has a code of its own for it, 5.
            Ours::TooLong => ddp::untagged::NO_BUFFER,
            // siw says "unexpected opcode", its layer and type exchanged, which is just this.
            Ours::Opcode => terminate::INSUFFICIENT_IRD,
            Ours::Crc => terminate::CRC,
        }
    }
}

/// What siw is led to do wrong.
#[derive(Clone, Copy, Debug)]
enum Theirs {
    WriteKey,
    WriteBounds,
    ReadKey,
    ReadBounds,
}

impl Theirs {
    fn name(self) -> &'static str {
        match self {
            Theirs::WriteKey => "siw's write with a wrong key",
            Theirs::WriteBounds => "siw's write out of bounds",
            Theirs::ReadKey => "siw's read with a wrong key",
            Theirs::ReadBounds => "siw's read out of bounds",
        }
    }
    /// What the RFCs have for it.
    fn answer(self) -> Cause {
        match self {
            Theirs::WriteKey => ddp::tagged::STAG,
            Theirs::WriteBounds => ddp::tagged::BOUNDS,
            Theirs::ReadKey => terminate::STAG,
            Theirs::ReadBounds => terminate::BOUNDS,
        }
    }
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for crc in [false, true] {
        for wrong in [
            Ours::WriteKey,
            Ours::WriteBounds,
            Ours::ReadKey,
            Ours::ReadBounds,
            Ours::Msn,
            Ours::Offset,
            Ours::Queue,
            Ours::TooLong,
            Ours::Opcode,
        ] {
            rows.push(Row::new(wrong.name(), From::Siw, crc, move |lab| ours(lab, crc, wrong)));
        }
        for wrong in [Ours::WriteKey, Ours::ReadKey, Ours::Msn] {
            rows.push(Row::new(wrong.name(), From::Us, crc, move |lab| ours_as_client(lab, crc, wrong)));
        }
        for wrong in [Theirs::WriteKey, Theirs::WriteBounds, Theirs::ReadKey, Theirs::ReadBounds] {
            rows.push(Row::new(wrong.name(), From::Us, crc, move |lab| theirs(lab, crc, wrong)));
        }
        for long in [false, true] {
            let what =
                if long { "siw's send too long for the receive" } else { "siw's send without a receive" };
            rows.push(Row::new(what, From::Siw, crc, move |lab| theirs_sent(lab, crc, long)));
        }
    }
    rows.push(Row::new(Ours::Crc.name(), From::Siw, true, |lab| ours(lab, true, Ours::Crc)));
    rows
}

/// The guest's rping connects and names a buffer of its own; we do something wrong with it.
fn ours(lab: &Lab, crc: bool, wrong: Ours) -> Result<String> {
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("rping -c -a {} -p {port} -S {SIZE} -C 2", lab.us()));
    let mut r = Rping::new(SIZE)?;
    r.p.accept(&listener, config(crc), |_| Vec::new())?;
    let (named, _) = r.wait_info()?;
    do_wrong(&mut r, crc, wrong, named)?;
    let note = told(&mut r.p, wrong)?;
    client.wait()?;
    Ok(note)
}

/// The guest's rping is the server.
fn ours_as_client(lab: &Lab, crc: bool, wrong: Ours) -> Result<String> {
    let port = lab.port();
    let server = lab.start(&format!("rping -s -a {} -p {port} -S {SIZE} -C 2", lab.siw()));
    let mut r = Rping::new(SIZE)?;
    r.p.connect(lab.guest_at(port), config(crc), b"")?;
    // Records made by hand do not keep the pause.
    r.p.rest(std::time::Duration::from_millis(350))?;
    do_wrong(&mut r, crc, wrong, Remote { offset: 0x1000, rkey: 0x1234_5600 })?;
    let note = told(&mut r.p, wrong)?;
    server.wait()?;
    Ok(note)
}

fn do_wrong(r: &mut Rping, crc: bool, wrong: Ours, named: Remote) -> Result<()> {
    let Remote { offset, rkey } = named;
    let sge = Sge { lkey: r.source.lkey, offset: 0, len: 64 };
    let beyond = offset + SIZE as u64 - 32;
    let send = |msn, mo, qn| (Target::Untagged { invalidate: 0, qn, msn, mo }, [0; INFO].to_vec());
    let (target, payload) = match wrong {
        Ours::WriteKey => return r.p.post(SendOp::Write { rkey: rkey ^ 0x5a5a_5a00, offset }, sge),
        Ours::WriteBounds => return r.p.post(SendOp::Write { rkey, offset: beyond }, sge),
        Ours::ReadKey => return r.p.post(SendOp::Read { rkey: rkey ^ 0x5a5a_5a00, offset }, sge),
        Ours::ReadBounds => return r.p.post(SendOp::Read { rkey, offset: beyond }, sge),
        Ours::TooLong => return r.p.send(&[0; INFO + 1]),
        Ours::Msn => send(7, 0, QN_SEND),
        Ours::Offset => send(1, 4, QN_SEND),
        Ours::Queue => send(1, 0, 9),
        Ours::Opcode | Ours::Crc => send(1, 0, QN_SEND),
    };
    let mut control = Op::Send { solicited: false, invalidate: false }.control();
    if matches!(wrong, Ours::Opcode) {
        control |= 0x0f;
    }
    let mut ulpdu = Vec::new();
    Header { last: true, control, target }.put(&mut ulpdu);
    ulpdu.extend(payload);
    let spoil = if matches!(wrong, Ours::Crc) { 1 } else { 0 };
    r.p.raw(&record(&ulpdu, crc, spoil))
}

/// A record with these contents; `spoil` changes its CRC.
fn record(ulpdu: &[u8], crc: bool, spoil: u32) -> Vec<u8> {
    let mut r = (ulpdu.len() as u16).to_be_bytes().to_vec();
    r.extend(ulpdu);
    r.resize(r.len() + fpdu::pad(ulpdu.len()), 0);
    let sum = if crc { fpdu::crc(0, &r) ^ spoil } else { 0 };
    r.extend(fpdu::crc_field(sum));
    r
}

/// Waits for siw's Terminate message.
fn told(p: &mut Peer, wrong: Ours) -> Result<String> {
    let (end, by_peer) = p.wait_end()?;
    let want = (End::Terminated(wrong.answer()), true);
    ensure!((end, by_peer) == want, "the end is {end:?} (by the peer: {by_peer}) instead of {want:?}");
    Ok(format!("siw says: {}", wrong.answer()))
}

/// The guest's rping serves; we name a buffer to it that it may not have.
fn theirs(lab: &Lab, crc: bool, wrong: Theirs) -> Result<String> {
    lab.guest.run("dmesg -c >/dev/null", crate::matrix::LIMIT)?;
    let port = lab.port();
    let server = lab.start(&format!("rping -s -a {} -p {port} -S {SIZE} -C 2", lab.siw()));
    let mut r = Rping::new(SIZE)?;
    r.p.connect(lab.guest_at(port), config(crc), b"")?;
    let text = [b"x".repeat(SIZE - 1), vec![0]].concat();
    r.p.write(r.source, 0, &text)?;
    let (source, sink) = (r.source.rkey, r.sink.rkey);
    let reads = matches!(wrong, Theirs::ReadKey | Theirs::ReadBounds);
    if !reads {
        r.send_info(0, source, SIZE as u32)?;
        r.wait_info()?;
    }
    match wrong {
        Theirs::ReadKey => r.send_info(0, source ^ 0x5a5a_5a5a, SIZE as u32)?,
        Theirs::ReadBounds => r.send_info(32, source, SIZE as u32)?,
        Theirs::WriteKey => r.send_info(0, sink ^ 0x5a5a_5a5a, SIZE as u32)?,
        Theirs::WriteBounds => r.send_info(32, sink, SIZE as u32)?,
    }
    let note = tells(lab, &mut r.p, wrong.answer())?;
    ensure!(r.p.read(r.sink, 0, SIZE)? == [0; SIZE], "memory was changed");
    server.wait()?;
    Ok(note)
}

/// Waits until we have ended the connection because of `cause`, and for siw's log of it.
fn tells(lab: &Lab, p: &mut Peer, cause: Cause) -> Result<String> {
    let (end, by_peer) = p.wait_end()?;
    let want = (End::Terminated(cause), false);
    ensure!((end, by_peer) == want, "the end is {end:?} (by the peer: {by_peer}) instead of {want:?}");
    let log = lab.guest.run("sleep 0.2; dmesg", crate::matrix::LIMIT)?;
    // It reads the layer where the type stands, as it writes them.
    let line = format!("got TERMINATE. layer {}, type {}, code {}", cause.etype, cause.layer, cause.code);
    ensure!(log.contains(&line), "siw's log has no `{line}`: {log}");
    Ok(format!("we say: {cause}"))
}

/// The guest's ucmatose sends more, or longer messages, than we have posted receives for.
fn theirs_sent(lab: &Lab, crc: bool, long: bool) -> Result<String> {
    lab.guest.run("dmesg -c >/dev/null", crate::matrix::LIMIT)?;
    let port = lab.port();
    let listener = lab.listen(port)?;
    let client = lab.start(&format!("timeout 5 ucmatose -s {} -p {port} -C 2 -S 64", lab.us()));
    let mut p = Peer::new()?;
    let (buffer, len) = (p.region(64, verbs::Access::LOCAL_WRITE)?, if long { 60 } else { 64 });
    p.post_recv(buffer, 0, len)?;
    let first = Config { speak_first: true, ..config(crc) };
    p.accept(&listener, first, |_| Vec::new())?;
    for _ in 0..2 {
        p.send(&[1; 64])?;
    }
    if !long {
        p.wait(Opcode::Recv)?;
    }
    let note = tells(lab, &mut p, if long { ddp::untagged::TOO_LONG } else { ddp::untagged::NO_BUFFER })?;
    client.wait()?;
    Ok(note)
}
