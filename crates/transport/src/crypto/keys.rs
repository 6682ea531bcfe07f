//! The key schedule, key updates (RFC 9001, section 6) and usage limits of packet protection keys.
//!
//! From a secret of one direction come, by HKDF-SHA256 (RFC 5869):
//!
//! | label | what |
//! | --- | --- |
//! | `lh key` | the cipher's key |
//! | `lh iv` | the IV, 16 bytes; ciphers with nonces of 12 bytes use the first 12 |
//! | `lh hp` | the key of header protection, 16 bytes; from the first secret only |
//! | `lh ku` | the next secret |
//!
//! The `info` of each expansion is the output's length (2 bytes), the label's length (1 byte), the label, and a
//! zero byte: the form of HKDF-Expand-Label (RFC 8446, section 7.1) without its prefix.
//!
//! Key updates follow RFC 9001, section 6. One bit of each packet tells its phase. With the packet number it
//! tells which key it needs, so each packet is tried with one key only, and that key is always ready: a forged
//! packet takes the same time whatever its bit. Since an endpoint may start an update only three probe timeouts
//! after its last one was acknowledged, when both ends have discarded the keys before, three generations are
//! the most there can be.

use base::Prefetch;
use hkdf::Hkdf;
use sha2::Sha256;
use std::sync::Arc;
use thiserror::Error;
use zeroize::Zeroizing;

use super::packet::{Forged, HeaderKey, IV_LEN, OpenKey, SealError, SealKey, TAG_LEN};
use super::suite::Suite;
use super::train::{OpenedTrain, TrainKey, TrainOpener, TrainSealer};

/// Bytes of a secret.
pub const SECRET_LEN: usize = 32;
/// Lanes that keys keep track of.
pub const MAX_LANES: usize = wire::frame::MAX_LANES as usize;
/// Salt of Initial keys. Nothing up the sleeve: it keeps our Initial packets apart from other protocols'.
const INITIAL_SALT: &[u8] = b"longhaul/1 initial salt";
/// No packet seen or sealed yet on a lane in this phase.
const NONE: u64 = u64::MAX;

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// It sent the first packet.
    Client,
    /// It answered.
    Server,
}

/// A secret of one direction; overwritten when dropped, never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; SECRET_LEN]>);

impl Secret {
    /// A secret of 32 bytes that are uniformly random to everyone else.
    pub fn from_bytes(bytes: [u8; SECRET_LEN]) -> Secret {
        Secret(Zeroizing::new(bytes))
    }

    /// A secret from any key material (HKDF-Extract).
    pub(super) fn extract(salt: &[u8], material: &[u8]) -> Hkdf<Sha256> {
        Hkdf::<Sha256>::new(Some(salt), material)
    }

    fn expand(&self, label: &str, out: &mut [u8]) {
        let prk = Hkdf::<Sha256>::from_prk(&*self.0).expect("32 bytes are SHA-256's length");
        expand_label(&prk, label, out);
    }

    /// The secret after the next key update.
    fn next(&self) -> Secret {
        let mut out = Zeroizing::new([0u8; SECRET_LEN]);
        self.expand("lh ku", &mut *out);
        Secret(out)
    }

    fn header_key(&self, suite: Suite) -> HeaderKey {
        let mut hp = Zeroizing::new([0u8; 16]);
        self.expand("lh hp", &mut *hp);
        HeaderKey::new(suite, &hp)
    }

    /// Key and IV, handed to `make`.
    fn packet_key<K>(&self, suite: Suite, make: impl FnOnce(Suite, &[u8], &[u8; IV_LEN]) -> K) -> K {
        let (mut key, mut iv) = (Zeroizing::new([0u8; 32]), Zeroizing::new([0u8; IV_LEN]));
        let key = &mut key[..suite.key_len()];
        self.expand("lh key", key);
        self.expand("lh iv", &mut *iv);
        make(suite, key, &iv)
    }
}

