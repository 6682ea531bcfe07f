//! Seals, opens and masks packets with one key of one direction.
//!
//! ```text
//! byte 0      flags            low 7 bits masked
//! 1..5        CID              clear
//! 5..9        packet number    masked
//! 9..25       tag              also the sample of header protection
//! 25..        ciphertext: inner header, payload
//! ```
//!
//! Bytes 0..9, before masking, are the associated data. Lanes share a key: the nonce is the key's IV XOR (lane
//! number, 32 bits; packet number, 64 bits), as in multipath QUIC (draft-ietf-quic-multipath, "Nonce
//! calculation"), so packet numbers may repeat across lanes, never within one.
//!
//! The mask is AES-128-ECB(hp key, tag), whatever the suite: 16 bytes of a tag are as good a sample as
//! 16 bytes of ciphertext (RFC 9001, section 5.4), and are there before the payload is. Nothing here
//! allocates per packet.

use aegis::aegis128l::{Aegis128L, Aegis128LMac};
use aegis::aegis128x2::Aegis128X2;
use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use crc_fast::{CrcAlgorithm, Digest};
use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use thiserror::Error;
use zeroize::Zeroizing;

use super::suite::Suite;

/// Bytes of a tag.
pub const TAG_LEN: usize = 16;
/// Offset of the tag in short packets.
pub const TAG_OFFSET: usize = wire::packet::SHORT_CLEAR;
/// Bytes of a header mask: one for byte 0, four for the packet number.
pub const MASK_LEN: usize = 5;
/// Longest associated data under the suites of module "integrity"; a short header has 9 bytes.
pub const MAX_INTEGRITY_AAD: usize = 64;
/// Bytes of the IV derived for each key; AEGIS uses all, the others the first 12.
pub(super) const IV_LEN: usize = 16;
/// Blocks encrypted per call: a train of 44 segments in one go, on 1 KiB of stack.
const MASK_BATCH: usize = 64;

/// The tag does not fit the packet: it was changed on the way, is not for this key, or was invented.
/// Its payload has been overwritten with zeros, or, under the suites that leave it readable, not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the packet does not authenticate: drop it")]
pub struct Forged;

/// A packet that cannot be sealed. Only its sizes can be the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SealError {
    /// More than [`MAX_INTEGRITY_AAD`] bytes of header.
    #[error("associated data is longer than {MAX_INTEGRITY_AAD} bytes: put it into the payload")]
    HeaderTooLong,
    /// More than the cipher takes (2^36 bytes).
    #[error("payload is longer than the cipher takes: split it")]
    PayloadTooLong,
}

#[derive(Clone)]
enum Cipher {
    Ring(LessSafeKey),
    Gmac(LessSafeKey),
    Aegis(Zeroizing<[u8; 16]>),
    AegisX2(Zeroizing<[u8; 16]>),
    AegisMac(Zeroizing<[u8; 16]>),
    Crc,
}

/// What seal and open share.
#[derive(Clone)]
struct Key {
    cipher: Cipher,
    iv: Zeroizing<[u8; IV_LEN]>,
}

impl Key {
    /// `key` has the suite's length; the key schedule is the only caller.
    fn new(suite: Suite, key: &[u8], iv: &[u8; IV_LEN]) -> Key {
        let ring =
            |alg| LessSafeKey::new(UnboundKey::new(alg, key).expect("key schedule gives the right length"));
        let short = || Zeroizing::new(key.try_into().expect("key schedule gives the right length"));
        let cipher = match suite {
            Suite::Aes128Gcm => Cipher::Ring(ring(&AES_128_GCM)),
            Suite::ChaCha20Poly1305 => Cipher::Ring(ring(&CHACHA20_POLY1305)),
            Suite::IntegrityGmac => Cipher::Gmac(ring(&AES_128_GCM)),
            Suite::Aegis128L => Cipher::Aegis(short()),
            Suite::Aegis128X2 => Cipher::AegisX2(short()),
            Suite::IntegrityAegis => Cipher::AegisMac(short()),
            Suite::Crc32c => Cipher::Crc,
        };
        Key { cipher, iv: Zeroizing::new(*iv) }
    }

