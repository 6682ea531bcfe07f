//! The records of the emulator's measurements, written as JSON.
//!
//! The file has one JSON object a line. The first is [`Record::Header`], the last [`Record::Summary`] (absent when the
//! emulator died). Between them stand, in order of time, one [`Record::Flow`] when a flow is first seen, one
//! [`Record::Sample`] for every interval in which anything happened (an interval without traffic has no line), and one
//! [`Record::Mark`] for each call of [`Lab::mark`](crate::Lab::mark).
//!
//! Times are nanoseconds since the emulator started. Bytes are those of IP packets, headers included, after splitting:
//! each segment of a super-packet counts as the packet that it would be on the wire.

use std::io::BufRead;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The version of the format, in [`Header::version`].
pub const VERSION: u32 = 1;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    /// What is emulated.
    Header(Header),
    /// A flow that was seen for the first time.
    Flow(FlowInfo),
    /// What happened in one interval.
    Sample(Sample),
    /// The owner marked a moment.
    Mark(Mark),
    /// The whole run.
    Summary(Summary),
}

/// What is emulated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u32,
    /// The length of an interval in nanoseconds.
    pub interval_ns: u64,
    /// The seed of all randomness in the network.
    pub seed: u64,
    /// The names of the nodes.
    pub nodes: Vec<String>,
    /// The links: their place here is [`LinkSample::link`].
    pub links: Vec<LinkInfo>,
}

/// One direction of one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// Its name in the topology, such as `forward`.
    pub name: String,
    /// What it is like, in the language of [`netem::LinkConfig::parse`], without a trace.
    pub config: String,
}

/// A flow: all packets with the same protocol, addresses and ports, in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowInfo {
    /// Its number, used in [`FlowSample::flow`].
    pub flow: u32,
    /// When its first packet entered the network.
    pub at_ns: u64,
    /// The IP protocol: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// Address and port of the sender, such as `10.77.0.1:5001`; the port is 0 where the protocol has none.
    pub source: String,
    /// Address and port of the receiver.
    pub destination: String,
    /// The node that sends.
    pub from: String,
    /// The node that receives; empty when no node has the address.
    pub to: String,
}

/// What happened in one interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the interval.
    pub at_ns: u64,
    /// Its length: the interval of the header, more when the emulator was held up.
    pub length_ns: u64,
    /// Links that carried or held anything.
    pub links: Vec<LinkSample>,
    /// Flows of which anything was seen.
    pub flows: Vec<FlowSample>,
    /// How late packets were delivered.
    pub lateness: Lateness,
}

/// One link in one interval (or over a whole run): changes of its counters, and its queue.
///
/// `in_packets + duplicated = delivered_packets + dropped_* + change of in_link` for every link and interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSample {
    /// Its place in [`Header::links`].
    pub link: u32,
    /// Packets offered.
    pub in_packets: u64,
    /// Bytes offered.
    pub in_bytes: u64,
    /// Packets that arrived at its far end, duplicates included.
    pub delivered_packets: u64,
    /// Bytes that arrived.
    pub delivered_bytes: u64,
    /// Packets dropped because the queue was full.
    pub dropped_queue: u64,
    /// Packets dropped by random loss.
    pub dropped_loss: u64,
    /// Packets dropped by black-outs.
    pub dropped_black_out: u64,
    /// Packets dropped for other reasons: larger than the link's MTU, or the model was full.
    pub dropped_other: u64,
    /// Packets that the queue marked as having seen congestion (ECN).
    pub marked: u64,
    /// Copies added by duplication.
    pub duplicated: u64,
    /// Packets delayed on purpose.
    pub reordered: u64,
    /// Packets in the queue and on the wire at the end.
    pub in_link: u64,
    /// Bytes that wait at the end.
    pub queue_bytes: u64,
    /// Most bytes that waited, as seen after each packet or super-packet that entered and at each turn of the emulator.
    pub max_queue_bytes: u64,
}