impl core::fmt::Debug for Secret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// HKDF-Expand with the `info` described at the top. `out` is at most 64 bytes, the label at most 32.
pub(super) fn expand_label(prk: &Hkdf<Sha256>, label: &str, out: &mut [u8]) {
    let len = (out.len() as u16).to_be_bytes();
    let info: [&[u8]; 4] = [&len, &[label.len() as u8], label.as_bytes(), &[0]];
    prk.expand_multi_info(&info, out).expect("outputs are far below 255 hashes");
}

/// Why a packet cannot be sealed, or keys not updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The confidentiality limit is reached (RFC 9001, section 6.6): update, or close.
    #[error("the key has sealed as many packets as it may: update keys, or close the connection")]
    Exhausted,
    /// Sizes the cipher does not take.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// No such lane.
    #[error("lane {0} is out of range: there are at most {MAX_LANES}")]
    Lane(u32),
    /// No packet of this phase is acknowledged yet, the peer has not followed the last update, or the keys
    /// before it are not discarded yet.
    #[error("the last key update is not over: wait for its acknowledgement and three probe timeouts")]
    UpdateTooSoon,
    /// Keys of Initial and Handshake packets, and suites without a key, are never updated.
    #[error("these keys are never updated")]
    NoUpdates,
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// Drop it.
    #[error(transparent)]
    Forged(#[from] Forged),
    /// It needs keys that are discarded already. Drop it; it does not count as forged.
    #[error("the packet is older than the keys kept: drop it")]
    Expired,
    /// No such lane. Drop it.
    #[error("lane {0} is out of range: there are at most {MAX_LANES}")]
    Lane(u32),
    /// Too many packets failed: close with AEAD_LIMIT_REACHED (RFC 9001, section 6.6).
    #[error("as many packets failed to authenticate as the cipher bears: close the connection")]
    IntegrityLimit,
}

/// What opening a packet showed about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Under the current key.
    Current,
    /// Under the key before; it was late.
    Previous,
    /// The first under the next key, which is current now. Arm a timer of three probe timeouts, then call
    /// [`OpenKeys::discard_previous`].
    Updated,
}

/// Keys for sending: counts what it seals.
pub struct SealKeys {
    suite: Suite,
    secret: Secret,
    /// Shared with trains that are being sealed.
    keys: Arc<TrainKey>,
    generation: u64,
    sealed: u64,
    limit: u64,
    /// Lowest packet number sealed in this phase, per lane.
    first: [u64; MAX_LANES],
}

impl SealKeys {
    fn new(suite: Suite, max_packet: usize, secret: &Secret) -> SealKeys {
        SealKeys {
            suite,
            keys: Arc::new(TrainKey {
                key: secret.packet_key(suite, SealKey::new),
                header: secret.header_key(suite),
                tag_len: suite.tag_len(),
            }),
            secret: secret.clone(),
            generation: 0,
            sealed: 0,
            limit: suite.confidentiality_limit(max_packet),
            first: [NONE; MAX_LANES],
        }
    }

