//! Advertising the server's addresses, and moving a client's lanes to other addresses (RFC 9000, section 9).
//!
//! Which addresses there are, and which of them to use, is decided above.

use super::{ConnEvent, Connection, State};
use crate::config::PathDiscovery;
use crate::crypto::Side;
use crate::error::Violation;
use crate::lane::{Lane, Stage, mtu};
use crate::streams::Streams;
use base::Time;
use std::net::{IpAddr, SocketAddr};
use wire::Frame;
use wire::frame::{Addresses, MAX_ADDRESSES, is_tellable};

/// The addresses of a lane's two ends, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneAddresses {
    /// Its number.
    pub lane: u32,
    /// Where this end is, when known.
    pub local: Option<IpAddr>,
    /// Where the peer is.
    pub remote: SocketAddr,
    /// The socket by which its packets leave.
    pub socket: u16,
    /// Data can go over it.
    pub works: bool,
    /// Whether it leads there is being found out.
    pub validating: bool,
}

impl Connection {
    /// Sends a client the addresses at which this server can be reached, of which the first
    /// [`wire::frame::MAX_ADDRESSES`] are sent. The list replaces earlier ones. Nothing is sent to a client that did
    /// not ask, nor twice.
    pub fn advertise_addresses(&mut self, all: &[SocketAddr]) {
        let asked = self.side == Side::Server && self.authorised && self.peer_params.addresses;
        if !asked || !self.is_open() {
            return;
        }
        let mut list: Vec<SocketAddr> = Vec::new();
        for a in all.iter().filter(|a| is_tellable(a)).take(MAX_ADDRESSES) {
            if !list.contains(a) {
                list.push(*a);
            }
        }
        if list == self.advertised.list {
            return;
        }
        // What was said before, and has not arrived, need not arrive any more.
        let other = |f: &Frame<'static>| !matches!(f, Frame::Addresses(_));
        self.frames.retain(other);
        self.lanes.iter_mut().for_each(|l| l.lost_frames.retain(other));
        self.advertised = Addresses { sequence: self.advertised.sequence + 1, list };
        self.push_frame(Frame::Addresses(self.advertised.clone()));
    }

    /// The server says where it can be reached. Lists may overtake each other: the one with the highest number holds.
    pub(super) fn on_addresses(&mut self, a: Addresses) -> Result<(), Violation> {
        if self.side == Side::Server {
            return Err(Violation::protocol("only servers tell their addresses"));
        }
        if !self.options.discover.asks() {
            return Err(Violation::protocol("addresses were told that nobody had asked for"));
        }
        if self.advertised_by_peer.as_ref().is_none_or(|l| a.sequence > l.sequence) {
            self.advertised_by_peer = Some(a);
            self.events.push_back(ConnEvent::Addresses);
        }
        Ok(())
    }

    /// The addresses that the server has advertised; `None` before the first list.
    pub fn peer_addresses(&self) -> Option<&[SocketAddr]> {
        self.advertised_by_peer.as_ref().map(|a| &a.list[..])
    }

    /// Whether addresses of this server were sent to the peer.
    pub fn has_advertised_addresses(&self) -> bool {
        self.advertised.sequence > 0
    }

    /// Which paths are added automatically.
    pub fn discovers(&self) -> PathDiscovery {
        self.options.discover
    }

