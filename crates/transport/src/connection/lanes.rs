//! Opens, validates, gives up and closes lanes beside the first one.

use super::{ConnEvent, Connection, State};
use crate::config::{AdditionalPath, LaneChoice};
use crate::crypto::{Side, TrainOpener};
use crate::error::Violation;
use crate::lane::path_validation::{MAX_CHALLENGES, PathValidation};
use crate::lane::{Lane, Stage};
use crate::streams::Streams;
use base::{Rate, Span, Time};
use cc::engine::Flow;
use std::net::{IpAddr, SocketAddr};
use wire::{Cid, Frame, LaneOpen};

/// Lanes of a connection over its life at most: a number is never used twice, since nonces are made of it.
pub const MAX_LANES: usize = wire::frame::MAX_LANES as usize;
/// Code of a lane that the server will not have.
pub const LANE_REFUSED: u64 = 1;

/// A lane that was heard within this time is not dead: in one machine, probe time-outs are shorter than the time for which
/// a thread may wait for a processor.
const MIN_SILENCE: Span = Span::from_millis(10);

/// A lane that this end has requested, or must answer a request for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingLane {
    open: LaneOpen,
    /// Where it leads, and by which socket, of a client.
    to: Option<(SocketAddr, Option<IpAddr>)>,
    socket: u16,
}

/// A lane that has been dead for so long is worth a word to the user.
const WORTH_A_WORD: Span = Span::from_secs(1);

impl Connection {
    /// Where the peer is, if it is at one address only as far as is known.
    pub fn only_remote(&self) -> Option<SocketAddr> {
        let remote = self.lanes[0].remote;
        let settled = |l: &Lane| l.stage == Stage::Closed || l.remote == remote && l.path.is_none();
        (self.is_open() && self.lanes.iter().all(settled)).then_some(remote)
    }

    /// Asks the server for a further lane. Packets to this end on it carry
    /// `cid`. [`ConnEvent::LaneUp`] follows when data can go over it, [`ConnEvent::LaneDown`] when it leads nowhere.
    ///
    /// # Errors
    /// In words: not open, not the client, or too many lanes.
    pub fn open_lane(
        &mut self,
        cid: Cid,
        AdditionalPath { local, remote, backup }: AdditionalPath,
        socket: u16,
    ) -> Result<u32, String> {
        if !self.is_open() || self.side != Side::Client {
            return Err("only the client of an open connection adds paths".to_owned());
        }
        let most = (self.peer_params.max_lanes as usize).min(MAX_LANES);
        let lane = 1 + self.lanes_ever;
        if lane as usize >= most {
            return Err(format!("the connection has had {most} lanes, and the peer allows no more"));
        }
        self.lanes_ever = lane;
        self.cids.push(cid);
        let open = LaneOpen { lane, cid: cid.0, backup };
        self.pending_lanes.push(PendingLane { open, to: Some((remote, local)), socket });
        self.push_frame(Frame::LaneOpen(open));
        Ok(lane)
    }

    /// Lanes that a client asked for and at which nobody has answered yet: number, where it leads, and from where.
    pub fn unanswered_lanes(&self) -> Vec<(u32, SocketAddr, Option<IpAddr>)> {
        let asked = self.pending_lanes.iter().filter_map(|w| w.to.map(|(to, from)| (w.open.lane, to, from)));
        let checked = self.lanes.iter().filter(|l| l.stage == Stage::Validating && !l.has_worked);
        let checked = checked.map(|l| (l.id, l.target().0, l.target().1));
        asked.chain(checked).collect()
    }

    /// Where a lane leads, and from where.
    pub fn lane_addresses(&self, lane: u32) -> Option<(SocketAddr, Option<IpAddr>)> {
        self.lanes.iter().find(|l| l.id == lane).map(Lane::target)
    }

    /// Paths that this end was told to add once it is connected.
    pub fn further_paths(&self) -> &[AdditionalPath] {
        &self.options.paths
    }