    /// Seals one packet; see [`SealKey::seal`].
    pub fn seal(
        &mut self,
        lane: u32,
        pn: u64,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<[u8; TAG_LEN], KeyError> {
        Ok(self.reserve(lane, pn, 1)?.seal(lane, pn, aad, in_out)?)
    }

    /// Counts `n` packets of a lane, numbered from `first_pn` on, and gives the key for sealing them: one check
    /// per train. Their headers carry [`SealKeys::phase`].
    pub fn reserve(&mut self, lane: u32, first_pn: u64, n: u64) -> Result<&SealKey, KeyError> {
        let first = self.first.get_mut(lane as usize).ok_or(KeyError::Lane(lane))?;
        if self.limit - self.sealed < n {
            return Err(KeyError::Exhausted);
        }
        self.sealed += n;
        *first = (*first).min(first_pn);
        Ok(&self.keys.key)
    }

    /// As [`SealKeys::reserve`], for a train that is sealed later or elsewhere.
    pub fn reserve_train(&mut self, lane: u32, first_pn: u64, n: u64) -> Result<TrainSealer, KeyError> {
        self.reserve(lane, first_pn, n)?;
        Ok(TrainSealer { keys: self.keys.clone(), lane, first_pn, lead: 0, prefetch: Prefetch::default() })
    }

    /// The phase bit of packets sealed now.
    pub fn phase(&self) -> bool {
        self.generation & 1 == 1
    }

    /// How many times keys were updated.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The key of header protection.
    pub fn header(&self) -> &HeaderKey {
        &self.keys.header
    }

    /// Half of what the key may seal is sealed: time for [`KeyPair::update`].
    pub fn should_update(&self) -> bool {
        self.sealed >= self.limit / 2
    }

    /// Packets this key may still seal.
    pub fn left(&self) -> u64 {
        self.limit - self.sealed
    }

    fn advance(&mut self) {
        self.secret = self.secret.next();
        self.keys = Arc::new(TrainKey {
            key: self.secret.packet_key(self.suite, SealKey::new),
            header: self.keys.header.clone(),
            tag_len: self.suite.tag_len(),
        });
        self.generation += 1;
        self.sealed = 0;
        self.first = [NONE; MAX_LANES];
    }
}

/// Keys for receiving: chooses among three generations.
pub struct OpenKeys {
    suite: Suite,
    previous: Option<Arc<OpenKey>>,
    /// Shared with views of it.
    current: Arc<OpenKey>,
    next: Arc<OpenKey>,
    /// The secret `next` was made from.
    next_secret: Secret,
    header: Arc<HeaderKey>,
    generation: u64,
    updates: bool,
    forged: u64,
    limit: u64,
    /// Lowest packet number opened under the current key, per lane.
    lowest: [u64; MAX_LANES],
}

impl OpenKeys {
    fn new(suite: Suite, secret: &Secret, updates: bool) -> OpenKeys {
        let next_secret = secret.next();
        OpenKeys {
            suite,
            previous: None,
            current: Arc::new(secret.packet_key(suite, OpenKey::new)),
            next: Arc::new(next_secret.packet_key(suite, OpenKey::new)),
            next_secret,
            header: Arc::new(secret.header_key(suite)),
            generation: 0,
            updates,
            forged: 0,
            limit: suite.integrity_limit(),
            lowest: [NONE; MAX_LANES],
        }
    }

    /// Opens a packet whose header (unmasked) is `aad` and has phase bit `phase`; `pn` is its whole number.
    ///
    /// The other phase's bit means the previous key if the number is below all that came under the current
    /// one on that lane (on a lane where none came: while the previous key is kept), else the next key, which
    /// becomes the current one if the packet is genuine (RFC 9001, sections 6.3 and 6.5). So a packet under an
    /// old key with a number above one under a newer key is never accepted (section 6.4, last MUST).
    pub fn open(
        &mut self,
        phase: bool,
        lane: u32,
        pn: u64,
        aad: &[u8],
        tag: &[u8],
        in_out: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let lowest = *self.lowest.get(lane as usize).ok_or(OpenError::Lane(lane))?;
        if self.forged >= self.limit {
            return Err(OpenError::IntegrityLimit);
        }
        let (key, which) = if phase == self.phase() {
            (&self.current, Opened::Current)
        } else {
            match &self.previous {
                _ if !self.updates => return self.count(Forged),
                Some(previous) if pn < lowest => (previous, Opened::Previous),
                None if lowest != NONE && pn < lowest => return Err(OpenError::Expired),
                _ => (&self.next, Opened::Updated),
            }
        };
        if let Err(forged) = key.open(lane, pn, aad, tag, in_out) {
            return self.count(forged);
        }
        if which == Opened::Updated {
            self.promote();
        }
        if which != Opened::Previous {
            let lowest = &mut self.lowest[lane as usize];
            *lowest = (*lowest).min(pn);
        }
        Ok(which)
    }

    /// What opens packets of a lane under the current key elsewhere. After [`Opened::Updated`] a new one is needed.
    pub fn train_opener(&self, lane: u32) -> TrainOpener {
        TrainOpener {
            key: self.current.clone(),
            header: self.header.clone(),
            tag_len: self.suite.tag_len(),
            lane,
            generation: self.generation,
        }
    }