    #[inline]
    fn nonce(&self, lane: u32, pn: u64) -> [u8; IV_LEN] {
        let number = u128::from(lane) << 96 | u128::from(pn) << 32;
        (u128::from_be_bytes(*self.iv) ^ number).to_be_bytes()
    }

    #[inline]
    fn nonce12(&self, lane: u32, pn: u64) -> Nonce {
        let n = self.nonce(lane, pn);
        let mut short = [0u8; 12];
        short.copy_from_slice(&n[..12]);
        Nonce::assume_unique_for_key(short)
    }

    #[inline]
    fn seal(&self, lane: u32, pn: u64, aad: &[u8], in_out: &mut [u8]) -> Result<[u8; TAG_LEN], SealError> {
        match &self.cipher {
            Cipher::Ring(key) => {
                let tag = key
                    .seal_in_place_separate_tag(self.nonce12(lane, pn), Aad::from(aad), in_out)
                    .map_err(|_| SealError::PayloadTooLong)?;
                Ok(tag.as_ref().try_into().expect("ring's tags have 16 bytes"))
            }
            Cipher::Aegis(key) => {
                Ok(Aegis128L::<TAG_LEN>::new(key, &self.nonce(lane, pn)).encrypt_in_place(in_out, aad))
            }
            Cipher::AegisX2(key) => {
                Ok(Aegis128X2::<TAG_LEN>::new(key, &self.nonce(lane, pn)).encrypt_in_place(in_out, aad))
            }
            Cipher::Gmac(key) => self.gmac(key, lane, pn, aad, in_out),
            Cipher::AegisMac(key) => self.aegis_mac(key, lane, pn, aad, in_out),
            Cipher::Crc => Ok(checksum(lane, pn, aad, in_out)),
        }
    }

    #[inline]
    fn open(&self, lane: u32, pn: u64, aad: &[u8], tag: &[u8], in_out: &mut [u8]) -> Result<(), Forged> {
        match &self.cipher {
            Cipher::Ring(key) => {
                let tag = ring::aead::Tag::try_from(tag).map_err(|_| Forged)?;
                // On failure ring overwrites the plaintext with zeros.
                key.open_in_place_separate_tag(self.nonce12(lane, pn), Aad::from(aad), tag, in_out, 0..)
                    .map_err(|_| Forged)?;
                Ok(())
            }
            Cipher::Aegis(key) => {
                let tag: &[u8; TAG_LEN] = tag.try_into().map_err(|_| Forged)?;
                // On failure libaegis overwrites the plaintext with zeros.
                Aegis128L::<TAG_LEN>::new(key, &self.nonce(lane, pn))
                    .decrypt_in_place(in_out, tag, aad)
                    .map_err(|_| Forged)
            }
            Cipher::AegisX2(key) => {
                let tag: &[u8; TAG_LEN] = tag.try_into().map_err(|_| Forged)?;
                Aegis128X2::<TAG_LEN>::new(key, &self.nonce(lane, pn))
                    .decrypt_in_place(in_out, tag, aad)
                    .map_err(|_| Forged)
            }
            Cipher::Gmac(key) => {
                let want = self.gmac(key, lane, pn, aad, in_out).map_err(|_| Forged)?;
                if super::same(&want, tag) { Ok(()) } else { Err(Forged) }
            }
            Cipher::AegisMac(key) => {
                let want = self.aegis_mac(key, lane, pn, aad, in_out).map_err(|_| Forged)?;
                if super::same(&want, tag) { Ok(()) } else { Err(Forged) }
            }
            Cipher::Crc => {
                let want = checksum(lane, pn, aad, in_out);
                if want[..4] == *tag { Ok(()) } else { Err(Forged) }
            }
        }
    }

