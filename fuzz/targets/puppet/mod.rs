//! A peer in the fuzzer's hand during set-up: it has TLS of its own, and says of it what the fuzzer wants.

use std::net::SocketAddr;
use transport::connection::RETRY_PN;
use transport::crypto::{
    ClientAuth, ClientSetup, Credentials, Handshake, KeyPair, Level, ServerSetup, ServerTrust, Side,
};
use wire::packet::{LONG_TAG, MIN_INITIAL, put_long, put_version_negotiation};
use wire::{Clear, Frame, LongHeader, LongType, Params, Put, Reader};

/// Bytes of a handshake message in one packet.
const CHUNK: usize = 1_100;
/// Bytes of one level that are kept of what the victim says; TLS takes 128 KiB.
const MAX_HEARD: usize = 256 * 1024;
const LEVELS: [Level; 2] = [Level::Initial, Level::Handshake];

/// One attempt of the puppet's to set up a connection with the victim.
pub struct Puppet {
    side: Side,
    pub addr: SocketAddr,
    params: Params,
    /// What stands in place of the parameters, if anything does.
    raw_params: Option<Vec<u8>>,
    credentials: Credentials,
    handshake: Option<Handshake>,
    initial: KeyPair,
    later: Option<KeyPair>,
    /// The victim's identifier, once it is known; until then the client's invention.
    pub dcid: Vec<u8>,
    pub scid: Vec<u8>,
    original_dcid: Vec<u8>,
    pub token: Vec<u8>,
    /// What TLS wants to say, from the first byte on, and how far it was said.
    pub out: [Vec<u8>; 2],
    said: [usize; 2],
    /// What the victim said.
    heard: [Vec<u8>; 2],
    pub pn: [u32; 2],
    /// A Retry's token came.
    retried: bool,
    /// The victim has proof that the puppet is at its address, or may have.
    pub proven: bool,
}

impl Puppet {
    /// A client that speaks first, to `dcid`; its own identifier is `scid`.
    pub fn client(
        addr: SocketAddr,
        credentials: Credentials,
        mut params: Params,
        raw_params: Option<Vec<u8>>,
        (dcid, scid): (Vec<u8>, Vec<u8>),
    ) -> Puppet {
        params.scid.clone_from(&scid);
        let mut puppet = Puppet::new(Side::Client, addr, credentials, params, raw_params, (dcid, scid));
        puppet.start();
        puppet
    }

    /// A server that answers, with the identifier `scid`, the first packet it sees.
    pub fn server(
        addr: SocketAddr,
        credentials: Credentials,
        mut params: Params,
        raw_params: Option<Vec<u8>>,
        scid: Vec<u8>,
    ) -> Puppet {
        params.scid.clone_from(&scid);
        Puppet::new(Side::Server, addr, credentials, params, raw_params, (Vec::new(), scid))
    }

    fn new(
        side: Side,
        addr: SocketAddr,
        credentials: Credentials,
        params: Params,
        raw_params: Option<Vec<u8>>,
        (dcid, scid): (Vec<u8>, Vec<u8>),
    ) -> Puppet {
        Puppet {
            side,
            addr,
            params,
            raw_params,
            credentials,
            handshake: None,
            initial: KeyPair::initial(&dcid, side),
            later: None,
            original_dcid: dcid.clone(),
            dcid,
            scid,
            token: Vec::new(),
            out: Default::default(),
            said: [0; 2],
            heard: Default::default(),
            pn: [0; 2],
            retried: false,
            proven: false,
        }
    }

    fn start(&mut self) {
        let mut params = Vec::new();
        match &self.raw_params {
            Some(raw) => params.clone_from(raw),
            None => self.params.put(&mut params),
        }
        let made = match self.side {
            Side::Client => ClientSetup::new(&self.credentials, &ServerTrust::FirstUse)
                .and_then(|s| Handshake::client(&s, "server.example", params, 0)),
            Side::Server => ServerSetup::new(&self.credentials, &ClientAuth::AnyKey)
                .and_then(|s| Handshake::server(&s, params, 0)),
        };
        self.handshake = Some(made.expect("the puppet's settings are sound"));
        self.pull();
    }

    fn pull(&mut self) {
        let Some(handshake) = &mut self.handshake else { return };
        for level in LEVELS {
            handshake.write(level, &mut self.out[level as usize]);
        }
        if let Some(keys) = handshake.take_keys() {
            self.later = Some(keys);
        }
    }