    /// Whether a packet that a view has opened may be accepted: the rules are those of [`OpenKeys::open`]. A view's key
    /// is the current one, or was until the peer updated its keys.
    pub fn admit(&mut self, t: &OpenedTrain, lane: u32, pn: u64) -> Result<Opened, OpenError> {
        let lowest = self.lowest.get_mut(lane as usize).ok_or(OpenError::Lane(lane))?;
        if t.generation == self.generation {
            *lowest = (*lowest).min(pn);
            Ok(Opened::Current)
        } else if t.generation + 1 == self.generation && self.previous.is_some() && pn < *lowest {
            Ok(Opened::Previous)
        } else {
            Err(OpenError::Expired)
        }
    }

    /// Counts a packet that a view could not open.
    pub fn reject(&mut self) -> OpenError {
        match self.count(Forged) {
            Err(e) => e,
            Ok(_) => Forged.into(),
        }
    }

    /// The phase bit of the current key.
    pub fn phase(&self) -> bool {
        self.generation & 1 == 1
    }

    /// How many times the peer updated its keys.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The key of header protection.
    pub fn header(&self) -> &HeaderKey {
        &self.header
    }

    /// Packets that failed so far.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// Forgets the key before the current one: three probe timeouts after [`Opened::Updated`] (RFC 9001, section
    /// 6.5). Until then, a peer's further update is not understood on a lane that was idle since the last.
    pub fn discard_previous(&mut self) {
        self.previous = None;
    }

    fn count(&mut self, forged: Forged) -> Result<Opened, OpenError> {
        self.forged += 1;
        if self.forged >= self.limit { Err(OpenError::IntegrityLimit) } else { Err(forged.into()) }
    }

    fn promote(&mut self) {
        self.next_secret = self.next_secret.next();
        let after = Arc::new(self.next_secret.packet_key(self.suite, OpenKey::new));
        let current = core::mem::replace(&mut self.next, after);
        self.previous = Some(core::mem::replace(&mut self.current, current));
        self.generation += 1;
        self.lowest = [NONE; MAX_LANES];
    }
}

/// The keys of one encryption level, both directions.
pub struct KeyPair {
    seal: SealKeys,
    open: OpenKeys,
    /// A packet sealed in this phase is acknowledged.
    acknowledged: bool,
    /// And that was long enough ago for the peer to have discarded the keys before.
    settled: bool,
}

impl KeyPair {
    /// Keys of data packets. No packet sent will be longer than `max_packet` bytes (it sets the limits).
    pub fn data(suite: Suite, max_packet: usize, secrets: &super::tls::DataSecrets, side: Side) -> KeyPair {
        let updates = suite != Suite::Crc32c;
        KeyPair::new(suite, max_packet, &secrets.client, &secrets.server, side, updates)
    }

    /// Keys of Initial packets, which anyone can compute who sees the first one: they protect against accidents
    /// and against attackers who do not see it. `client_dcid` is the identifier to which the client sent its
    /// first Initial packet (RFC 9001, section 5.2).
    pub fn initial(client_dcid: &[u8], side: Side) -> KeyPair {
        let prk = Secret::extract(INITIAL_SALT, client_dcid);
        KeyPair::set_up(&prk, ["lh client in", "lh server in"], side)
    }

    /// Keys of set-up packets: AES-128-GCM, never updated, secrets by these labels (client's, server's).
    pub(super) fn set_up(prk: &Hkdf<Sha256>, labels: [&str; 2], side: Side) -> KeyPair {
        let [client, server] = labels.map(|label| {
            let mut out = Zeroizing::new([0u8; SECRET_LEN]);
            expand_label(prk, label, &mut *out);
            Secret(out)
        });
        KeyPair::fixed(&client, &server, side)
    }

    /// Keys of set-up packets from the secrets of each direction.
    pub(super) fn fixed(client: &Secret, server: &Secret, side: Side) -> KeyPair {
        KeyPair::new(Suite::Aes128Gcm, usize::from(u16::MAX), client, server, side, false)
    }