/// One flow in one interval (or over a whole run).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSample {
    /// Its number, from [`FlowInfo::flow`].
    pub flow: u32,
    /// Packets sent into the network.
    pub in_packets: u64,
    /// Bytes sent into the network.
    pub in_bytes: u64,
    /// Packets handed to the receiver, duplicates included.
    pub delivered_packets: u64,
    /// Bytes handed to the receiver.
    pub delivered_bytes: u64,
    /// Bytes handed to the receiver behind the transport's header: what TCP or UDP carries, retransmissions and
    /// duplicates included.
    pub delivered_payload: u64,
    /// Packets dropped because the queue of the first link on their way was full.
    pub dropped_queue: u64,
    /// Packets dropped by random loss on that link.
    pub dropped_loss: u64,
    /// Packets dropped for other reasons, by black-outs for example, and for any reason on a link that is not the
    /// first on their way.
    pub dropped_other: u64,
    /// Packets that were handed over with the mark of congestion (ECN CE) which they did not have when they were sent.
    pub marked: u64,
    /// The shortest time that a packet delivered in this interval spent in the network, by the model (lateness not
    /// included); 0 when none was delivered.
    pub delay_min_ns: u64,
    /// The mean of that time.
    pub delay_mean_ns: u64,
    /// The longest.
    pub delay_max_ns: u64,
}

/// How late packets were handed over, compared with the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Packets handed over.
    pub packets: u64,
    /// The median. Quantiles are above the true ones by at most 1 %.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The worst.
    pub max_ns: u64,
    /// The time during which packets that were due for more than 1 ms had not been handed over.
    pub above_1ms_ns: u64,
    /// The time over which all this was measured.
    pub span_ns: u64,
}

/// A moment marked by the owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// When.
    pub at_ns: u64,
    /// What the owner called it.
    pub label: String,
    /// Lateness since the mark before (or the start).
    pub lateness: Lateness,
    /// Packets that a node's device dropped since the mark before, because the emulator did not take them in time.
    pub device_drops: u64,
    /// CPU time of the emulator since the mark before, in nanoseconds, user and system together.
    pub cpu_ns: u64,
}

/// The whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// When the emulator stopped.
    pub at_ns: u64,
    /// Every link, from the start.
    pub links: Vec<LinkSample>,
    /// Every flow, from the start.
    pub flows: Vec<FlowSample>,
    /// Lateness over the whole run.
    pub lateness: Lateness,
    /// Packets (after splitting) read from the nodes' devices.
    pub read_packets: u64,
    /// Packets (before joining) written to the nodes' devices.
    pub written_packets: u64,
    /// Packets read that no link could take: for an address that no node has, or not IP.
    pub unroutable_packets: u64,
    /// Packets that were dropped because the emulator held as much as it may
    /// ([`MAX_MEMORY`](super::MAX_MEMORY)).
    pub over_limit_packets: u64,
    /// Packets that arrived and that a node's device refused.
    pub refused_packets: u64,
    /// Packets that were still in the network at the end.
    pub in_network: u64,
    /// System calls that read from devices.
    pub reads: u64,
    /// System calls that wrote to devices: `written_packets` divided by this is the mean length of runs.
    pub writes: u64,
    /// Packets that the nodes' devices dropped because the emulator did not take them in time.
    pub device_drops: u64,
    /// CPU time of the emulator in user space, in nanoseconds.
    pub cpu_user_ns: u64,
    /// CPU time of the emulator in the kernel, in nanoseconds: writing to a device runs the receiving node's TCP or
    /// UDP in the emulator's time.
    pub cpu_system_ns: u64,
    /// Lines that were not written because the disk did not keep up.
    pub lost_lines: u64,
}

/// Whether a run is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Ok,
    /// The emulator was too late for valid measurements; the reason, with figures.
    Discarded(String),
}

/// Highest median lateness of a valid run. Undisturbed runs have 0.05 ms.
pub const MAX_P50_NS: u64 = 150_000;

/// Highest 99th percentile of lateness of a valid run. Undisturbed runs at 1 and 2 Gbit/s have 0.1 to 2.5 ms, with
/// other work on the same CPUs 6 ms, since delivering a packet runs the receiving node's TCP in the emulator's time.
pub const MAX_P99_NS: u64 = 10_000_000;

/// Longest part of the time, in thousandths, in which packets may have been more than 1 ms late.
pub const MAX_ABOVE_1MS_PERMILLE: u64 = 50;

/// Highest lateness of any packet; a transport takes longer stalls for an outage of the path.
pub const MAX_LATENESS_NS: u64 = 100_000_000;