    /// The lanes that are not over.
    pub fn all_lane_addresses(&self) -> impl Iterator<Item = LaneAddresses> + '_ {
        self.lanes.iter().filter(|l| l.stage != Stage::Closed).map(|l| {
            let (remote, local) = l.target();
            let validating = matches!(l.stage, Stage::Validating | Stage::Waiting);
            let works = l.stage == Stage::Open;
            LaneAddresses { lane: l.id, local, remote, socket: l.socket, works, validating }
        })
    }

    /// Whether the local address of the first lane is known.
    pub fn has_local_address(&self) -> bool {
        self.lanes[0].local.is_some()
    }

    fn lane_index(&self, lane: u32) -> Option<usize> {
        self.lanes.iter().position(|l| l.id == lane && l.stage != Stage::Closed)
    }

    /// Moves a client's lane to this address of the server and this local one; `None` leaves the local one to the
    /// system. Outstanding data is sent over other lanes, or over this one once the peer has responded there (RFC
    /// 9000, section 9.2); before, only challenges are sent. [`ConnEvent::LaneUp`] follows.
    pub fn move_lane(
        &mut self,
        now: Time,
        lane: u32,
        to: (SocketAddr, Option<IpAddr>),
        streams: &mut impl Streams,
    ) {
        let Some(i) = self.lane_index(lane).filter(|_| self.side == Side::Client) else { return };
        // An endpoint must not migrate before the handshake is confirmed (RFC 9000, section 9): until then packets just
        // leave from where they can.
        if !matches!(self.state, State::Open) || !self.handshake.is_confirmed() {
            self.lanes[i].local = None;
            return;
        }
        let l = &mut self.lanes[i];
        l.abandon_outstanding(now, streams);
        let worked = l.stage == Stage::Open;
        l.stage = Stage::Validating;
        // Elsewhere it is only when the server has answered there: until then it may have to be looked for where it was.
        if to.0 == l.remote {
            l.local = to.1;
        }
        self.start_path_validation(now, i, to);
        if worked {
            self.events.push_back(ConnEvent::LaneDown(lane));
        }
    }

    /// Disables a lane over which nothing can be sent now: its address is gone, or has no route. Another working lane
    /// takes its outstanding data at once. The lane comes back when it receives something.
    pub fn disable_lane(&mut self, now: Time, lane: u32, streams: &mut impl Streams) {
        let Some(i) = self.lane_index(lane) else { return };
        let others = self.lanes.iter().enumerate().any(|(k, l)| k != i && l.stage == Stage::Open);
        let l = &mut self.lanes[i];
        if others && l.stage == Stage::Open {
            l.abandon_outstanding(now, streams);
            (l.stage, l.ping) = (Stage::Dead, true);
            self.events.push_back(ConnEvent::LaneDown(lane));
        }
    }

    /// A lane may have a way again: if it is dead, it is probed now and not at the next time-out.
    pub fn probe_lane(&mut self, lane: u32) {
        if let Some(i) = self.lane_index(lane)
            && self.lanes[i].stage == Stage::Dead
        {
            self.lanes[i].ping = true;
        }
    }

    /// Nobody responded at the address that a lane moved to. It stays as a dead one: the route may come back.
    pub(super) fn on_move_failed(&mut self, i: usize) {
        let l = &mut self.lanes[i];
        (l.stage, l.ping) = (Stage::Dead, true);
    }

    /// The peer has answered at another pair of addresses than the lane had: nothing that was learned of the old path
    /// holds, and what is outstanding went the old way.
    pub(super) fn on_path_replaced(&mut self, now: Time, i: usize, streams: &mut impl Streams) {
        let mtu = self.mtu_search(self.lanes[i].remote);
        let l = &mut self.lanes[i];
        l.abandon_outstanding(now, streams);
        l.mtu = mtu;
        let info = self.path_info(i);
        self.lanes[i].on_path_change(now, info);
    }

    /// The search for the packet size of a path about which nothing is known.
    pub(super) fn mtu_search(&self, remote: SocketAddr) -> mtu::MtuSearch {
        let overhead = if remote.is_ipv6() { 48 } else { 28 };
        let theirs = self.peer_params.max_datagram as u16;
        let max = self.options.max_datagram(remote.is_ipv6()).min(theirs);
        mtu::MtuSearch::new(mtu::BASE, max, overhead)
    }

    /// A challenge is answered where it came from (RFC 9000, section 8.2.2), which need not be where the lane's packets go.
    pub(super) fn on_challenge(&mut self, lane: usize, meta: super::DatagramInfo, data: [u8; 8]) {
        let l: &mut Lane = &mut self.lanes[lane];
        // Only the newest challenge is answered: a flood of them makes no queue.
        l.unreliable_frames.retain(|f| !matches!(f, Frame::PathResponse(_)));
        let (remote, local) = l.target();
        let same = remote == meta.remote && (local == meta.local || meta.local.is_none());
        if same {
            l.answer = None;
            l.unreliable_frames.push_back(Frame::PathResponse(data));
        } else {
            l.answer = Some((meta.remote, meta.local, data));
        }
    }
}

#[cfg(test)]
mod tests;
