//! What is measured, by name.

use serde::{Deserialize, Serialize};

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Payload of all measured flows after the warm-up, in bits per second.
    Goodput,
    /// Goodput as a share of rate x (1 - loss) x payload share of a packet.
    Share,
    /// Payload of all measured flows in the first four seconds of a run, in bytes.
    #[serde(rename = "first_4s")]
    First4s,
    /// Seconds from the first data until the bottleneck was used to 50 %.
    #[serde(rename = "to_50")]
    To50,
    /// The same to 90 %.
    #[serde(rename = "to_90")]
    To90,
    /// The same to 95 %.
    #[serde(rename = "to_95")]
    To95,
    /// Packets the queue dropped during the first second of data, as a share of those sent in it.
    StartLoss,
    /// Packets the queue dropped after the warm-up, as a share of those sent: loss the senders made themselves.
    OwnLoss,
    /// Median of the bytes that waited, as a share of rate x round trip.
    Queue,
    /// Median round trip in seconds: that of the path, and the wait in queues.
    Rtt,
    /// 95th percentile of the round trip in seconds.
    RttP95,
    /// Median time in seconds that what arrived waited in the slowest receiver's host before it was processed.
    HostWait,
    /// Jain's index of the goodputs of measured flows after the warm-up.
    Jain,
    /// The smallest measured flow's part of the goodput of all.
    LeastPart,
    /// The first flow's part of the goodput of all, background included.
    FirstPart,
    /// Median completion time of requests in seconds.
    Completion,
    /// Mean completion time of requests in seconds.
    CompletionMean,
    /// 95th percentile of completion times in seconds.
    CompletionP95,
    /// 99th percentile of completion times in seconds.
    CompletionP99,
    /// Mean goodput of a measured flow that is not one of requests, in bits per second.
    Bulk,
    /// Goodput of those flows as a share of what the bottlenecks leave them beside the requests.
    BulkShare,
    /// Processor seconds of both ends per 10^9 bytes of payload.
    Cpu,
    /// Payload sent again, as a share of all payload sent.
    Again,
    /// Payload that the receiver had already, as a share of all payload sent: retransmissions that were not needed.
    Spurious,
    /// Seconds from the end of the last event until the bottleneck was used to 95 % again.
    Recovery,
    /// The least throughput over any second from 1 s after an event on, as a share of that before it.
    Dip,
    /// The longest time from the last event on in which nothing new arrived at a receiver, in round trips of the path with
    /// the event.
    Stall,
    /// How long after the last event 90 % of what the network can carry since then arrived over a whole round trip, in
    /// round trips of the path with the event.
    Takeover,
    /// Goodput as a share of what the link could have carried, for traces.
    Utilisation,
    /// Median time of a message to and fro, in seconds.
    Trip,
    /// 99th percentile of it.
    TripP99,
    /// Processor seconds of the sender per 10^9 bytes of payload.
    CpuSend,
    /// Processor seconds of the receiver.
    CpuReceive,
    /// The least that a part of a sender got of a rate that it was promised.
    Promise,
    /// Deadlines that were kept, as a share of those that were not refused.
    Deadlines,
    /// Share of its time in which the sender kept a processor busy.
    LoadSend,
    /// The same of the receiver.
    LoadReceive,
}