    /// AES-128-GCM with the payload as associated data and the header as plaintext: both are authenticated, and
    /// they need not lie next to each other (the tag stands between them in the packet). The header's
    /// ciphertext is thrown away: whoever opens the packet has the header, and seals it again to compare.
    fn gmac(
        &self,
        key: &LessSafeKey,
        lane: u32,
        pn: u64,
        header: &[u8],
        payload: &[u8],
    ) -> Result<[u8; TAG_LEN], SealError> {
        let mut copy = [0u8; MAX_INTEGRITY_AAD];
        let copy = copy.get_mut(..header.len()).ok_or(SealError::HeaderTooLong)?;
        copy.copy_from_slice(header);
        let tag = key
            .seal_in_place_separate_tag(self.nonce12(lane, pn), Aad::from(payload), copy)
            .map_err(|_| SealError::PayloadTooLong)?;
        Ok(tag.as_ref().try_into().expect("ring's tags have 16 bytes"))
    }

    /// AEGISMAC over the header, the payload and the header's length in one byte, which keeps the two apart.
    fn aegis_mac(
        &self,
        key: &[u8; 16],
        lane: u32,
        pn: u64,
        header: &[u8],
        payload: &[u8],
    ) -> Result<[u8; TAG_LEN], SealError> {
        if header.len() > MAX_INTEGRITY_AAD {
            return Err(SealError::HeaderTooLong);
        }
        let mut mac = Aegis128LMac::<TAG_LEN>::new_with_nonce(key, &self.nonce(lane, pn));
        mac.update(header);
        mac.update(payload);
        mac.update(&[header.len() as u8]);
        Ok(mac.finalize())
    }
}

/// CRC32C over a pseudo header (lane, whole packet number), the header and the payload; the first four bytes
/// of the result, big-endian, and zeros. crc-fast folds by carry-less multiplication where the processor can: 26 ns for
/// 1,400 bytes, against 69 by the `crc32` instruction, which leaves the last third of a packet to one chain.
fn checksum(lane: u32, pn: u64, aad: &[u8], payload: &[u8]) -> [u8; TAG_LEN] {
    let mut pseudo = [0u8; 12];
    pseudo[..4].copy_from_slice(&lane.to_be_bytes());
    pseudo[4..].copy_from_slice(&pn.to_be_bytes());
    let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    crc.update(&pseudo);
    crc.update(aad);
    crc.update(payload);
    let mut tag = [0u8; TAG_LEN];
    tag[..4].copy_from_slice(&(crc.finalize() as u32).to_be_bytes());
    tag
}

/// Seals packets of one direction with one key. Counts nothing: [`super::keys`] does.
#[derive(Clone)]
pub struct SealKey(Key);

/// Opens packets of one direction with one key.
#[derive(Clone)]
pub struct OpenKey(Key);

impl SealKey {
    pub(super) fn new(suite: Suite, key: &[u8], iv: &[u8; IV_LEN]) -> SealKey {
        SealKey(Key::new(suite, key, iv))
    }

    /// Encrypts `in_out` in place and gives its tag, of which the first [`Suite::tag_len`] bytes are sent.
    /// A pair of `lane` and `pn` must never be used twice with one key.
    #[inline]
    pub fn seal(
        &self,
        lane: u32,
        pn: u64,
        aad: &[u8],
        in_out: &mut [u8],
    ) -> Result<[u8; TAG_LEN], SealError> {
        self.0.seal(lane, pn, aad, in_out)
    }
}

impl OpenKey {
    pub(super) fn new(suite: Suite, key: &[u8], iv: &[u8; IV_LEN]) -> OpenKey {
        OpenKey(Key::new(suite, key, iv))
    }

    /// Decrypts `in_out` in place if `tag` (exactly [`Suite::tag_len`] bytes) fits. If not, no plaintext is left
    /// in `in_out`; the ciphertext is gone too, so a packet cannot be tried with two keys.
    #[inline]
    pub fn open(&self, lane: u32, pn: u64, aad: &[u8], tag: &[u8], in_out: &mut [u8]) -> Result<(), Forged> {
        self.0.open(lane, pn, aad, tag, in_out)
    }
}

/// Masks and unmasks headers of one direction; not changed by key updates (RFC 9001, section 6). Under
/// CRC32C the mask is zero.
#[derive(Clone)]
pub struct HeaderKey(Option<Aes128>);

