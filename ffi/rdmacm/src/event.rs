//! Events, and the bytes in which a program finds them (`struct rdma_ucm_event_resp`).

use crate::abi::{self, Writer, event};
use crate::message::{Kind, Message, Parameters};

/// What an event carries besides its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Details {
    None,
    /// Of connections.
    Connection {
        parameters: Parameters,
        private: Vec<u8>,
    },
    /// Of datagrams: the queue pair, and `struct ib_uverbs_ah_attr` of the way to it.
    Datagrams {
        number: u32,
        q_key: u32,
        way: Vec<u8>,
        private: Vec<u8>,
    },
}

/// An event that waits until the program asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// The identifier that it counts for: a listening one has the requests.
    pub(crate) owner: u32,
    /// The identifier that is made by a request.
    pub(crate) made: Option<u32>,
    /// The membership of a group that it is about.
    pub(crate) membership: Option<u32>,
    pub(crate) number: u32,
    pub(crate) status: i32,
    pub(crate) details: Details,
}

/// Private data is as long as the message has room for, as over RoCE.
fn padded(m: &Message, kind: Kind) -> Vec<u8> {
    let mut private = m.private.clone();
    private.resize(kind.max_private(), 0);
    private
}

/// The attributes in a message, as the end sees them that receives it: what the peer begins it has to answer.
fn turned(p: &Parameters) -> Parameters {
    Parameters { responder_resources: p.initiator_depth, initiator_depth: p.responder_resources, ..*p }
}

impl Details {
    pub(crate) fn of_connection(m: &Message) -> Details {
        Details::Connection { parameters: turned(&m.parameters), private: padded(m, m.kind) }
    }

    pub(crate) fn of_datagrams(m: &Message, way: Vec<u8>) -> Details {
        let (number, q_key) = (m.parameters.number, m.parameters.q_key);
        Details::Datagrams { number, q_key, way, private: padded(m, m.kind) }
    }
}

impl Event {
    pub(crate) fn plain(owner: u32, number: u32, status: i32) -> Event {
        Event { owner, made: None, membership: None, number, status, details: Details::None }
    }

    /// What the program finds, of which it takes the first `room` bytes. `uid` is what it knows the owner by.
    pub(crate) fn bytes(&self, uid: u64, room: usize) -> Vec<u8> {
        const PARAMETERS: usize = 20;
        let mut out = Writer::new(abi::EVENT);
        out.u64(0, uid).u32(8, self.made.or(self.membership).unwrap_or(self.owner)).u32(12, self.number);
        out.u32(16, self.status as u32);
        match &self.details {
            Details::None => {}
            Details::Connection { parameters: p, private } => {
                out.u32(PARAMETERS, p.number).put(PARAMETERS + 8, private);
                let rest = [
                    private.len() as u8,
                    p.srq,
                    p.responder_resources,
                    p.initiator_depth,
                    p.flow_control,
                    p.retries,
                    p.rnr_retries,
                    1,
                ];
                out.put(PARAMETERS + 8 + abi::PRIVATE_LEN, &rest);
            }
            Details::Datagrams { number, q_key, way, private } => {
                out.u32(PARAMETERS, *number).u32(PARAMETERS + 4, *q_key).put(PARAMETERS + 8, way);
                out.put(PARAMETERS + 40, private)
                    .put(PARAMETERS + 40 + abi::PRIVATE_LEN, &[private.len() as u8]);
            }
        }
        out.0.truncate(room);
        out.0
    }

    pub(crate) const fn is_request(&self) -> bool {
        self.number == event::CONNECT_REQUEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_begins_is_what_this_end_answers() {
        let p = Parameters {
            number: 9,
            responder_resources: 3,
            initiator_depth: 5,
            srq: 1,
            ..Parameters::default()
        };
        let m = Message { parameters: p, private: vec![7, 8], ..Message::new(Kind::Request, 1, 0) };
        let e = Event {
            made: Some(4),
            details: Details::of_connection(&m),
            ..Event::plain(2, event::CONNECT_REQUEST, -1)
        };
        let bytes = e.bytes(0x1122, 1_000);
        assert_eq!(bytes.len(), abi::EVENT);
        assert_eq!(bytes[..8], 0x1122u64.to_ne_bytes());
        assert_eq!(bytes[8..20], [4u32, event::CONNECT_REQUEST, u32::MAX].map(u32::to_ne_bytes).concat());
        assert_eq!(bytes[20..24], 9u32.to_ne_bytes());
        assert_eq!(bytes[28..31], [7, 8, 0]);
        assert_eq!(bytes[284..292], [56, 1, 5, 3, 0, 0, 0, 1], "length, shared queue, resources and depth");
        assert_eq!(e.bytes(0, 324).len(), 324);
    }

    #[test]
    fn datagram_events_have_the_way_to_the_peer() {
        let p = Parameters { number: 9, q_key: 10, ..Parameters::default() };
        let m = Message { parameters: p, private: vec![7], ..Message::new(Kind::DatagramReply, 1, 2) };
        let way = abi::address_handle("192.0.2.1".parse().expect("an address"), 3);
        let e = Event { details: Details::of_datagrams(&m, way), ..Event::plain(2, event::ESTABLISHED, 0) };
        let bytes = e.bytes(1, abi::EVENT);
        assert_eq!(bytes[24..28], 10u32.to_ne_bytes());
        assert_eq!(bytes[28..44], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]);
        assert_eq!((bytes[48], bytes[57], bytes[58]), (3, 1, 1), "GID index, global, port");
        assert_eq!((bytes[60], bytes[60 + 256]), (7, 136));
    }
}
