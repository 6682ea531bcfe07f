//! Strict Base64 (RFC 4648) for keys and fingerprints in text: no blanks, no stray bits, padding only where the
//! caller's alphabet has it.

/// Section 4, padded.
const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Section 5, safe in file names and URLs; not padded here.
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Which alphabet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Base64 {
    /// `+` and `/`, padded.
    Padded,
    /// `+` and `/`, not padded, as in ssh's fingerprints.
    Bare,
    /// `-` and `_`, not padded.
    Url,
}

impl Base64 {
    fn alphabet(self) -> &'static [u8; 64] {
        if self == Base64::Url { URL } else { STANDARD }
    }

    /// Text of these bytes.
    pub(super) fn encode(self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
        for group in bytes.chunks(3) {
            let mut word = 0u32;
            for i in 0..3 {
                word = word << 8 | u32::from(group.get(i).copied().unwrap_or(0));
            }
            for i in 0..4 {
                if i <= group.len() {
                    out.push(char::from(self.alphabet()[(word >> (18 - 6 * i)) as usize & 63]));
                } else if self == Base64::Padded {
                    out.push('=');
                }
            }
        }
        out
    }

    /// Fills `out` exactly, or gives nothing.
    pub(super) fn decode(self, text: &str, out: &mut [u8]) -> Option<()> {
        let digits = (out.len() * 4).div_ceil(3);
        let padded = if self == Base64::Padded { out.len().div_ceil(3) * 4 } else { digits };
        let text = text.as_bytes();
        if text.len() != padded || text[digits..].iter().any(|c| *c != b'=') {
            return None;
        }
        for (group, bytes) in text[..digits].chunks(4).zip(out.chunks_mut(3)) {
            let mut word = 0u32;
            for i in 0..4 {
                let value = match group.get(i) {
                    Some(c) => self.alphabet().iter().position(|a| a == c)?,
                    None => 0,
                };
                word = word << 6 | value as u32;
            }
            let all = word.to_be_bytes();
            let n = bytes.len();
            bytes.copy_from_slice(&all[1..=n]);
            // Bits beyond the last byte must be zero, so that each value has one text only (section 3.5).
            if all[1 + n..].iter().any(|b| *b != 0) {
                return None;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors_of_rfc_4648() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(Base64::Padded.encode(plain.as_bytes()), text);
            let mut out = vec![0; plain.len()];
            assert_eq!(Base64::Padded.decode(text, &mut out), Some(()));
            assert_eq!(out, plain.as_bytes());
        }
        assert_eq!(Base64::Url.encode(&[0xfb, 0xff]), "-_8");
        assert_eq!(Base64::Bare.encode(&[0xfb, 0xff]), "+/8");
    }

    #[test]
    fn non_canonical_text_is_rejected() {
        let mut one = [0u8; 1];
        for bad in ["Zh==", "Zg=", "Zg", "Zg=A", "Z g=", "Zg===", "!g=="] {
            assert_eq!(Base64::Padded.decode(bad, &mut one), None, "{bad}");
        }
        assert_eq!(Base64::Url.decode("Zg==", &mut one), None);
        assert_eq!(Base64::Url.decode("+/8", &mut [0; 2]), None);
    }

    proptest! {
        #[test]
        fn round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            for kind in [Base64::Padded, Base64::Bare, Base64::Url] {
                let mut out = vec![0; bytes.len()];
                prop_assert_eq!(kind.decode(&kind.encode(&bytes), &mut out), Some(()));
                prop_assert_eq!(&out, &bytes);
            }
        }

        #[test]
        fn decode_accepts_arbitrary_input_without_panic(text in ".{0,100}", n in 0usize..80) {
            for kind in [Base64::Padded, Base64::Bare, Base64::Url] {
                let mut out = vec![0; n];
                if kind.decode(&text, &mut out).is_some() {
                    prop_assert_eq!(kind.encode(&out), text.clone());
                }
            }
        }
    }
}
