//! Congestion control as two ends speak of it: what each offers and preferences, and changes while a connection lasts.

use crate::codec::{Put, Reader, WireError, varint_len};
use crate::frame::MAX_CC_SPEC;

/// Longest name of an algorithm, in bytes.
pub const MAX_CC_NAME: usize = 32;
/// Longest text of parameters, in bytes: with the longest name and a colon it is a specification of [`MAX_CC_SPEC`].
pub const MAX_CC_PARAMS: usize = MAX_CC_SPEC - MAX_CC_NAME - 1;
/// Algorithms that one end offers at most.
pub const MAX_CC_OFFERS: usize = 32;
/// Algorithms that one end prefers or refuses at most.
pub const MAX_CC_PREFERENCES: usize = 32;

/// Signals that an algorithm needs of the receiver, and that a receiver gives, a bit each.
pub mod signal {
    /// How many packets arrived with a congestion mark.
    pub const MARKS: u64 = 1;
    /// The same of packets that take part in L4S (RFC 9331).
    pub const L4S: u64 = 2;
    /// What the hops of the path wrote into packets.
    pub const TELEMETRY: u64 = 4;
}

/// An algorithm that a sender can use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CcOffer {
    /// Lower-case letters, digits, `-`, `_` and `+`, 1 to [`MAX_CC_NAME`].
    pub name: String,
    /// Of the algorithm with its parameters: two ends mean the same by a name when their versions are equal. Not 0.
    pub version: u32,
    /// Bits of [`signal`], also such as this program does not know.
    pub needs: u64,
    /// `key=value,key=value`, printable ASCII, at most [`MAX_CC_PARAMS`]; empty: all defaults.
    pub params: String,
}

impl CcOffer {
    /// The specification, `name` or `name:params`.
    pub fn spec(&self) -> String {
        if self.params.is_empty() { self.name.clone() } else { format!("{}:{}", self.name, self.params) }
    }

    fn parse(r: &mut Reader<'_>) -> Result<CcOffer, WireError> {
        let name = name(r)?;
        let version = r.u32("version of congestion control")?;
        if version == 0 {
            return Err(WireError::Invalid("version of congestion control"));
        }
        let needs = r.varint("needs of congestion control")?;
        Ok(CcOffer { name, version, needs, params: params(r)? })
    }

    fn encoded_len(&self) -> usize {
        string_len(&self.name) + 4 + varint_len(self.needs) + string_len(&self.params)
    }

    fn put(&self, out: &mut impl Put) {
        out.put_string(self.name.as_bytes());
        out.put_u32(self.version);
        out.put_varint(self.needs);
        out.put_string(self.params.as_bytes());
    }
}

/// What a receiver says of an algorithm that the peer may send with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CcPreference {
    /// It must not be used, instead of: it is preferred.
    pub refused: bool,
    /// Its name.
    pub name: String,
    /// Its version; 0: any.
    pub version: u32,
    /// The parameters preferred, of that version; empty: the sender's own. None of a refusal.
    pub params: String,
}

impl CcPreference {
    /// Whether it is about this offer.
    pub fn is_about(&self, o: &CcOffer) -> bool {
        self.name == o.name && (self.version == 0 || self.version == o.version)
    }

    fn parse(r: &mut Reader<'_>) -> Result<CcPreference, WireError> {
        let refused = match r.u8("kind of preference")? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Invalid("kind of preference")),
        };
        let name = name(r)?;
        let version = r.u32("version of congestion control")?;
        let params = params(r)?;
        // Parameters mean something for one version only.
        if !params.is_empty() && (refused || version == 0) {
            return Err(WireError::Invalid("parameters preferred"));
        }
        Ok(CcPreference { refused, name, version, params })
    }

    fn put(&self, out: &mut impl Put) {
        out.put_u8(u8::from(self.refused));
        out.put_string(self.name.as_bytes());
        out.put_u32(self.version);
        out.put_string(self.params.as_bytes());
    }
}

/// One end's terms for the congestion control of both directions, from its transport parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CcTerms {
    /// For what it sends: its own order goes before the peer's preferences.
    pub prefer_own: bool,
    /// For what it receives: nothing but what it preferences.
    pub only: bool,
    /// The signals that it gives to a sender: bits of [`signal`].
    pub echoes: u64,
    /// What it can send with, best first: 1 to [`MAX_CC_OFFERS`].
    pub offers: Vec<CcOffer>,
    /// What the peer is to send with, best first, and what not: at most [`MAX_CC_PREFERENCES`].
    pub preferences: Vec<CcPreference>,
}

