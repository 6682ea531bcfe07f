//! Dispatches the frames of control packets to the modules that own their state.

use super::{ConnEvent, Connection, DatagramInfo, State};
use crate::crypto::Side;
use crate::error::Violation;
use crate::streams::Streams;
use base::Time;
use wire::Frame;

impl Connection {
    pub(super) fn handle_frame(
        &mut self,
        now: Time,
        (lane, meta): (usize, DatagramInfo),
        frame: Frame<'_>,
        streams: &mut impl Streams,
    ) -> Result<(), Violation> {
        match (&self.state, &frame) {
            (_, Frame::Close { code, reason }) => {
                self.on_peer_close(now, *code, reason);
                return Ok(());
            }
            (_, Frame::CloseAck) => {
                self.on_close_ack();
                return Ok(());
            }
            (State::Open, _) => {}
            _ => return Ok(()),
        }
        match frame {
            Frame::Padding(_) | Frame::Ping | Frame::Close { .. } | Frame::CloseAck => {}
            // Placed by who reads the packet.
            Frame::Data { .. } => {}
            Frame::Feedback(f) => self.on_feedback(now, &f, streams)?,
            Frame::Floor(f) => {
                let i = self.lane_of(f.lane, "floor of a lane that does not exist")?;
                self.lanes[i].received.on_floor(&f);
            }
            Frame::RecvLimit { qpn, limit } => self.events.push_back(ConnEvent::RecvLimit(qpn, limit)),
            Frame::QpOpen(q) => self.on_qp_open(q)?,
            Frame::QpAccept { qpn, code } => self.events.push_back(ConnEvent::QpAccept(qpn, code)),
            Frame::QpError { qpn, code } => self.events.push_back(ConnEvent::QpError(qpn, code)),
            Frame::PathChallenge(data) => self.on_challenge(lane, meta, data),
            Frame::PathResponse(data) => self.on_path_response(now, &data, streams),
            Frame::HandshakeDone => {
                if self.side == Side::Server {
                    return Err(Violation::protocol("only servers confirm handshakes"));
                }
                self.handshake.confirm(self.authorised);
            }
            Frame::TokenProof(proof) => self.on_token_proof(&proof)?,
            Frame::LaneOpen(open) => self.on_lane_open(open)?,
            Frame::LaneAccept { lane, cid, code } => self.on_lane_accept(now, lane, cid, code)?,
            Frame::LaneClose { lane } => self.on_lane_close(now, lane, streams),
            Frame::Addresses(a) => self.on_addresses(a)?,
            Frame::CcPropose(p) => self.on_cc_propose(now, p)?,
            Frame::CcAnswer(a) => self.on_cc_answer(now, a)?,
            Frame::CcRuns(c) => self.on_cc_runs(now, c)?,
            Frame::Crypto { .. } | Frame::CryptoAck { .. } => {
                return Err(Violation::protocol("handshake frames in a data packet"));
            }
        }
        Ok(())
    }

    pub(super) fn on_feedback(
        &mut self,
        now: Time,
        f: &wire::Feedback,
        streams: &mut impl Streams,
    ) -> Result<(), Violation> {
        let i = self.lane_of(f.lane, "feedback about a lane that does not exist")?;
        self.stats.feedback_received += 1;
        let out = self.lanes[i].on_feedback(now, f, streams)?;
        if let Some(k) = &mut self.keys
            && k.on_acknowledged(f.lane, f.largest)
        {
            self.settle_keys_at = Some(now + self.lanes[i].rtt.probe_timeout() * 3);
        }
        self.count(now, i, out);
        self.revive(now, i);
        self.share_cap();
        Ok(())
    }

    fn lane_of(&self, id: u32, wrong: &'static str) -> Result<usize, Violation> {
        self.lanes.iter().position(|l| l.id == id).ok_or_else(|| Violation::protocol(wrong))
    }

    fn on_qp_open(&mut self, q: wire::QpOpen) -> Result<(), Violation> {
        // The client numbers its pairs evenly, the server oddly: both may open at once.
        let theirs = u16::from(self.side == Side::Client);
        if q.qpn % 2 != theirs {
            return Err(Violation::protocol("a queue pair number of the wrong side"));
        }
        if self.scheduler.contains(q.qpn) {
            // Repeated because our answer was lost or late.
            self.accept_qp(q.qpn, 0);
            return Ok(());
        }
        self.events.push_back(ConnEvent::QpOpen(q));
        Ok(())
    }
}