    /// The client asks for a lane: the layer above gives it an identifier, or not.
    pub(super) fn on_lane_open(&mut self, open: LaneOpen) -> Result<(), Violation> {
        if self.side != Side::Server {
            return Err(Violation::protocol("only clients open lanes"));
        }
        if let Some(l) = self.lanes.iter().find(|l| l.id == open.lane) {
            if l.remote_cid != Cid(open.cid) {
                return Err(Violation::protocol("a lane's number was used twice"));
            }
            // Repeated because our answer was late or lost.
            let frame = Frame::LaneAccept { lane: l.id, cid: l.local_cid.0, code: 0 };
            self.push_frame(frame);
        } else if self.pending_lanes.iter().all(|w| w.open.lane != open.lane) {
            self.pending_lanes.push(PendingLane { open, to: None, socket: 0 });
            self.events.push_back(ConnEvent::LaneWanted(open.lane));
        }
        Ok(())
    }

    /// Answers [`ConnEvent::LaneWanted`]: packets to this end on it carry `cid` and arrive at that socket; `None` refuses
    /// it.
    pub fn accept_lane(&mut self, lane: u32, at: Option<(Cid, u16)>) {
        let cid = at.map(|(cid, _)| cid);
        let Some(i) = self.pending_lanes.iter().position(|w| w.open.lane == lane) else { return };
        let open = self.pending_lanes.swap_remove(i).open;
        self.cids.extend(cid);
        let made = cid.and_then(|cid| {
            // Where the client is on it, its first packet tells.
            let first = (self.lanes[0].remote, self.lanes[0].local);
            self.add_lane(open, (cid, Cid(open.cid)), first, Stage::Waiting, at.map_or(0, |a| a.1))
                .ok()
                .map(|()| cid)
        });
        let (cid, code) = made.map_or((0, LANE_REFUSED), |c| (c.0, 0));
        self.push_frame(Frame::LaneAccept { lane, cid, code });
    }

    /// The server agrees: now see whether the path leads there.
    pub(super) fn on_lane_accept(
        &mut self,
        now: Time,
        lane: u32,
        cid: u32,
        code: u64,
    ) -> Result<(), Violation> {
        if self.side != Side::Client {
            return Err(Violation::protocol("only servers accept lanes"));
        }
        // Of an answer that comes twice, the first counts.
        let Some(i) = self.pending_lanes.iter().position(|w| w.open.lane == lane) else { return Ok(()) };
        let PendingLane { open, to, socket } = self.pending_lanes.swap_remove(i);
        let made = to.filter(|_| code == 0).and_then(|to| {
            self.add_lane(open, (Cid(open.cid), Cid(cid)), to, Stage::Validating, socket).ok()?;
            Some(to)
        });
        match made {
            Some(to) => {
                let i = self.lanes.len() - 1;
                self.start_path_validation(now, i, to);
            }
            None => self.events.push_back(ConnEvent::LaneDown(lane)),
        }
        Ok(())
    }

    fn add_lane(
        &mut self,
        open: LaneOpen,
        cids: (Cid, Cid),
        (remote, local): (SocketAddr, Option<IpAddr>),
        stage: Stage,
        socket: u16,
    ) -> Result<(), String> {
        let search = self.mtu_search(remote);
        let info = cc::PathInfo { handshake_rtt: None, remembered: None, ..self.path_info(0) };
        let mut flows = self
            .flow_setups
            .iter()
            .map(|s| s.instance(&info, self.rng.fork()))
            .map(|a| a.map(|a| Flow::new(a, self.rate_cap)))
            .collect::<Result<Vec<_>, String>>()?;
        let rest = flows.split_off(1);
        let Some(first) = flows.pop() else { return Ok(()) };
        let mut lane = Lane::new(open.lane, cids, remote, search, first, &mut self.rng);
        lane.flows.extend(rest);
        (lane.local, lane.stage, lane.backup, lane.socket) = (local, stage, open.backup, socket);
        self.lanes.push(lane);
        // A new lane's flows keep the caps of those that they are parts of.
        self.share_cap();
        self.renew_openers();
        Ok(())
    }