/// Whether more or less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More.
    More,
    /// Less.
    Less,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 37] = [
        Metric::Goodput,
        Metric::Share,
        Metric::First4s,
        Metric::To50,
        Metric::To90,
        Metric::To95,
        Metric::StartLoss,
        Metric::OwnLoss,
        Metric::Queue,
        Metric::Rtt,
        Metric::RttP95,
        Metric::HostWait,
        Metric::Jain,
        Metric::LeastPart,
        Metric::FirstPart,
        Metric::Completion,
        Metric::CompletionMean,
        Metric::CompletionP95,
        Metric::CompletionP99,
        Metric::Bulk,
        Metric::BulkShare,
        Metric::Cpu,
        Metric::Again,
        Metric::Spurious,
        Metric::Recovery,
        Metric::Dip,
        Metric::Stall,
        Metric::Takeover,
        Metric::Utilisation,
        Metric::Trip,
        Metric::TripP99,
        Metric::CpuSend,
        Metric::CpuReceive,
        Metric::Promise,
        Metric::Deadlines,
        Metric::LoadSend,
        Metric::LoadReceive,
    ];

    /// As plans and results write it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Goodput => "goodput",
            Metric::Share => "share",
            Metric::First4s => "first_4s",
            Metric::To50 => "to_50",
            Metric::To90 => "to_90",
            Metric::To95 => "to_95",
            Metric::StartLoss => "start_loss",
            Metric::OwnLoss => "own_loss",
            Metric::Queue => "queue",
            Metric::Rtt => "rtt",
            Metric::RttP95 => "rtt_p95",
            Metric::HostWait => "host_wait",
            Metric::Jain => "jain",
            Metric::LeastPart => "least_part",
            Metric::FirstPart => "first_part",
            Metric::Completion => "completion",
            Metric::CompletionMean => "completion_mean",
            Metric::CompletionP95 => "completion_p95",
            Metric::CompletionP99 => "completion_p99",
            Metric::Bulk => "bulk",
            Metric::BulkShare => "bulk_share",
            Metric::Cpu => "cpu",
            Metric::Again => "again",
            Metric::Spurious => "spurious",
            Metric::Recovery => "recovery",
            Metric::Dip => "dip",
            Metric::Stall => "stall",
            Metric::Takeover => "takeover",
            Metric::Utilisation => "utilisation",
            Metric::Trip => "trip",
            Metric::TripP99 => "trip_p99",
            Metric::CpuSend => "cpu_send",
            Metric::CpuReceive => "cpu_receive",
            Metric::Promise => "promise",
            Metric::Deadlines => "deadlines",
            Metric::LoadSend => "load_send",
            Metric::LoadReceive => "load_receive",
        }
    }

    /// The metric of a name.
    pub fn from_name(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|m| m.name() == name)
    }

    /// A heading for people.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Goodput => "Goodput",
            Metric::Share => "Share of the limit",
            Metric::First4s => "Payload of the first four seconds",
            Metric::To50 => "Time to 50 % of the bottleneck",
            Metric::To90 => "Time to 90 % of the bottleneck",
            Metric::To95 => "Time to 95 % of the bottleneck",
            Metric::StartLoss => "Loss caused by starting",
            Metric::OwnLoss => "Loss in the queue",
            Metric::Queue => "Standing queue",
            Metric::Rtt => "Round trip, median",
            Metric::RttP95 => "Round trip, 95 %",
            Metric::HostWait => "Wait in the receiver's host, median",
            Metric::Jain => "Jain's index",
            Metric::LeastPart => "Smallest flow's part",
            Metric::FirstPart => "First flow's part",
            Metric::Completion => "Completion time, median",
            Metric::CompletionMean => "Completion time, mean",
            Metric::CompletionP95 => "Completion time, 95 %",
            Metric::CompletionP99 => "Completion time, 99 %",
            Metric::Bulk => "Throughput of a bulk flow, mean",
            Metric::BulkShare => "Bulk, share of what is left to it",
            Metric::Cpu => "Processor time of both ends",
            Metric::Again => "Sent again",
            Metric::Spurious => "Sent again in vain",
            Metric::Recovery => "Time back to 95 %",
            Metric::Dip => "Lowest second after the event",
            Metric::Stall => "Longest stall after the event",
            Metric::Takeover => "Time to what is left after the event",
            Metric::Utilisation => "Utilisation of the link",
            Metric::Trip => "Message to and fro, median",
            Metric::TripP99 => "Message to and fro, 99 %",
            Metric::CpuSend => "Processor time of the sender",
            Metric::CpuReceive => "Processor time of the receiver",
            Metric::Promise => "Least part of a promise",
            Metric::Deadlines => "Deadlines kept",
            Metric::LoadSend => "Load of the sender's processor",
            Metric::LoadReceive => "Load of the receiver's processor",
        }
    }

    /// Which direction is good.
    pub fn better(self) -> Better {
        match self {
            Metric::Goodput
            | Metric::Share
            | Metric::First4s
            | Metric::Jain
            | Metric::LeastPart
            | Metric::FirstPart
            | Metric::Bulk
            | Metric::BulkShare
            | Metric::Dip
            | Metric::Promise
            | Metric::Deadlines
            | Metric::Utilisation => Better::More,
            _ => Better::Less,
        }
    }

    /// A value with its unit, for people.
    pub fn show(self, v: f64) -> String {
        match self {
            Metric::Goodput if v >= 1e9 => format!("{:.3} Gbit/s", v / 1e9),
            Metric::Goodput => format!("{:.1} Mbit/s", v / 1e6),
            Metric::To50
            | Metric::To90
            | Metric::To95
            | Metric::Rtt
            | Metric::RttP95
            | Metric::HostWait
            | Metric::Completion
            | Metric::CompletionMean
            | Metric::CompletionP95
            | Metric::CompletionP99
            | Metric::Recovery => seconds(v),
            Metric::Bulk => format!("{:.2} MB/s", v / 8e6),
            Metric::First4s => format!("{:.2} MB", v / 1e6),
            Metric::Jain => format!("{v:.3}"),
            Metric::Queue => format!("{v:.2} BDP"),
            Metric::Stall | Metric::Takeover => format!("{v:.2} round trips"),
            Metric::Trip | Metric::TripP99 => format!("{:.1} us", v * 1e6),
            Metric::Cpu | Metric::CpuSend | Metric::CpuReceive => format!("{v:.2} s/GB"),
            Metric::OwnLoss | Metric::StartLoss | Metric::Again | Metric::Spurious => {
                format!("{:.3} %", v * 100.0)
            }
            _ => format!("{:.1} %", v * 100.0),
        }
    }
}

fn seconds(v: f64) -> String {
    if v >= 10.0 { format!("{v:.1} s") } else { format!("{:.1} ms", v * 1e3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for m in Metric::ALL {
            assert_eq!(Metric::from_name(m.name()), Some(m));
            assert_eq!(serde_json::to_value(m).ok(), Some(m.name().into()));
        }
        assert_eq!(Metric::from_name("speed"), None);
    }

    #[test]
    fn values_have_units() {
        assert_eq!(Metric::Goodput.show(0.965e9), "965.0 Mbit/s");
        assert_eq!(Metric::Goodput.show(1.93e9), "1.930 Gbit/s");
        assert_eq!(Metric::Rtt.show(0.0707), "70.7 ms");
        assert_eq!(Metric::OwnLoss.show(0.005), "0.500 %");
        assert_eq!(Metric::Bulk.show(500e6), "62.50 MB/s");
    }
}
