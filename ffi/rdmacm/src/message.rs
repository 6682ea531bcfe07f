//! What the connection managers of two processes tell each other (InfiniBand's communication management, chapter 12), as datagrams
//! between the numbers 1 of both (docs/protocol.md, appendix D).
//!
//! All have one layout, big endian: version 1 and kind (one byte each), the identifiers of the sender and of the receiver (4 each),
//! port space, service, source port and reason (2 each), queue pair and Q_Key (4 each), responder resources, initiator depth, flow
//! control, retries, RNR retries, shared receive queue, type of queue pair and length of the private data (one byte each), then the
//! private data. What follows is for later versions.

const VERSION: u8 = 1;
const HEADER: usize = 34;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks to connect.
    Request = 1,
    /// Accepts.
    Reply = 2,
    /// Is ready, too.
    Ready = 3,
    /// Does not want to, or not any more.
    Reject = 4,
    /// Ends the connection.
    Disconnect = 5,
    /// Has ended it.
    Disconnected = 6,
    /// Asks for the queue pair of a service of datagrams.
    DatagramRequest = 7,
    /// Tells it.
    DatagramReply = 8,
}

const KINDS: [Kind; 8] = [
    Kind::Request,
    Kind::Reply,
    Kind::Ready,
    Kind::Reject,
    Kind::Disconnect,
    Kind::Disconnected,
    Kind::DatagramRequest,
    Kind::DatagramReply,
];

impl Kind {
    /// How much private data a program may give, as over RoCE with addresses of IP: what the message has room for, less the header of
    /// the IP annex.
    pub const fn max_private(self) -> usize {
        match self {
            Kind::Request => 56,
            Kind::Reply => 196,
            Kind::Ready => 224,
            Kind::Reject => 148,
            Kind::Disconnect => 220,
            Kind::Disconnected => 224,
            Kind::DatagramRequest => 180,
            Kind::DatagramReply => 136,
        }
    }
}

/// Attributes of a connection, as the program that sends them has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// Queue pair.
    pub number: u32,
    /// Its key, for datagrams.
    pub q_key: u32,
    /// Reads and atomic operations that it answers at a time.
    pub responder_resources: u8,
    /// Those that it begins.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: u8,
    /// Retries.
    pub retries: u8,
    /// Retries for want of a receive.
    pub rnr_retries: u8,
    /// Whether it has a shared receive queue.
    pub srq: u8,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// The sender's identifier.
    pub from: u32,
    /// The receiver's; 0 in requests.
    pub to: u32,
    /// Port space of the service.
    pub space: u16,
    /// Its port.
    pub service: u16,
    /// The port that the sender has.
    pub source_port: u16,
    /// Why it rejects.
    pub reason: u16,
    /// The sender's queue pair.
    pub parameters: Parameters,
    /// Its type.
    pub qp_type: u8,
    /// What the program adds.
    pub private: Vec<u8>,
}

impl Message {
    /// One with nothing but identifiers.
    pub fn new(kind: Kind, from: u32, to: u32) -> Message {
        let parameters = Parameters::default();
        let (space, service, source_port, reason, qp_type) = (0, 0, 0, 0, 0);
        Message { kind, from, to, space, service, source_port, reason, parameters, qp_type, private: vec![] }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.private.len());
        out.extend([VERSION, self.kind as u8]);
        let p = &self.parameters;
        [self.from, self.to].iter().for_each(|n| out.extend(n.to_be_bytes()));
        for n in [self.space, self.service, self.source_port, self.reason] {
            out.extend(n.to_be_bytes());
        }
        [p.number, p.q_key].iter().for_each(|n| out.extend(n.to_be_bytes()));
        out.extend([p.responder_resources, p.initiator_depth, p.flow_control, p.retries, p.rnr_retries]);
        let private = &self.private[..self.private.len().min(self.kind.max_private())];
        out.extend([p.srq, self.qp_type, private.len() as u8]);
        out.extend(private);
        out
    }

    /// Reads one. `None` for what is none.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = bytes.split_at_checked(HEADER)?;
        let kind = *KINDS.iter().find(|k| **k as u8 == head[1]).filter(|_| head[0] == VERSION)?;
        let two = |at: usize| Some(u16::from_be_bytes(head.get(at..at + 2)?.try_into().ok()?));
        let four = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let len = usize::from(head[33]);
        if len > kind.max_private() {
            return None;
        }
        let parameters = Parameters {
            number: four(18)?,
            q_key: four(22)?,
            responder_resources: head[26],
            initiator_depth: head[27],
            flow_control: head[28],
            retries: head[29],
            rnr_retries: head[30],
            srq: head[31],
        };
        Some(Message {
            kind,
            from: four(2)?,
            to: four(6)?,
            space: two(10)?,
            service: two(12)?,
            source_port: two(14)?,
            reason: two(16)?,
            parameters,
            qp_type: head[32],
            private: rest.get(..len)?.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_read_is_what_was_written(
            kind in 0usize..8, ids: (u32, u32), words: (u16, u16, u16, u16), numbers: (u32, u32),
            bytes: [u8; 7], private in proptest::collection::vec(any::<u8>(), 0..57),
        ) {
            let [responder_resources, initiator_depth, flow_control, retries, rnr_retries, srq, qp_type] = bytes;
            let parameters = Parameters {
                number: numbers.0, q_key: numbers.1,
                responder_resources, initiator_depth, flow_control, retries, rnr_retries, srq,
            };
            let m = Message {
                kind: KINDS[kind], from: ids.0, to: ids.1, space: words.0, service: words.1,
                source_port: words.2, reason: words.3, parameters, qp_type, private,
            };
            let bytes = m.encode();
            prop_assert_eq!(Message::decode(&bytes), Some(m.clone()));
            prop_assert_eq!(Message::decode(&[&bytes[..], b"later"].concat()), Some(m));
            for n in 0..bytes.len() {
                prop_assert_eq!(Message::decode(&bytes[..n]), None);
            }
        }

        #[test]
        fn other_bytes_are_refused_or_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(m) = Message::decode(&bytes) {
                prop_assert!(m.private.len() <= m.kind.max_private());
            }
        }
    }

    #[test]
    fn other_versions_kinds_and_lengths_are_refused() {
        let good = Message { private: vec![7; 56], ..Message::new(Kind::Request, 1, 2) }.encode();
        assert_eq!(good.len(), HEADER + 56);
        for (at, value) in [(0, 2), (1, 0), (1, 9), (33, 57)] {
            let mut bad = good.clone();
            bad.push(0);
            bad[at] = value;
            assert_eq!(Message::decode(&bad), None, "{at}: {value}");
        }
        // What is longer than a message may have is cut off.
        let long = Message { private: vec![7; 300], ..Message::new(Kind::Reply, 1, 2) }.encode();
        assert_eq!(Message::decode(&long).map(|m| m.private.len()), Some(196));
    }
}
