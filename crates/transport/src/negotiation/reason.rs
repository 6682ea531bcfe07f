//! Reasons for a change of congestion control, with their codes on the wire.

use cc::platform::{EcnFault, Lack};

/// Why the algorithm in effect changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CcChangeReason {
    /// Both ends agreed on it.
    #[default]
    Agreed,
    /// The sender's policy or its administrator says so.
    Policy,
    /// The path does not carry what the chosen one needs: its fallback decides.
    Lacks(Lack),
    /// The path carries again what the chosen one needs.
    SignalsRestored,
    /// The chosen one is a program, which misbehaved.
    Program,
    /// A code that this version does not know.
    Other(u64),
}

/// The codes of `docs/protocol.md`, section 10.4.
const CODES: [(u64, CcChangeReason); 10] = [
    (0, CcChangeReason::Agreed),
    (1, CcChangeReason::Policy),
    (2, CcChangeReason::SignalsRestored),
    (3, CcChangeReason::Program),
    (4, CcChangeReason::Lacks(Lack::Ecn(EcnFault::Untold))),
    (5, CcChangeReason::Lacks(Lack::Ecn(EcnFault::Bleached))),
    (6, CcChangeReason::Lacks(Lack::Ecn(EcnFault::Remarked))),
    (7, CcChangeReason::Lacks(Lack::Ecn(EcnFault::AllMarked))),
    (8, CcChangeReason::Lacks(Lack::Ecn(EcnFault::Dropped))),
    (9, CcChangeReason::Lacks(Lack::Telemetry)),
];

impl CcChangeReason {
    /// Its code on the wire.
    pub fn code(self) -> u64 {
        match self {
            CcChangeReason::Other(code) => code,
            known => CODES.iter().find(|(_, r)| *r == known).map_or(0, |(code, _)| *code),
        }
    }

    /// What a code means.
    pub fn of_code(code: u64) -> CcChangeReason {
        CODES.iter().find(|(c, _)| *c == code).map_or(CcChangeReason::Other(code), |(_, r)| *r)
    }

    /// It in words.
    pub const fn words(self) -> &'static str {
        match self {
            CcChangeReason::Agreed => "both ends agreed on it",
            CcChangeReason::Policy => "the sender's policy or administrator says so",
            CcChangeReason::Lacks(lack) => lack.words(),
            CcChangeReason::SignalsRestored => "the path carries the signals it needs again",
            CcChangeReason::Program => "the program misbehaved",
            CcChangeReason::Other(_) => "for a reason that this version does not know",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_codes_round_trip() {
        for (code, reason) in CODES {
            assert_eq!((CcChangeReason::of_code(code), reason.code()), (reason, code));
        }
        assert_eq!(CcChangeReason::of_code(77).code(), 77);
    }
}