    fn new(
        suite: Suite,
        max_packet: usize,
        client: &Secret,
        server: &Secret,
        side: Side,
        updates: bool,
    ) -> KeyPair {
        let (local, remote) = match side {
            Side::Client => (client, server),
            Side::Server => (server, client),
        };
        KeyPair {
            seal: SealKeys::new(suite, max_packet, local),
            open: OpenKeys::new(suite, remote, updates),
            acknowledged: false,
            // Before the first update there are no older keys.
            settled: true,
        }
    }

    /// The suite.
    pub fn suite(&self) -> Suite {
        self.seal.suite
    }

    /// Keys for sending.
    pub fn sealer(&mut self) -> &mut SealKeys {
        &mut self.seal
    }

    /// Keys for sending, to look at.
    pub fn seal_keys(&self) -> &SealKeys {
        &self.seal
    }

    /// Keys for receiving, to look at.
    pub fn open_keys(&self) -> &OpenKeys {
        &self.open
    }

    /// Keys for receiving, for packets that views have opened.
    pub fn opener(&mut self) -> &mut OpenKeys {
        &mut self.open
    }

    /// See [`SealKeys::seal`].
    pub fn seal(
        &mut self,
        lane: u32,
        pn: u64,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<[u8; TAG_LEN], KeyError> {
        self.seal.seal(lane, pn, aad, in_out)
    }

    /// See [`OpenKeys::open`]. If the peer updated its keys, ours follow (RFC 9001, section 6.2), so that its
    /// next acknowledgement travels under new keys.
    pub fn open(
        &mut self,
        phase: bool,
        lane: u32,
        pn: u64,
        aad: &[u8],
        tag: &[u8],
        in_out: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let opened = self.open.open(phase, lane, pn, aad, tag, in_out)?;
        if opened == Opened::Updated && self.seal.generation < self.open.generation {
            self.advance();
        }
        Ok(opened)
    }

    /// The peer acknowledged this packet. True for the first of this phase: arm a timer of three probe timeouts,
    /// then call [`KeyPair::settle`].
    pub fn on_acknowledged(&mut self, lane: u32, pn: u64) -> bool {
        let of_phase = self.seal.first.get(lane as usize).is_some_and(|first| pn >= *first);
        let first = of_phase && !self.acknowledged;
        self.acknowledged |= of_phase;
        first
    }

    /// Whether the peer has acknowledged a packet of the present phase.
    pub fn is_acknowledged(&self) -> bool {
        self.acknowledged
    }

    /// Three probe timeouts have passed since the first acknowledgement of this phase: the peer, which has had the
    /// new keys for as long, has discarded the old ones. Without effect if nothing is acknowledged.
    pub fn settle(&mut self) {
        self.settled |= self.acknowledged;
    }

    /// Starts a key update.
    ///
    /// RFC 9001, section 6.1: an endpoint MUST NOT start one before the handshake is confirmed, nor another
    /// before a packet of the current phase is acknowledged. An acknowledged data packet stands for both.
    /// Section 6.5: not within three probe timeouts of that acknowledgement ([`KeyPair::settle`]), nor
    /// while we keep old keys ([`KeyPair::discard_previous`]).
    pub fn update(&mut self) -> Result<(), KeyError> {
        if !self.open.updates {
            return Err(KeyError::NoUpdates);
        }
        let followed = self.seal.generation == self.open.generation;
        if !self.acknowledged || !self.settled || !followed || self.open.previous.is_some() {
            return Err(KeyError::UpdateTooSoon);
        }
        self.advance();
        Ok(())
    }

    /// See [`OpenKeys::discard_previous`]. Also settles what is acknowledged by now: the peer's new phase, seen
    /// three probe timeouts ago, showed that it had our new keys.
    pub fn discard_previous(&mut self) {
        self.open.discard_previous();
        self.settle();
    }

    fn advance(&mut self) {
        self.seal.advance();
        self.acknowledged = false;
        self.settled = false;
    }
}

impl core::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KeyPair")
            .field("suite", &self.seal.suite)
            .field("seal", &self.seal.generation)
            .field("open", &self.open.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