const PREFER_OWN: u8 = 1;
const ONLY: u8 = 2;

impl CcTerms {
    pub(crate) fn put_head(&self, out: &mut impl Put) {
        out.put_u8(if self.prefer_own { PREFER_OWN } else { 0 } | if self.only { ONLY } else { 0 });
        out.put_varint(self.echoes);
    }

    /// Bits of flags that this version does not know are passed over.
    pub(crate) fn parse_head(bytes: &[u8]) -> Result<CcTerms, WireError> {
        let mut r = Reader::new(bytes);
        let flags = r.u8("terms of congestion control")?;
        let echoes = r.varint("terms of congestion control")?;
        end(&r)?;
        let (prefer_own, only) = (flags & PREFER_OWN != 0, flags & ONLY != 0);
        Ok(CcTerms { prefer_own, only, echoes, offers: Vec::new(), preferences: Vec::new() })
    }
}

pub(crate) fn offer_bytes(o: &CcOffer) -> Vec<u8> {
    let mut b = Vec::with_capacity(o.encoded_len());
    o.put(&mut b);
    b
}

pub(crate) fn parse_offer(bytes: &[u8]) -> Result<CcOffer, WireError> {
    let mut r = Reader::new(bytes);
    let o = CcOffer::parse(&mut r)?;
    end(&r)?;
    Ok(o)
}

pub(crate) fn preference_bytes(w: &CcPreference) -> Vec<u8> {
    let mut b = Vec::new();
    w.put(&mut b);
    b
}

pub(crate) fn parse_preference(bytes: &[u8]) -> Result<CcPreference, WireError> {
    let mut r = Reader::new(bytes);
    let w = CcPreference::parse(&mut r)?;
    end(&r)?;
    Ok(w)
}

fn end(r: &Reader<'_>) -> Result<(), WireError> {
    if r.is_empty() { Ok(()) } else { Err(WireError::Invalid("congestion-control parameter")) }
}

/// What is changed: the congestion control of one direction of a queue pair, or of all that have none of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CcTopic {
    /// The queue pair; `None`: the connection.
    pub qpn: Option<u16>,
    /// What the server sends, instead of: what the client sends.
    pub of_server: bool,
}

impl CcTopic {
    fn parse(r: &mut Reader<'_>) -> Result<CcTopic, WireError> {
        let qpn = stream(r)?;
        let of_server = match r.u8("direction of congestion control")? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Invalid("direction of congestion control")),
        };
        Ok(CcTopic { qpn, of_server })
    }

    fn encoded_len(&self) -> usize {
        varint_len(stream_of(self.qpn)) + 1
    }

    fn put(&self, out: &mut impl Put) {
        out.put_varint(stream_of(self.qpn));
        out.put_u8(u8::from(self.of_server));
    }
}

/// Proposes another algorithm, or other parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CcPropose {
    /// For what.
    pub topic: CcTopic,
    /// One more than that of the last proposal on this topic that was answered. Not 0.
    pub sequence: u64,
    /// What is to be used from now on.
    pub offer: CcOffer,
}

impl CcPropose {
    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<CcPropose, WireError> {
        let topic = CcTopic::parse(r)?;
        Ok(CcPropose { topic, sequence: sequence(r)?, offer: CcOffer::parse(r)? })
    }
    pub(crate) fn encoded_len(&self) -> usize {
        self.topic.encoded_len() + varint_len(self.sequence) + self.offer.encoded_len()
    }
    pub(crate) fn put(&self, out: &mut impl Put) {
        self.topic.put(out);
        out.put_varint(self.sequence);
        self.offer.put(out);
    }
}

/// Answers [`CcPropose`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CcAnswer {
    /// For what.
    pub topic: CcTopic,
    /// Which proposal.
    pub sequence: u64,
    /// Zero: it holds from now on. Else why not.
    pub code: u64,
}

