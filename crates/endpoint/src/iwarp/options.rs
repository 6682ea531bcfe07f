//! Options of iWARP clients and servers.

/// A client's connection.
#[derive(Clone, Debug)]
pub struct Iwarp {
    /// Whether TLS goes below MPA: no RFC has that, so only Longhaul speaks it. Without it everything is in the clear, and
    /// nobody knows who the peer is.
    pub tls: bool,
    /// Markers, CRCs, depths, times. The segment size is the driver's to find out.
    pub settings: ::iwarp::Config,
    /// Congestion control by the system's name for it (`TCP_CONGESTION`), or several in order of preference, divided by commas:
    /// the first that the system has. `None` takes the system's choice.
    pub congestion: Option<String>,
    /// For the peer's application.
    pub private_data: Vec<u8>,
    /// The peer is Longhaul, and may be asked for several streams. Else there is one, and its private data is
    /// [`Iwarp::private_data`] alone.
    pub to_longhaul: bool,
    /// The connection is one stream, of this queue pair of [`verbs::Kind::Ordered`] that the application created and moved to
    /// [`verbs::QpState::Rtr`]; the peer's application is asked for its own ([`crate::Event::StreamRequested`]). With a peer that is
    /// Longhaul.
    pub own_qp: Option<verbs::QpId>,
}

impl Default for Iwarp {
    fn default() -> Iwarp {
        Iwarp {
            tls: false,
            settings: settings(),
            congestion: None,
            private_data: Vec::new(),
            to_longhaul: true,
            own_qp: None,
        }
    }
}

/// The answering side.
#[derive(Clone, Debug)]
pub struct IwarpServer {
    /// Answers clients without TLS, who show nothing of themselves: whoever reaches the port is let in.
    pub plain: bool,
    /// Answers clients with TLS.
    pub tls: bool,
    /// Markers, CRCs, depths, times.
    pub settings: ::iwarp::Config,
    /// Streams that are not established at most, 1 at least; for a further one the oldest is reset.
    pub max_half_open: usize,
}

impl Default for IwarpServer {
    fn default() -> IwarpServer {
        IwarpServer { plain: false, tls: true, settings: settings(), max_half_open: 1_024 }
    }
}

/// How long a message may wait for its receive: as long as a peer may be silent.
const RECEIVE_WAIT: base::Span = base::Span::from_secs(30);

fn settings() -> ::iwarp::Config {
    ::iwarp::Config {
        peer_to_peer: true,
        receive_wait: RECEIVE_WAIT,
        ird: crate::conn::READS as u16,
        ord: crate::conn::READS as u16,
        ..::iwarp::Config::default()
    }
}