    /// Whether a socket took nothing more when something was to be sent.
    pub fn is_blocked(&self) -> bool {
        self.lanes.iter().any(|l| l.blocked)
    }

    /// Lanes whose packets arrive at other sockets than the first: number, identifier and socket of each.
    pub fn lanes_on_other_sockets(&self) -> impl Iterator<Item = (u32, Cid, u16)> + '_ {
        let apart = |l: &&Lane| l.socket > 0 && l.stage != Stage::Closed;
        self.lanes.iter().filter(apart).map(|l| (l.id, l.local_cid, l.socket))
    }

    /// An opener for packets of a lane on another thread, under the current key. [`ConnEvent::OpenersChanged`] tells
    /// when the key has changed.
    pub fn train_opener(&self, lane: u32) -> Option<TrainOpener> {
        self.keys.as_ref().map(|k| k.open_keys().train_opener(lane))
    }

    /// Announces that openers are out of date.
    pub(super) fn renew_openers(&mut self) {
        if self.lanes_on_other_sockets().next().is_some() {
            self.events.push_back(ConnEvent::OpenersChanged);
        }
    }

    /// Sends challenges to where the peer may be on a lane.
    pub(super) fn start_path_validation(&mut self, now: Time, lane: usize, to: (SocketAddr, Option<IpAddr>)) {
        let mut challenges = [[0; 8]; MAX_CHALLENGES];
        challenges.iter_mut().for_each(|c| self.rng.fill(c));
        // Of a new lane nothing is known: the first one's round trip is the best guess.
        let known = if self.lanes[lane].rtt.is_known() { lane } else { 0 };
        let gap = self.lanes[known].rtt.probe_timeout();
        self.lanes[lane].path = Some(PathValidation::new(now, to, challenges, gap));
    }

    /// The answer to a challenge: the address is real.
    pub(super) fn on_path_response(&mut self, now: Time, data: &[u8; 8], streams: &mut impl Streams) {
        let answered = |(i, l): (usize, &Lane)| Some((i, l.path.as_ref()?.answered(data)?));
        let Some((i, asked)) = self.lanes.iter().enumerate().find_map(answered) else { return };
        let Some(p) = self.lanes[i].path.take() else { return };
        let rtt = now.since(asked);
        let lane = &mut self.lanes[i];
        let old = lane.remote;
        (lane.remote, lane.local) = (p.remote, p.local);
        match lane.stage {
            Stage::Waiting | Stage::Validating => {
                if lane.has_worked {
                    self.on_path_replaced(now, i, streams);
                }
                let lane = &mut self.lanes[i];
                lane.rtt.update(rtt, Span::ZERO);
                (lane.stage, lane.has_worked) = (Stage::Open, true);
                let id = lane.id;
                let info = self.path_info(i);
                self.lanes[i].flows.iter_mut().for_each(|f| f.on_path_change(now, info));
                self.events.push_back(ConnEvent::LaneUp(id));
                if i == 0 && old != p.remote {
                    self.events.push_back(ConnEvent::PathChanged(p.remote));
                }
                if self.lanes.len() > 1 {
                    self.begin_coupling(now, i);
                }
                self.share_cap();
            }
            Stage::Open | Stage::Dead | Stage::Closed => {
                // Another port at the same address is a NAT's rebinding: the path is the same (RFC 9000, section 9.4).
                if old.ip() != p.remote.ip() {
                    self.on_path_replaced(now, i, streams);
                    self.lanes[i].rtt.update(rtt, Span::ZERO);
                    self.revive(now, i);
                }
                if i == 0 {
                    self.events.push_back(ConnEvent::PathChanged(p.remote));
                }
            }
        }
    }

    /// Gives up lanes whose address does not respond.
    pub(super) fn on_path_validation_timeout(&mut self, now: Time) {
        for i in 0..self.lanes.len() {
            if self.lanes[i].path.as_ref().is_none_or(|p| !p.is_over(now)) {
                continue;
            }
            self.lanes[i].path = None;
            if self.lanes[i].stage == Stage::Validating && self.lanes[i].has_worked {
                self.on_move_failed(i);
            } else if self.lanes[i].stage == Stage::Validating {
                let lane = self.lanes[i].id;
                self.lanes[i].stage = Stage::Closed;
                let why = "nobody answers there (a firewall may drop its packets): data goes by the others";
                self.events.push_back(ConnEvent::LaneTrouble(lane, why));
                self.events.push_back(ConnEvent::LaneDown(lane));
                self.push_frame(Frame::LaneClose { lane });
            }
        }
    }

    /// Takes a lane out of use; what is outstanding on it goes over the others. The first one stays.
    pub fn close_lane(&mut self, now: Time, lane: u32, streams: &mut impl Streams) {
        if lane > 0 && self.retire(now, lane, streams) {
            self.push_frame(Frame::LaneClose { lane });
        }
    }

    /// The peer does not use the lane any more.
    pub(super) fn on_lane_close(&mut self, now: Time, lane: u32, streams: &mut impl Streams) {
        self.pending_lanes.retain(|w| w.open.lane != lane);
        self.retire(now, lane, streams);
    }

    fn retire(&mut self, now: Time, lane: u32, streams: &mut impl Streams) -> bool {
        let Some(l) = self.lanes.iter_mut().find(|l| l.id == lane && l.stage != Stage::Closed) else {
            return false;
        };
        l.abandon_outstanding(now, streams);
        (l.stage, l.path) = (Stage::Closed, None);
        self.events.push_back(ConnEvent::LaneDown(lane));
        true
    }

    /// Marks a lane as dead after two probe time-outs in silence while another one works: outstanding data moves
    /// there. The lane is probed on, and comes back when it answers.
    pub(super) fn mark_dead_if_silent(&mut self, now: Time, i: usize, streams: &mut impl Streams) {
        let others = self.lanes.iter().enumerate().any(|(k, l)| k != i && l.stage == Stage::Open);
        let l = &mut self.lanes[i];
        let silent = l.silent_since().map_or(Span::ZERO, |t| now.since(t));
        if !others || l.stage != Stage::Open || l.pto_count() < 2 || silent < MIN_SILENCE {
            return;
        }
        l.abandon_outstanding(now, streams);
        l.stage = Stage::Dead;
        l.ping = true;
        l.dead_notice_at = now + (WORTH_A_WORD - silent);
        let id = l.id;
        self.events.push_back(ConnEvent::LaneDown(id));
    }

    /// Reports lanes that stay dead, once each; a lane that is silent for a moment is not reported, since hosts are
    /// busy at times.
    pub(super) fn report_dead_lanes(&mut self, now: Time) {
        for l in self.lanes.iter_mut().filter(|l| l.dead_notice_due().is_some_and(|t| t <= now)) {
            l.dead_reported = true;
            let why =
                "nothing comes back any more: data goes by the others, and it is tried again now and then";
            self.events.push_back(ConnEvent::LaneTrouble(l.id, why));
        }
    }

    /// Something was acknowledged on a lane.
    pub(super) fn revive(&mut self, now: Time, i: usize) {
        let l = &mut self.lanes[i];
        if l.stage == Stage::Dead && l.pto_count() == 0 {
            l.stage = Stage::Open;
            let id = l.id;
            self.events.push_back(ConnEvent::LaneUp(id));
            // It finds its rate anew before it is compared with others.
            if self.lanes.len() > 1 {
                self.begin_coupling(now, i);
            }
        }
    }

    /// The lane for what belongs to no lane: of those that work the one with the shortest round trip.
    pub(super) fn main_lane(&self) -> usize {
        if self.lanes.len() == 1 {
            return 0;
        }
        let open = |(_, l): &(usize, &Lane)| l.stage == Stage::Open;
        let nearest = self.lanes.iter().enumerate().filter(open).min_by_key(|(_, l)| l.rtt.smoothed());
        nearest.map_or(0, |(i, _)| i)
    }

    /// Whether data may go over a lane: it works, and is no backup, or nothing but backups works.
    pub(super) fn carries_data(&self, i: usize) -> bool {
        let l = &self.lanes[i];
        // A connection's only lane is never dead.
        let works = |l: &Lane| l.stage == Stage::Open;
        if !matches!(self.state, State::Open) || !works(l) {
            return false;
        }
        if self.options.lane_choice == LaneChoice::Backup {
            return i == self.main_lane();
        }
        let goes = |l: &Lane| works(l) && !l.backup && !self.is_spare(l) && !l.hold.is_held();
        goes(l) || !self.lanes.iter().any(goes)
    }

    /// Makes lanes of these sockets (a bit each) carry data only while no other lane does, because no processor is
    /// free for their work. Each end decides for its own sending; the lanes stay open and receive.
    pub fn set_spare_sockets(&mut self, spare: u64) {
        let before = core::mem::replace(&mut self.spare, spare);
        if before == spare {
            return;
        }
        for l in self.lanes.iter_mut().filter(|l| has(before, l.socket) != has(spare, l.socket)) {
            // What it delivers around this moment is not what the path would.
            l.flows.iter_mut().for_each(Flow::mark_app_limited);
        }
        self.share_cap();
    }

    /// Whether nobody is there to do a lane's work beside that of others.
    pub(super) fn is_spare(&self, l: &Lane) -> bool {
        has(self.spare, l.socket)
    }

    /// Whether pending data would arrive sooner over lanes with shorter round trips: the end of a message does not
    /// wait for a slow path (as in ECF, the scheduler of Lim et al., "ECF: An MPTCP Path Scheduler to Manage
    /// Heterogeneous Paths", CoNEXT 2017).
    pub(super) fn is_faster_elsewhere(
        &self,
        now: Time,
        lane: usize,
        flow: usize,
        streams: &impl Streams,
    ) -> bool {
        if self.lanes.len() == 1 {
            return false;
        }
        let one_way = |l: &Lane| l.rtt.smoothed() / 2;
        let here = one_way(&self.lanes[lane]);
        let faster = |k: usize| {
            let l = &self.lanes[k];
            let sooner = one_way(l) < here && !l.blocked && l.sent.has_room();
            let packet = u64::from(l.mtu.current()) + u64::from(l.overhead());
            let wait =
                if sooner && self.carries_data(k) { l.flows[flow].wait(now, packet)? } else { return None };
            Some((wait + one_way(l), l.flows[flow].decision().rate))
        };
        let mut faster = (0..self.lanes.len()).filter_map(faster).peekable();
        let Some(qpn) = self.scheduler.current(flow as u8).filter(|_| faster.peek().is_some()) else {
            return false;
        };
        let (message, all) = streams.waiting(qpn);
        let waits = match self.options.lane_choice {
            LaneChoice::Latency => message,
            // Behind it come others, which nobody counts.
            _ if self.scheduler.has_several(flow as u8) => return false,
            _ => all,
        };
        // Of all faster lanes together, and of the best alone.
        let (mut rate, mut last, mut best) = (Rate::ZERO, Span::ZERO, Span::MAX);
        for (arrives, r) in faster {
            rate = Rate::from_bytes_per_sec(rate.bytes_per_sec().saturating_add(r.bytes_per_sec()));
            last = last.max(arrives);
            best = best.min(arrives + r.time_for(waits));
        }
        best.min(last + rate.time_for(waits)) <= here
    }

    /// Identifiers of packets for this end, of all lanes that were ever asked for.
    pub fn local_cids(&self) -> impl Iterator<Item = Cid> + '_ {
        core::iter::once(self.local_cid()).chain(self.cids.iter().copied())
    }
}

/// Whether a set of sockets, a bit each, has this one.
fn has(sockets: u64, socket: u16) -> bool {
    sockets.checked_shr(socket.into()).is_some_and(|s| s & 1 == 1)
}

#[cfg(test)]
pub(super) mod tests;
