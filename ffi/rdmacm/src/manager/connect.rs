//! What programs want of connections: listen, connect, accept, reject, disconnect, and the attributes of queue pairs.

use super::{
    ANSWERS_WITHIN, ASKS_AGAIN, Action, ChannelId, ENDS_WITHIN, Host, INVALID, Id, MAX_BACKLOG, Manager,
    PROGRAM_ANSWERS_WITHIN, State,
};
use crate::Errno;
use crate::abi::{self, QPT_RC, QPT_XRC_RECV, QPT_XRC_SEND, UDP_Q_KEY, Writer, event, reason};
use crate::command::Connection;
use crate::event::Event;
use crate::lookup::{self, Packet};
use crate::message::{Kind, Message};
use base::Time;
use std::net::IpAddr;

/// States of queue pairs, and bits of what is set for them (`enum ibv_qp_state`, `enum ibv_qp_attr_mask`).
mod qp {
    pub(super) const INIT: u32 = 1;
    pub(super) const RTR: u32 = 2;
    pub(super) const RTS: u32 = 3;
    pub(super) const SET_INIT: u32 = 1 | 1 << 3 | 1 << 4 | 1 << 5;
    pub(super) const SET_INIT_DATAGRAM: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 6;
    /// Way, MTU, peer and its first sequence number.
    pub(super) const SET_RTR: u32 = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20;
    /// The same for reliable ones: what it answers at a time, and the RNR timer.
    pub(super) const SET_RTR_RELIABLE: u32 = SET_RTR | 1 << 15 | 1 << 17;
    pub(super) const SET_RTS: u32 = 1 | 1 << 16;
    pub(super) const SET_RTS_TARGET: u32 = SET_RTS | 1 << 9;
    pub(super) const SET_RTS_RELIABLE: u32 = SET_RTS_TARGET | 1 << 10 | 1 << 11 | 1 << 13;
    /// Remote writes, reads and atomic operations.
    pub(super) const ACCESS: u32 = 2 | 4 | 8;
}
/// IB_SIDR_REJECT: the program does not want datagrams.
const DATAGRAMS_REJECTED: u16 = 2;
/// IBV_EVENT_COMM_EST: data came before the message that says so.
const COMMUNICATION_ESTABLISHED: u32 = 4;

impl Manager {
    pub(super) fn listen(
        &mut self,
        host: &mut dyn Host,
        channel: ChannelId,
        handle: u32,
        backlog: u32,
    ) -> Result<(), Errno> {
        if !matches!(self.find(channel, handle)?.state, State::Idle | State::Bound) {
            return Err(INVALID);
        }
        self.take_port(host, channel, handle)?;
        let id = self.find(channel, handle)?;
        let (space, at) = (id.space, id.service);
        let is_taken = self.ids.values().any(|i| {
            i.state == State::Listening && i.space == space && i.service.is_some() && i.service == at
        });
        if is_taken {
            return Err(Errno(libc::EADDRINUSE));
        }
        let id = self.find(channel, handle)?;
        id.backlog = if backlog == 0 { MAX_BACKLOG } else { backlog.min(MAX_BACKLOG) };
        id.state = State::Listening;
        Ok(())
    }

    pub(super) fn connect(
        &mut self,
        now: Time,
        host: &mut dyn Host,
        channel: ChannelId,
        (handle, with): (u32, Connection),
    ) -> Result<(), Errno> {
        let nonce = host.random();
        let id = self.find(channel, handle)?;
        let kind = if id.is_datagram() { Kind::DatagramRequest } else { Kind::Request };
        if id.state != State::RouteResolved || !with.is_valid || with.private.len() > kind.max_private() {
            return Err(INVALID);
        }
        let target = id.asked_at().ok_or(INVALID)?;
        id.own = with.parameters;
        let query = Packet { kind: lookup::Kind::Query, space: id.space, port: target.port(), nonce };
        id.request = Some(Message {
            space: id.space,
            service: target.port(),
            source_port: id.source.map_or(0, |s| s.port()),
            parameters: with.parameters,
            qp_type: id.qp_type,
            private: with.private,
            ..Message::new(kind, id.wire(handle), 0)
        });
        let asking = State::Asking { query, tries: 1, refusals: 0, again: now + ASKS_AGAIN };
        self.set_state(handle, asking, Some(now + ANSWERS_WITHIN));
        self.actions.push_back(Action::Ask { id: handle, to: target, query });
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        now: Time,
        channel: ChannelId,
        (handle, uid): (u32, u64),
        with: Connection,
    ) -> Result<(), Errno> {
        let id = self.find(channel, handle)?;
        match id.state {
            State::Incoming if with.is_valid => {}
            State::Answered => {
                self.send(handle, Kind::Ready);
                self.set_state(handle, State::Established, None);
                return Ok(());
            }
            _ => return Err(INVALID),
        }
        let kind = if id.is_datagram() { Kind::DatagramReply } else { Kind::Reply };
        if with.private.len() > kind.max_private() {
            return Err(INVALID);
        }
        (id.uid, id.own) = (uid, with.parameters);
        if id.is_datagram() && id.own.q_key == 0 {
            id.own.q_key = UDP_Q_KEY;
        }
        let parameters = id.own;
        let reply =
            Message { parameters, private: with.private, ..Message::new(kind, id.wire(handle), id.peer) };
        let is_over = id.is_datagram();
        self.send_message(handle, &reply);
        if is_over {
            self.set_state(handle, State::Established, None);
        } else {
            self.set_state(handle, State::Replied, Some(now + PROGRAM_ANSWERS_WITHIN));
        }
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        channel: ChannelId,
        handle: u32,
        why: u8,
        private: Vec<u8>,
    ) -> Result<(), Errno> {
        let id = self.find(channel, handle)?;
        if !matches!(id.state, State::Incoming | State::Answered)
            || private.len() > Kind::Reject.max_private()
        {
            return Err(INVALID);
        }
        let why = if why == 0 { reason::CONSUMER } else { u16::from(why) };
        self.send_reject(handle, why, private);
        self.set_state(handle, State::Ended, None);
        Ok(())
    }

