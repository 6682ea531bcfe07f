//! Compares what tshark found with what the engines were told to send.

use crate::dissect::{Packet, Record, WARNING};
use crate::talk::{Said, To, Transcript};
use longhaul_iwarp::ddp::{TAGGED, UNTAGGED};
use longhaul_iwarp::mpa::{fpdu, markers};
use std::collections::VecDeque;

/// What tshark says of revision 2 (in its summary of remarks only, as far as 4.0 goes).
const OF_REVISION_2: [&str; 2] = ["iwarp_mpa.rev.not_set1", "iwarp_mpa.res.not_set0"];

/// How far one end was followed.
struct End {
    /// What is still to be seen.
    said: VecDeque<Said>,
    /// Bytes of the message that has begun.
    begun: u64,
    /// STags of the destinations of reads that have no answer yet.
    sinks: VecDeque<u32>,
}

/// Compares the packets of a connection with what was said in it.
pub fn compare(t: &Transcript, packets: &[Packet]) {
    let mut ends = t.said.clone().map(|said| End { said: said.into(), begun: 0, sinks: VecDeque::default() });
    for p in packets {
        let Some(from) = t.ports.iter().position(|port| *port == p.ports[0]) else { continue };
        if p.ports[1] != t.ports[1 - from] {
            continue;
        }
        let of = format!("{}, packet {}", t.name, p.number);
        assert!(p.sums_are_right, "{of}: checksums of IP and TCP");
        if t.foreign.contains(&p.number) || !t.compared[from] {
            continue;
        }
        remarks(&of, t, p);
        for r in &p.records {
            let [x, y] = &mut ends;
            let (me, other) = if from == 0 { (x, y) } else { (y, x) };
            let first = me.said.front().unwrap_or_else(|| panic!("{of}: nothing more was sent: {r:?}"));
            let done = if let Said::Message { .. } = first {
                envelope(&of, t, p, from, r);
                // Of an end that is not followed, nothing is known.
                let sinks = t.compared[1 - from].then_some(&mut other.sinks);
                message(&of, first, r, &mut me.begun, &mut me.sinks, sinks)
            } else {
                frame(&of, first, r);
                true
            };
            if done {
                me.said.pop_front();
                me.begun = 0;
            }
        }
    }
    for (end, compared) in ends.iter().zip(t.compared) {
        assert!(!compared || end.said.is_empty(), "{}: not seen: {:?}", t.name, end.said);
    }
}

/// Nothing is malformed, and nothing is remarked on but what is known.
fn remarks(of: &str, t: &Transcript, p: &Packet) {
    let starts = p.records.iter().any(|r| r.field("iwarp_mpa.rev").is_some());
    for (what, severity) in &p.remarks {
        let known = starts && t.enhanced && OF_REVISION_2.contains(&what.as_str());
        let reset = what == "tcp.connection.rst" && t.resets.contains(&p.number);
        let quoted = what == "_ws.malformed.expert" && quotes_a_tagged_header(p);
        assert!(*severity < WARNING || known || reset || quoted, "{of}: {what}");
    }
    assert!(p.malformed.is_empty() || quotes_a_tagged_header(p), "{of}: {:?}", p.malformed);
}

/// tshark takes the header that a Terminate message of RDMAP's layer quotes for an untagged one, unless the type of the
/// error is 1, and runs beyond the end of the message.
fn quotes_a_tagged_header(p: &Packet) -> bool {
    let short = 4 + 2 + TAGGED + UNTAGGED;
    p.records.last().is_some_and(|r| {
        r.number("iwarp_rdma.opcode") == Some(7)
            && r.number("iwarp_rdma.term_layer") == Some(0)
            && r.number("iwarp_rdma.term_etype_rdma") == Some(2)
            && r.number("iwarp_mpa.ulpdulength") == Some(short as u64)
    })
}

fn frame(of: &str, said: &Said, r: &Record) {
    let Said::Frame { reply, flags, revision, private } = said else { unreachable!("a frame") };
    let key = if *reply { "iwarp_mpa.rep" } else { "iwarp_mpa.req" };
    assert!(r.field(key).is_some(), "{of}: {key}");
    let names = ["iwarp_mpa.marker_flag", "iwarp_mpa.crc_flag", "iwarp_mpa.rej_flag"];
    for (name, flag) in names.iter().zip(flags) {
        assert_eq!(r.number(name), Some(u64::from(*flag)), "{of}: {name}");
    }
    assert_eq!(r.number("iwarp_mpa.rev"), Some((*revision).into()), "{of}: revision");
    assert_eq!(r.number("iwarp_mpa.pdlength"), Some(*private), "{of}: private data");
    // Bit S, which RFC 5044 has reserved.
    assert_eq!(r.number("iwarp_mpa.res"), Some(if *revision == 2 { 0x10 } else { 0 }), "{of}: bit S");
}