/// Decides whether a run is valid.
///
/// A run without packets is valid. `mark` is the one at its end.
pub fn verdict(mark: &Mark) -> Verdict {
    let lateness = &mark.lateness;
    // Losses that no link was configured for would be measured as congestion.
    if mark.device_drops > 0 {
        return Verdict::Discarded(format!(
            "{} packets were lost between a node and the emulator, which did not take them in time; run it on a quieter \
             machine",
            mark.device_drops
        ));
    }
    let ms = |ns: u64| ns as f64 / 1e6;
    let above = lateness.above_1ms_ns.saturating_mul(1000) / lateness.span_ns.max(1);
    let reason = if lateness.p50_ns > MAX_P50_NS {
        format!(
            "half of the packets were over {:.3} ms late (limit {:.3})",
            ms(lateness.p50_ns),
            ms(MAX_P50_NS)
        )
    } else if lateness.p99_ns > MAX_P99_NS {
        format!(
            "1 % of the packets were over {:.1} ms late (limit {:.1})",
            ms(lateness.p99_ns),
            ms(MAX_P99_NS)
        )
    } else if lateness.max_ns > MAX_LATENESS_NS {
        format!("a packet was {:.0} ms late (limit {:.0})", ms(lateness.max_ns), ms(MAX_LATENESS_NS))
    } else if above > MAX_ABOVE_1MS_PERMILLE {
        format!(
            "packets were over 1 ms late in {above} of 1000 parts of the time (limit {MAX_ABOVE_1MS_PERMILLE})"
        )
    } else {
        return Verdict::Ok;
    };
    Verdict::Discarded(format!("the emulator did not keep up: {reason}; run it on a quieter machine"))
}

/// Why a file of records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("cannot read the emulator's records: {0}")]
    Io(#[from] std::io::Error),
    /// A line is not a record.
    #[error("line {line} of the emulator's records is not one: {source}")]
    Line {
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// Reads a file of records one by one, in constant memory. A truncated last line (the emulator died) is skipped.
///
/// # Errors
/// When the file cannot be opened.
pub fn read(path: &Path) -> Result<impl Iterator<Item = Result<Record, ReadError>>, ReadError> {
    let mut file = std::io::BufReader::new(std::fs::File::open(path)?);
    let (mut text, mut line) = (Vec::new(), 0);
    Ok(std::iter::from_fn(move || {
        text.clear();
        line += 1;
        match file.read_until(b'\n', &mut text) {
            Err(error) => Some(Err(error.into())),
            Ok(_) if text.last() != Some(&b'\n') => None,
            Ok(_) => Some(serde_json::from_slice(&text).map_err(|source| ReadError::Line { line, source })),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip_and_a_truncated_line_is_skipped() {
        let mark = Mark {
            at_ns: 7,
            label: "start \"a\"\n".to_owned(),
            lateness: Lateness::default(),
            device_drops: 1,
            cpu_ns: 2,
        };
        let records = [Record::Mark(mark), Record::Summary(Summary { reads: 3, ..Summary::default() })];
        let mut text: String = records.iter().map(|r| serde_json::to_string(r).unwrap() + "\n").collect();
        text.push_str(r#"{"kind":"sample","at_"#);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let back: Vec<_> = read(file.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(back, records);
    }

    #[test]
    fn each_lateness_limit_discards_a_run_by_itself() {
        let good = Lateness {
            packets: 1_000,
            p50_ns: MAX_P50_NS,
            p99_ns: MAX_P99_NS,
            max_ns: MAX_LATENESS_NS,
            above_1ms_ns: 50,
            span_ns: 1_000,
        };
        let verdict = |lateness| verdict(&Mark { lateness, ..Mark::default() });
        assert_eq!(verdict(good), Verdict::Ok);
        assert_eq!(verdict(Lateness::default()), Verdict::Ok);
        for bad in [
            Lateness { p50_ns: MAX_P50_NS + 1, ..good },
            Lateness { p99_ns: MAX_P99_NS + 1, ..good },
            Lateness { max_ns: MAX_LATENESS_NS + 1, ..good },
            Lateness { above_1ms_ns: 51, ..good },
        ] {
            assert!(matches!(verdict(bad), Verdict::Discarded(_)), "{bad:?}");
        }
        let dropped = Mark { device_drops: 1, lateness: good, ..Mark::default() };
        assert!(matches!(super::verdict(&dropped), Verdict::Discarded(why) if why.starts_with("1 packets")));
    }
}
