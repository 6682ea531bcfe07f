//! Events of connections, paths, queue pairs and algorithms in words, for administrators.

use crate::proto::FlowId;
use observe::{Event, Subject, What};
use std::net::SocketAddr;

/// The kind of an event, and what happened; `None` for events of transfers, which have logs of their own. `remote` is where
/// the connection's peer is, if it is still known.
pub(crate) fn describe(e: &Event, remote: Option<SocketAddr>) -> Option<(&'static str, String)> {
    let with = remote.map_or_else(String::new, |remote| format!(" (with {remote})"));
    let connection = format!("connection {}{with}", e.connection);
    Some(match &e.what {
        What::ConnectionOpened { remote, is_client } => {
            let by = if *is_client { "to" } else { "from" };
            ("connection", format!("connection {} {by} {remote} is open", e.connection))
        }
        What::ConnectionClosed { reason } => ("connection", format!("{connection} is closed: {reason}")),
        What::PeerMoved { remote } => {
            ("path", format!("connection {}: the peer is at {remote} now", e.connection))
        }
        What::PathUp { path } => ("path", format!("{connection}: path {path} carries data")),
        What::PathDown { path } => ("path", format!("{connection}: path {path} carries no data any more")),
        What::QueuePairRequested => ("queue_pair", format!("{connection}: the peer asks for a queue pair")),
        What::QueuePairReady { by_peer } => {
            let by = if *by_peer { "that the peer opened" } else { "that this end opened" };
            ("queue_pair", format!("{connection}: a queue pair {by} is ready"))
        }
        What::QueuePairGone => ("queue_pair", format!("{connection}: the peer has closed a queue pair")),
        What::QueuePairRefused { code } => {
            ("queue_pair", format!("{connection}: the peer refuses a queue pair (code {code})"))
        }
        What::AlgorithmAgreed { subject, algorithm, by_peer } => {
            let by = if *by_peer { ", proposed by the peer" } else { "" };
            ("algorithm", format!("{}{with}: {algorithm} is agreed on{by}", whose(e, *subject)))
        }
        What::AlgorithmReplaced { subject, from, to, why, by_signals } => {
            let kind = if *by_signals { "fallback" } else { "algorithm" };
            (kind, format!("{}{with}: {to} decides instead of {from}: {why}", whose(e, *subject)))
        }
        What::AlgorithmRefused { subject, algorithm, why } => {
            ("algorithm", format!("{}{with}: {algorithm} is refused: {why}", whose(e, *subject)))
        }
        What::SessionStarted { .. }
        | What::SessionNote { .. }
        | What::FileFailed { .. }
        | What::SessionEnded(_) => return None,
    })
}

fn whose(e: &Event, subject: Subject) -> String {
    match subject {
        Subject::Flow(flow) => format!("flow {}", FlowId { connection: e.connection, flow: flow.into() }),
        Subject::Sending => format!("what connection {} sends", e.connection),
        Subject::Peer => format!("what the peer sends on connection {}", e.connection),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Time;

    #[test]
    fn every_event_of_a_connection_has_a_kind_and_names_it() {
        let remote: SocketAddr = "10.0.0.1:4460".parse().unwrap();
        let (subject, reason) = (Subject::Sending, "no answer".to_owned());
        let (from, to, why) = ("dctcp".to_owned(), "haul".to_owned(), "no marks".to_owned());
        let algorithm = "bbr".to_owned();
        let all = [
            (
                What::ConnectionOpened { remote, is_client: true },
                "connection",
                "connection 7 to 10.0.0.1:4460 is open",
            ),
            (
                What::ConnectionClosed { reason },
                "connection",
                "connection 7 (with 10.0.0.1:4460) is closed: no answer",
            ),
            (What::PeerMoved { remote }, "path", "connection 7: the peer is at 10.0.0.1:4460 now"),
            (
                What::PathDown { path: 1 },
                "path",
                "connection 7 (with 10.0.0.1:4460): path 1 carries no data any more",
            ),
            (
                What::QueuePairRefused { code: 9 },
                "queue_pair",
                "connection 7 (with 10.0.0.1:4460): the peer refuses a queue pair (code 9)",
            ),
            (
                What::AlgorithmAgreed { subject, algorithm: algorithm.clone(), by_peer: false },
                "algorithm",
                "what connection 7 sends (with 10.0.0.1:4460): bbr is agreed on",
            ),
            (
                What::AlgorithmReplaced {
                    subject: Subject::Flow(2),
                    from,
                    to,
                    why: why.clone(),
                    by_signals: true,
                },
                "fallback",
                "flow 7.2 (with 10.0.0.1:4460): haul decides instead of dctcp: no marks",
            ),
            (
                What::AlgorithmRefused { subject: Subject::Peer, algorithm, why },
                "algorithm",
                "what the peer sends on connection 7 (with 10.0.0.1:4460): bbr is refused: no marks",
            ),
        ];
        for (what, kind, text) in all {
            let e = Event { number: 1, time: Time::ZERO, connection: 7, what };
            assert_eq!(describe(&e, Some(remote)), Some((kind, text.to_owned())));
        }
        let what = What::SessionNote { text: "x".to_owned() };
        assert_eq!(describe(&Event { number: 1, time: Time::ZERO, connection: 7, what }, None), None);
    }
}