/// Length, padding, CRC and markers of a record.
fn envelope(of: &str, t: &Transcript, p: &Packet, from: usize, r: &Record) {
    let (with_markers, with_crc) = t.terms[from];
    let ulpdu =
        r.number("iwarp_mpa.ulpdulength").unwrap_or_else(|| panic!("{of}: no record: {r:?}")) as usize;
    let pad = r.field("iwarp_mpa.pad").map_or(0, |f| f.size);
    assert_eq!(pad, fpdu::pad(ulpdu), "{of}: padding");
    match (with_crc, r.field("iwarp_mpa.crc_check")) {
        (true, Some(f)) => {
            let wanted = if t.damaged.contains(&p.number) { "Bad CRC32" } else { "Good CRC32" };
            assert!(f.text.contains(wanted), "{of}: {}", f.text);
        }
        (false, None) => {
            assert_eq!(r.number("iwarp_mpa.crc"), Some(0), "{of}: the field of a CRC not in use")
        }
        (_, f) => panic!("{of}: CRC in use: {with_crc}; {f:?}"),
    }
    let start = r.field("iwarp_mpa.fpdu").map_or(0, |f| f.at);
    let pointers: Vec<_> = r.all("iwarp_mpa.marker_fpduptr").collect();
    if !with_markers {
        assert!(pointers.is_empty(), "{of}: markers");
        return;
    }
    for f in &pointers {
        // The pointer is the second half of a marker; it leads to the length field, from one in front of it as well.
        let back = (f.at - 2).saturating_sub(start);
        assert_eq!(u16::from_str_radix(f.digits(), 16).map(usize::from), Ok(back), "{of}: marker");
    }
    for f in r.all("iwarp_mpa.marker_res") {
        assert_eq!(f.digits(), "0000", "{of}: marker");
    }
    let least = fpdu::len(ulpdu) / (markers::INTERVAL as usize);
    assert!((least..=least + 2).contains(&pointers.len()), "{of}: {} markers", pointers.len());
}

/// A record of a message of which `begun` bytes were seen. True: it was the last. `asked` are the sinks of the end itself,
/// `answered` those of the other.
fn message(
    of: &str,
    said: &Said,
    r: &Record,
    begun: &mut u64,
    asked: &mut VecDeque<u32>,
    answered: Option<&mut VecDeque<u32>>,
) -> bool {
    let Said::Message { opcode, to, len, fields, payload } = said else { panic!("{of}: a frame was sent") };
    let number = |name: &str| r.number(name).unwrap_or_else(|| panic!("{of}: no {name}: {r:?}"));
    let of = format!("{of}, operation {opcode} of {len} bytes");
    assert_eq!(number("iwarp_rdma.opcode"), u64::from(*opcode), "{of}");
    assert_eq!((number("iwarp_rdma.version"), number("iwarp_ddp.dv")), (1, 1), "{of}: versions");
    assert_eq!((number("iwarp_rdma.rsv"), number("iwarp_ddp.rsvd")), (0, 0), "{of}: reserved bits");
    let tagged = !matches!(to, To::Queue { .. });
    assert_eq!(number("iwarp_ddp.tagged_flag"), u64::from(tagged), "{of}");
    let header = if tagged { TAGGED } else { UNTAGGED };
    let here = number("iwarp_mpa.ulpdulength") - header as u64;
    match to {
        To::Tagged { stag, to } => {
            assert_eq!(number("iwarp_ddp.stag"), u64::from(*stag), "{of}: STag");
            assert_eq!(number("iwarp_ddp.tagged_offset"), to.wrapping_add(*begun), "{of}: TO");
        }
        To::Sink => {
            if let Some(sinks) = &answered {
                let stag = Some(number("iwarp_ddp.stag") as u32);
                assert_eq!(stag, sinks.front().copied(), "{of}: STag of the oldest read");
            }
            assert_eq!(number("iwarp_ddp.tagged_offset"), *begun, "{of}: TO");
        }
        To::Queue { qn, msn } => {
            assert_eq!(number("iwarp_ddp.qn"), u64::from(*qn), "{of}: queue");
            assert_eq!(number("iwarp_ddp.msn"), u64::from(*msn), "{of}: MSN");
            assert_eq!(number("iwarp_ddp.mo"), *begun, "{of}: MO");
        }
    }
    for (name, value) in fields {
        assert_eq!(number(name), *value, "{of}: {name}");
    }
    if let Some(bytes) = payload.as_ref().filter(|_| here > 0) {
        let want: String =
            bytes.iter().skip(*begun as usize).take(here as usize).map(|b| format!("{b:02x}")).collect();
        assert_eq!(r.data, want, "{of}: payload");
    }
    *begun += here;
    let last = number("iwarp_ddp.last_flag") == 1;
    assert_eq!(last, *begun == *len, "{of}: {begun} bytes, last: {last}");
    if *opcode == 1 {
        asked.push_back(number("iwarp_rdma.sinkstag") as u32);
    } else if let Some(sinks) = answered.filter(|_| *to == To::Sink && last) {
        sinks.pop_front();
    }
    last
}
