//! The ECN field of the IP header.

/// The ECN field of the IP header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not understand ECN: never marked.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, codepoint ECT(1) (used by L4S, RFC 9331).
    Ect1 = 0b01,
    /// ECN-capable transport, codepoint ECT(0).
    Ect0 = 0b10,
    /// Congestion experienced.
    Ce = 0b11,
}

impl Ecn {
    /// From the low two bits of the IP traffic class; higher bits are ignored.
    pub const fn from_bits(bits: u8) -> Ecn {
        match bits & 0b11 {
            0b00 => Ecn::NotEct,
            0b01 => Ecn::Ect1,
            0b10 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
    /// The two bits as they stand in the IP traffic class.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip() {
        assert!((0..4).all(|b| Ecn::from_bits(b).bits() == b && Ecn::from_bits(b | 0xfc).bits() == b));
    }
}
