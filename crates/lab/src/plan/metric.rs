//! The metrics of runs, by name.

use serde::{Deserialize, Serialize};

/// A metric of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Payload of all measured flows after the warm-up, in bits per second.
    Goodput,
    /// Goodput as a share of rate x (1 - loss) x payload share of a packet.
    Share,
    /// Payload of all measured flows in the first four seconds of a run, in bytes.
    #[serde(rename = "bytes_in_first_4s")]
    FirstBytes,
    /// Seconds from the first data until the bottleneck was used to 50 %.
    #[serde(rename = "time_to_50")]
    TimeTo50,
    /// The same for 90 %.
    #[serde(rename = "time_to_90")]
    TimeTo90,
    /// The same to 95 %.
    #[serde(rename = "time_to_95")]
    TimeTo95,
    /// Packets the queue dropped during the first second of data, as a share of those sent in it.
    StartLoss,
    /// Packets dropped by the queue after the warm-up, as a share of those sent: loss caused by the senders.
    QueueLoss,
    /// Median of the queue, as a share of rate x round trip.
    Queue,
    /// Median round trip in seconds, including queueing.
    Rtt,
    /// 95th percentile of the round trip in seconds.
    RttP95,
    /// Median time in seconds that data waited in the slowest receiver's host before it was processed.
    ReceiverDelay,
    /// Jain's index of the goodputs of measured flows after the warm-up.
    Jain,
    /// The smallest measured flow's share of the total goodput.
    MinShare,
    /// The first flow's share of the total goodput, including background.
    FirstFlowShare,
    /// Median completion time of requests in seconds.
    Completion,
    /// Mean completion time of requests in seconds.
    CompletionMean,
    /// 95th percentile of completion times in seconds.
    CompletionP95,
    /// 99th percentile of completion times in seconds.
    CompletionP99,
    /// Mean goodput of measured flows other than requests, in bits per second.
    Bulk,
    /// Goodput of those flows as a share of the bottleneck capacity that requests leave.
    BulkShare,
    /// Processor seconds of both ends per 10^9 bytes of payload.
    Cpu,
    /// Retransmitted payload, as a share of all payload sent.
    Retransmitted,
    /// Payload that the receiver already had, as a share of all payload sent: unnecessary retransmissions.
    Spurious,
    /// Seconds from the end of the last event until the bottleneck was used to 95 % again.
    Recovery,
    /// The lowest throughput over any second from 1 s after an event on, as a share of that before it.
    Dip,
    /// The longest time since the last event in which nothing new arrived at a receiver, in round trips of the
    /// affected path.
    Stall,
    /// Time from the last event until 90 % of the remaining capacity arrived over a whole round trip, in round trips
    /// of the affected path.
    Failover,
    /// Goodput as a share of the link's capacity, for traces.
    Utilisation,
    /// Median round trip of a message, in seconds.
    MessageRtt,
    /// 99th percentile of the round trip of a message.
    MessageRttP99,
    /// Processor seconds of the sender per 10^9 bytes of payload.
    CpuSend,
    /// Processor seconds of the receiver.
    CpuReceive,
    /// The smallest ratio of achieved to promised rate among the parts of a sender.
    PromiseMet,
    /// Deadlines that were met, as a share of those admitted.
    DeadlinesMet,
    /// Share of the time in which the sender kept a processor busy.
    LoadSend,
    /// Share of the time in which the receiver kept a processor busy.
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
        Metric::FirstBytes,
        Metric::TimeTo50,
        Metric::TimeTo90,
        Metric::TimeTo95,
        Metric::StartLoss,
        Metric::QueueLoss,
        Metric::Queue,
        Metric::Rtt,
        Metric::RttP95,
        Metric::ReceiverDelay,
        Metric::Jain,
        Metric::MinShare,
        Metric::FirstFlowShare,
        Metric::Completion,
        Metric::CompletionMean,
        Metric::CompletionP95,
        Metric::CompletionP99,
        Metric::Bulk,
        Metric::BulkShare,
        Metric::Cpu,
        Metric::Retransmitted,
        Metric::Spurious,
        Metric::Recovery,
        Metric::Dip,
        Metric::Stall,
        Metric::Failover,
        Metric::Utilisation,
        Metric::MessageRtt,
        Metric::MessageRttP99,
        Metric::CpuSend,
        Metric::CpuReceive,
        Metric::PromiseMet,
        Metric::DeadlinesMet,
        Metric::LoadSend,
        Metric::LoadReceive,
    ];

    /// Its name in plans and results.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Goodput => "goodput",
            Metric::Share => "share",
            Metric::FirstBytes => "bytes_in_first_4s",
            Metric::TimeTo50 => "time_to_50",
            Metric::TimeTo90 => "time_to_90",
            Metric::TimeTo95 => "time_to_95",
            Metric::StartLoss => "start_loss",
            Metric::QueueLoss => "queue_loss",
            Metric::Queue => "queue",
            Metric::Rtt => "rtt",
            Metric::RttP95 => "rtt_p95",
            Metric::ReceiverDelay => "receiver_delay",
            Metric::Jain => "jain",
            Metric::MinShare => "min_share",
            Metric::FirstFlowShare => "first_flow_share",
            Metric::Completion => "completion",
            Metric::CompletionMean => "completion_mean",
            Metric::CompletionP95 => "completion_p95",
            Metric::CompletionP99 => "completion_p99",
            Metric::Bulk => "bulk",
            Metric::BulkShare => "bulk_share",
            Metric::Cpu => "cpu",
            Metric::Retransmitted => "retransmitted",
            Metric::Spurious => "spurious",
            Metric::Recovery => "recovery",
            Metric::Dip => "dip",
            Metric::Stall => "stall",
            Metric::Failover => "failover",
            Metric::Utilisation => "utilisation",
            Metric::MessageRtt => "message_rtt",
            Metric::MessageRttP99 => "message_rtt_p99",
            Metric::CpuSend => "cpu_send",
            Metric::CpuReceive => "cpu_receive",
            Metric::PromiseMet => "promise_met",
            Metric::DeadlinesMet => "deadlines_met",
            Metric::LoadSend => "load_send",
            Metric::LoadReceive => "load_receive",
        }
    }

    /// The metric of a name.
    pub fn from_name(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|m| m.name() == name)
    }

    /// Its heading in reports.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Goodput => "Goodput",
            Metric::Share => "Share of the limit",
            Metric::FirstBytes => "Payload of the first four seconds",
            Metric::TimeTo50 => "Time to 50 % of the bottleneck",
            Metric::TimeTo90 => "Time to 90 % of the bottleneck",
            Metric::TimeTo95 => "Time to 95 % of the bottleneck",
            Metric::StartLoss => "Loss caused by starting",
            Metric::QueueLoss => "Loss in the queue",
            Metric::Queue => "Standing queue",
            Metric::Rtt => "Round trip, median",
            Metric::RttP95 => "Round trip, 95 %",
            Metric::ReceiverDelay => "Wait in the receiver's host, median",
            Metric::Jain => "Jain's index",
            Metric::MinShare => "Smallest flow's part",
            Metric::FirstFlowShare => "First flow's part",
            Metric::Completion => "Completion time, median",
            Metric::CompletionMean => "Completion time, mean",
            Metric::CompletionP95 => "Completion time, 95 %",
            Metric::CompletionP99 => "Completion time, 99 %",
            Metric::Bulk => "Throughput of a bulk flow, mean",
            Metric::BulkShare => "Bulk, share of what is left to it",
            Metric::Cpu => "Processor time of both ends",
            Metric::Retransmitted => "Sent again",
            Metric::Spurious => "Sent again in vain",
            Metric::Recovery => "Time back to 95 %",
            Metric::Dip => "Lowest second after the event",
            Metric::Stall => "Longest stall after the event",
            Metric::Failover => "Time to what is left after the event",
            Metric::Utilisation => "Utilisation of the link",
            Metric::MessageRtt => "Message to and fro, median",
            Metric::MessageRttP99 => "Message to and fro, 99 %",
            Metric::CpuSend => "Processor time of the sender",
            Metric::CpuReceive => "Processor time of the receiver",
            Metric::PromiseMet => "Least part of a promise",
            Metric::DeadlinesMet => "Deadlines kept",
            Metric::LoadSend => "Load of the sender's processor",
            Metric::LoadReceive => "Load of the receiver's processor",
        }
    }

    /// Whether more or less is better.
    pub fn better(self) -> Better {
        match self {
            Metric::Goodput
            | Metric::Share
            | Metric::FirstBytes
            | Metric::Jain
            | Metric::MinShare
            | Metric::FirstFlowShare
            | Metric::Bulk
            | Metric::BulkShare
            | Metric::Dip
            | Metric::PromiseMet
            | Metric::DeadlinesMet
            | Metric::Utilisation => Better::More,
            _ => Better::Less,
        }
    }

    /// A value with its unit.
    pub fn show(self, v: f64) -> String {
        match self {
            Metric::Goodput if v >= 1e9 => format!("{:.3} Gbit/s", v / 1e9),
            Metric::Goodput => format!("{:.1} Mbit/s", v / 1e6),
            Metric::TimeTo50
            | Metric::TimeTo90
            | Metric::TimeTo95
            | Metric::Rtt
            | Metric::RttP95
            | Metric::ReceiverDelay
            | Metric::Completion
            | Metric::CompletionMean
            | Metric::CompletionP95
            | Metric::CompletionP99
            | Metric::Recovery => seconds(v),
            Metric::Bulk => format!("{:.2} MB/s", v / 8e6),
            Metric::FirstBytes => format!("{:.2} MB", v / 1e6),
            Metric::Jain => format!("{v:.3}"),
            Metric::Queue => format!("{v:.2} BDP"),
            Metric::Stall | Metric::Failover => format!("{v:.2} round trips"),
            Metric::MessageRtt | Metric::MessageRttP99 => format!("{:.1} us", v * 1e6),
            Metric::Cpu | Metric::CpuSend | Metric::CpuReceive => format!("{v:.2} s/GB"),
            Metric::QueueLoss | Metric::StartLoss | Metric::Retransmitted | Metric::Spurious => {
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
    fn metric_names_are_unique_and_reversible() {
        for m in Metric::ALL {
            assert_eq!(Metric::from_name(m.name()), Some(m));
            assert_eq!(serde_json::to_value(m).ok(), Some(m.name().into()));
        }
        assert_eq!(Metric::from_name("speed"), None);
    }

    #[test]
    fn metric_values_are_shown_with_units() {
        assert_eq!(Metric::Goodput.show(0.965e9), "965.0 Mbit/s");
        assert_eq!(Metric::Goodput.show(1.93e9), "1.930 Gbit/s");
        assert_eq!(Metric::Rtt.show(0.0707), "70.7 ms");
        assert_eq!(Metric::QueueLoss.show(0.005), "0.500 %");
        assert_eq!(Metric::Bulk.show(500e6), "62.50 MB/s");
    }
}