impl HeaderKey {
    pub(super) fn new(suite: Suite, key: &[u8; 16]) -> HeaderKey {
        HeaderKey(suite.protects_header().then(|| Aes128::new(key.into())))
    }

    /// The mask that belongs to a tag: XOR byte 0 with `mask[0]` (whose top bit is clear) and the packet
    /// number's bytes with `mask[1..5]`.
    pub fn mask(&self, tag: &[u8; TAG_LEN]) -> [u8; MASK_LEN] {
        let Some(aes) = &self.0 else { return [0; MASK_LEN] };
        let mut block = Array::from(*tag);
        aes.encrypt_block(&mut block);
        let mut mask = [0; MASK_LEN];
        mask.copy_from_slice(&block[..MASK_LEN]);
        mask[0] &= wire::packet::flag::PROTECTED;
        mask
    }

    /// The masks of many packets: AES runs them in parallel, a few nanoseconds each. As many as the shorter
    /// of both slices are made.
    pub fn mask_train(&self, tags: &[[u8; TAG_LEN]], masks: &mut [[u8; MASK_LEN]]) {
        let Some(aes) = &self.0 else {
            masks.fill([0; MASK_LEN]);
            return;
        };
        for (tags, masks) in tags.chunks(MASK_BATCH).zip(masks.chunks_mut(MASK_BATCH)) {
            let mut blocks = [Array::from([0u8; TAG_LEN]); MASK_BATCH];
            for (b, t) in blocks.iter_mut().zip(tags) {
                b.copy_from_slice(t);
            }
            aes.encrypt_blocks(&mut blocks[..tags.len()]);
            for (m, b) in masks.iter_mut().zip(&blocks[..tags.len()]) {
                m.copy_from_slice(&b[..MASK_LEN]);
                m[0] &= wire::packet::flag::PROTECTED;
            }
        }
    }

    /// Masks, or unmasks (it is the same), the headers of a train of short packets, `segment` bytes apart, the
    /// last perhaps shorter. Pieces with a long header, and pieces too short to have a tag, are left alone.
    /// Long headers show in the top bit of byte 0, which is never masked.
    pub fn mask_segments(&self, train: &mut [u8], segment: usize) {
        if self.0.is_none() || segment == 0 {
            return;
        }
        // One packet alone is not worth setting out for many.
        if train.len() <= segment {
            let tag = train.get(TAG_OFFSET..TAG_OFFSET + TAG_LEN).and_then(|t| t.try_into().ok());
            if let Some(tag) = tag.filter(|_| train[0] & wire::packet::flag::LONG == 0) {
                apply_mask(&self.mask(tag), train);
            }
            return;
        }
        for batch in train.chunks_mut(segment.saturating_mul(MASK_BATCH)) {
            let mut tags = [[0u8; TAG_LEN]; MASK_BATCH];
            let mut masks = [[0u8; MASK_LEN]; MASK_BATCH];
            let mut n = 0;
            for (tag, packet) in tags.iter_mut().zip(batch.chunks(segment)) {
                if let Some(t) = packet.get(TAG_OFFSET..TAG_OFFSET + TAG_LEN) {
                    tag.copy_from_slice(t);
                }
                n += 1;
            }
            self.mask_train(&tags[..n], &mut masks[..n]);
            for (mask, packet) in masks.iter().zip(batch.chunks_mut(segment)) {
                if packet.len() >= TAG_OFFSET + TAG_LEN && packet[0] & wire::packet::flag::LONG == 0 {
                    apply_mask(mask, packet);
                }
            }
        }
    }
}

/// XORs a mask onto the header of a short packet of at least [`TAG_OFFSET`] bytes; shorter ones are left.
#[inline]
pub fn apply_mask(mask: &[u8; MASK_LEN], packet: &mut [u8]) {
    if packet.len() < TAG_OFFSET {
        return;
    }
    packet[0] ^= mask[0];
    for (p, m) in packet[wire::packet::SHORT_PN..TAG_OFFSET].iter_mut().zip(&mask[1..]) {
        *p ^= m;
    }
}

super::opaque_debug!(SealKey, OpenKey, HeaderKey);

#[cfg(test)]
mod tests;