impl CcAnswer {
    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<CcAnswer, WireError> {
        let topic = CcTopic::parse(r)?;
        Ok(CcAnswer { topic, sequence: sequence(r)?, code: r.varint("answer's code")? })
    }
    pub(crate) fn encoded_len(&self) -> usize {
        self.topic.encoded_len() + varint_len(self.sequence) + varint_len(self.code)
    }
    pub(crate) fn put(&self, out: &mut impl Put) {
        self.topic.put(out);
        out.put_varint(self.sequence);
        out.put_varint(self.code);
    }
}

/// What its sender sends with from now on, without having asked: its policy is another one, or signals are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CcRuns {
    /// On which queue pair; `None`: on all that have none of their own.
    pub qpn: Option<u16>,
    /// That of the last proposal for this which was answered; 0: none was.
    pub sequence: u64,
    /// Grows from one such frame of a sender to the next. Not 0.
    pub number: u64,
    /// Why, as `docs/protocol.md` lists it in section 10.4.
    pub reason: u64,
    /// Algorithm and parameters, at most [`MAX_CC_SPEC`] bytes.
    pub chosen: String,
    /// What decides in its place; empty: nothing does.
    pub fallback: String,
}

impl CcRuns {
    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<CcRuns, WireError> {
        let qpn = stream(r)?;
        let settled = r.varint("sequence of a proposal")?;
        let number = sequence(r)?;
        let reason = r.varint("reason of a change")?;
        let chosen = spec(r)?;
        if chosen.is_empty() {
            return Err(WireError::Invalid("name of an algorithm"));
        }
        Ok(CcRuns { qpn, sequence: settled, number, reason, chosen, fallback: spec(r)? })
    }
    pub(crate) fn encoded_len(&self) -> usize {
        let numbers = [stream_of(self.qpn), self.sequence, self.number, self.reason];
        numbers.into_iter().map(varint_len).sum::<usize>()
            + string_len(&self.chosen)
            + string_len(&self.fallback)
    }
    pub(crate) fn put(&self, out: &mut impl Put) {
        for n in [stream_of(self.qpn), self.sequence, self.number, self.reason] {
            out.put_varint(n);
        }
        out.put_string(self.chosen.as_bytes());
        out.put_string(self.fallback.as_bytes());
    }
}

/// An algorithm with parameters as a text, or nothing.
fn spec(r: &mut Reader<'_>) -> Result<String, WireError> {
    let bytes = r.string(MAX_CC_SPEC, "name of an algorithm")?;
    if bytes.is_empty() {
        return Ok(String::new());
    }
    let (name, params) = match bytes.iter().position(|b| *b == b':') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[][..]),
    };
    if name.len() > MAX_CC_NAME {
        return Err(WireError::TooLong("name of an algorithm"));
    }
    let mut text = name_text(name)?;
    if !params.is_empty() {
        text.push(':');
        text.push_str(&params_text(params)?);
    }
    Ok(text)
}

fn stream(r: &mut Reader<'_>) -> Result<Option<u16>, WireError> {
    let wrong = || WireError::Invalid("queue pair of congestion control");
    let number = r.varint("queue pair of congestion control")?.checked_sub(1);
    number.map(|n| u16::try_from(n).map_err(|_| wrong())).transpose()
}

fn stream_of(qpn: Option<u16>) -> u64 {
    qpn.map_or(0, |n| u64::from(n) + 1)
}

fn sequence(r: &mut Reader<'_>) -> Result<u64, WireError> {
    match r.varint("sequence of a proposal")? {
        0 => Err(WireError::Invalid("sequence of a proposal")),
        n => Ok(n),
    }
}

fn string_len(s: &str) -> usize {
    varint_len(s.len() as u64) + s.len()
}

fn name(r: &mut Reader<'_>) -> Result<String, WireError> {
    name_text(r.string(MAX_CC_NAME, "name of an algorithm")?)
}

fn name_text(bytes: &[u8]) -> Result<String, WireError> {
    let fits = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'+');
    if bytes.is_empty() || !bytes.iter().all(fits) {
        return Err(WireError::Invalid("name of an algorithm"));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn params(r: &mut Reader<'_>) -> Result<String, WireError> {
    params_text(r.string(MAX_CC_PARAMS, "parameters of an algorithm")?)
}

fn params_text(bytes: &[u8]) -> Result<String, WireError> {
    if !bytes.iter().all(|b| (b' '..=b'~').contains(b)) {
        return Err(WireError::Invalid("parameters of an algorithm"));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

#[cfg(test)]
mod tests;