    /// Says no to a peer's request, or to its answer.
    pub(super) fn send_reject(&mut self, handle: u32, why: u16, private: Vec<u8>) {
        let Some(id) = self.ids.get(&handle) else { return };
        let (kind, reason) = match id.is_datagram() {
            // There is nothing to take back.
            true if id.state != State::Incoming => return,
            true => (Kind::DatagramReply, DATAGRAMS_REJECTED),
            false => (Kind::Reject, why),
        };
        let m = Message { reason, private, ..Message::new(kind, id.wire(handle), id.peer) };
        self.send_message(handle, &m);
    }

    pub(super) fn disconnect(&mut self, now: Time, channel: ChannelId, handle: u32) -> Result<(), Errno> {
        let id = self.find(channel, handle)?;
        match id.state {
            _ if id.is_datagram() => Err(INVALID),
            State::Replied | State::Answered | State::Established => {
                self.send(handle, Kind::Disconnect);
                self.set_state(handle, State::Disconnecting, Some(now + ENDS_WITHIN));
                Ok(())
            }
            // The peer was first, or it is over in another way.
            State::Disconnecting | State::TimeWait | State::Ended => Ok(()),
            _ => Err(INVALID),
        }
    }

    pub(super) fn notify(&mut self, channel: ChannelId, handle: u32, what: u32) -> Result<(), Errno> {
        let id = self.find(channel, handle)?;
        if what != COMMUNICATION_ESTABLISHED {
            return Err(INVALID);
        }
        if id.state == State::Replied {
            self.set_state(handle, State::Established, None);
            self.tell(Event::plain(handle, event::ESTABLISHED, 0));
        }
        Ok(())
    }

    /// `struct ib_uverbs_qp_attr` for the next state of the program's queue pair.
    pub(super) fn attributes(
        &mut self,
        host: &dyn Host,
        channel: ChannelId,
        handle: u32,
        state: u32,
    ) -> Result<Vec<u8>, Errno> {
        let id = self.find(channel, handle)?;
        let (own, peer) = id.path.ok_or(INVALID)?;
        let index = host.gid_index(own).ok_or(INVALID)?;
        let is_connected =
            matches!(id.state, State::Incoming | State::Replied | State::Answered | State::Established);
        let mut out = Writer::new(abi::QP_ATTR);
        out.u32(4, state);
        match state {
            qp::INIT if id.is_datagram() => {
                out.u32(0, qp::SET_INIT_DATAGRAM).u32(20, UDP_Q_KEY);
            }
            qp::INIT => {
                out.u32(0, qp::SET_INIT).u32(36, if is_connected { qp::ACCESS } else { 0 });
            }
            qp::RTR if is_connected && !id.is_datagram() => put_ready_to_receive(&mut out, id, (index, peer)),
            qp::RTS if is_connected && !id.is_datagram() => put_ready_to_send(&mut out, id),
            _ => return Err(INVALID),
        }
        // The only port.
        out.put(133, &[1]);
        Ok(out.0)
    }
}

fn put_ready_to_receive(out: &mut Writer, id: &Id, (index, peer): (u8, IpAddr)) {
    const MTU_4096: u32 = 5;
    /// `ah_attr.grh.traffic_class`.
    const TRAFFIC_CLASS: usize = 62;
    let is_responder = matches!(id.qp_type, QPT_RC | QPT_XRC_RECV);
    let set = if is_responder { qp::SET_RTR_RELIABLE } else { qp::SET_RTR };
    out.u32(0, set).u32(12, MTU_4096).u32(32, id.theirs.number).put(40, &abi::address_handle(peer, index));
    out.put(TRAFFIC_CLASS, &[id.type_of_service]);
    out.put(131, &[id.own.responder_resources]);
}

fn put_ready_to_send(out: &mut Writer, id: &Id) {
    /// 4.096 us times 2 to the power of this.
    const TIMEOUT: u8 = 18;
    let set = match id.qp_type {
        QPT_RC | QPT_XRC_SEND => qp::SET_RTS_RELIABLE,
        QPT_XRC_RECV => qp::SET_RTS_TARGET,
        _ => qp::SET_RTS,
    };
    out.u32(0, set).put(130, &[id.own.initiator_depth]);
    // Of the request, which both ends know.
    let of = if id.request.is_some() { &id.own } else { &id.theirs };
    out.put(134, &[id.ack_timeout.unwrap_or(TIMEOUT), of.retries, of.rnr_retries]);
}