    /// Takes in what the victim sends, if it is a set-up packet for this puppet.
    pub fn hear(&mut self, datagram: &[u8]) {
        let Ok(Clear::Long(h)) = Clear::parse(datagram) else { return };
        if self.side == Side::Client && h.dcid != self.scid {
            return;
        }
        if self.side == Side::Server && self.handshake.is_none() {
            // A client's first packet.
            self.original_dcid = h.dcid.to_vec();
            self.initial = KeyPair::initial(h.dcid, Side::Server);
            self.dcid = h.scid.to_vec();
            self.params.original_dcid = Some(h.dcid.to_vec());
            self.start();
        }
        if h.kind == LongType::Retry {
            self.on_retry(&h);
            return;
        }
        let level = if h.kind == LongType::Initial { Level::Initial } else { Level::Handshake };
        let (head, rest) = datagram.split_at(h.clear);
        let (tag, sealed) = rest.split_at(LONG_TAG);
        let keys = if level == Level::Initial { Some(&mut self.initial) } else { self.later.as_mut() };
        let Some(keys) = keys else { return };
        let mut body = sealed.to_vec();
        if keys.open(false, 0, h.pn.into(), head, tag, &mut body).is_err() {
            return;
        }
        if self.side == Side::Client {
            self.dcid = h.scid.to_vec();
        }
        let mut r = Reader::new(&body);
        while !r.is_empty() {
            match Frame::parse(&mut r).expect("the victim writes sound frames") {
                Frame::Crypto { offset, data } => self.on_crypto(level, offset, data),
                Frame::Padding(_) | Frame::Ping | Frame::CryptoAck { .. } | Frame::Close { .. } => {}
                other => panic!("{other:?} in a set-up packet of the victim's"),
            }
        }
    }

    fn on_retry(&mut self, h: &LongHeader<'_>) {
        if self.side == Side::Client && self.token.is_empty() {
            self.token = h.token.to_vec();
            self.retried = true;
            self.dcid = h.scid.to_vec();
            self.initial = KeyPair::initial(h.scid, Side::Client);
            self.said[0] = 0;
        }
    }

    fn on_crypto(&mut self, level: Level, offset: u64, data: &[u8]) {
        let heard = &mut self.heard[level as usize];
        let known = (heard.len() as u64).checked_sub(offset).and_then(|n| data.get(n as usize..));
        let Some(new) = known.filter(|new| !new.is_empty() && heard.len() < MAX_HEARD) else { return };
        heard.extend_from_slice(new);
        if let Some(handshake) = &mut self.handshake {
            // What the victim makes of a changed hello may fail here.
            let _ = handshake.read(level, new);
        }
        self.pull();
    }

    /// The next packet of an honest peer's: what TLS wants to say and was not said, and what was heard.
    pub fn next_honest(&mut self) -> Option<Vec<u8>> {
        let level = LEVELS.into_iter().find(|l| {
            let ready = *l == Level::Initial || self.later.is_some();
            ready && self.said[*l as usize] < self.out[*l as usize].len()
        })?;
        let i = level as usize;
        let (from, to) = (self.said[i], self.out[i].len().min(self.said[i] + CHUNK));
        self.said[i] = to;
        let mut body = Vec::new();
        Frame::CryptoAck { offset: self.heard[i].len() as u64 }.put(&mut body);
        Frame::Crypto { offset: from as u64, data: &self.out[i][from..to] }.put(&mut body);
        Some(self.seal(level, body))
    }

    /// Says everything again from the first byte on.
    pub fn repeat(&mut self) {
        self.said = [0; 2];
    }

    /// A packet that authenticates, whatever is in it. Without Handshake keys it is an Initial one.
    pub fn seal(&mut self, level: Level, mut body: Vec<u8>) -> Vec<u8> {
        let level = if self.later.is_some() { level } else { Level::Initial };
        let kind = if level == Level::Initial { LongType::Initial } else { LongType::Handshake };
        let pn = self.pn[level as usize];
        self.pn[level as usize] = pn.wrapping_add(1);
        let mut out = Vec::new();
        put_long(&mut out, kind, &self.dcid, &self.scid, &self.token, pn);
        body.resize(body.len().max(MIN_INITIAL.saturating_sub(out.len() + LONG_TAG)), 0);
        let keys = if level == Level::Initial { Some(&mut self.initial) } else { self.later.as_mut() };
        let keys = keys.expect("as the level was chosen");
        let tag = keys.seal(0, pn.into(), &out, &mut body).expect("sizes are small");
        self.proven |= level == Level::Handshake || self.retried;
        out.put(&tag);
        out.put(&body);
        out
    }

    /// A Retry with this token, of the kind that only who saw the client's first packet can make.
    pub fn retry(&mut self, token: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put_long(&mut out, LongType::Retry, &self.dcid, &self.scid, token, 0);
        let tag = KeyPair::initial(&self.original_dcid, Side::Server).seal(0, RETRY_PN, &out, &mut []);
        out.put(&tag.expect("sizes are small"));
        // From here on the client's Initial packets have other keys, and name this identifier.
        self.initial = KeyPair::initial(&self.scid, Side::Server);
        self.params.retry_scid = Some(self.scid.clone());
        self.handshake = None;
        self.out = Default::default();
        self.said = [0; 2];
        self.heard = Default::default();
        self.start();
        out
    }

    /// What a server says that speaks other versions.
    pub fn versions(&self, versions: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        put_version_negotiation(&mut out, &self.dcid, &self.scid, versions);
        out
    }

    /// Whether the puppet's own TLS is satisfied.
    pub fn is_complete(&self) -> bool {
        self.handshake.as_ref().is_some_and(Handshake::is_complete)
    }
}
