//! Sets the differentiated-services code point of iWARP connections' packets.

use super::{StreamCommand, StreamId};
use crate::Endpoint;
use crate::app::ConnId;
use crate::flow_policy::FlowPolicy;

/// The code point of a connection, 0 to 63: the policy's, or else what was asked for.
pub(super) fn of(ruled: &FlowPolicy) -> u8 {
    ruled.choice.as_ref().and_then(|choice| choice.dscp).unwrap_or(ruled.traffic.dscp) & 0x3f
}

impl Endpoint {
    /// Sets the application's name (for rules of policies) and the code point (0 to 63) of this end's sending on an
    /// iWARP connection. `None` leaves it as it is. Takes effect at once, on all streams.
    ///
    /// # Errors
    /// In words: there is no such connection by iWARP.
    pub fn set_iwarp_qos(
        &mut self,
        conn: ConnId,
        application: Option<&str>,
        dscp: Option<u8>,
    ) -> Result<(), String> {
        let Some(ruled) = self.iwarp_state.conns.get_mut(&conn).and_then(|b| b.ruled.as_mut()) else {
            return Err("there is no such connection by iWARP".to_owned());
        };
        if let Some(name) = application {
            name.clone_into(&mut ruled.traffic.application);
        }
        ruled.traffic.dscp = dscp.map_or(ruled.traffic.dscp, |d| d & 0x3f);
        if let Some(g) = &self.policy_state {
            ruled.choice = Some(g.policy().choose(&ruled.traffic));
        }
        self.share_rate(conn);
        self.set_streams_dscp(conn);
        self.apply_policy_to_tcp(conn);
        Ok(())
    }

    /// Has all streams of a connection carry its code point, if that is another one than they were told.
    pub(crate) fn set_streams_dscp(&mut self, conn: ConnId) {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        let Some(dscp) = b.ruled.as_ref().map(of).filter(|d| *d != b.marked) else { return };
        b.marked = dscp;
        for (stream, _) in
            b.streams.iter().flatten().filter(|(s, _)| self.iwarp_state.streams.contains_key(s))
        {
            *b.unheard.entry(*stream).or_default() += 1;
            self.iwarp_state.orders.push_back(StreamCommand::SetDscp { stream: *stream, dscp });
        }
        self.app_due = true;
    }

    /// Has a stream that a client has made carry its connection's code point.
    pub(super) fn set_stream_dscp(&mut self, conn: ConnId, stream: StreamId) {
        let marked = self.iwarp_state.conns.get(&conn).map(|b| b.marked);
        if let Some(dscp) = marked.filter(|d| *d != 0) {
            self.iwarp_state.orders.push_back(StreamCommand::SetDscp { stream, dscp });
        }
    }
}
