//! Why another algorithm decides than before.

use cc::platform::{EcnFault, Lack};

/// Why another algorithm decides than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// Both ends agreed on it.
    #[default]
    Agreed,
    /// The sender's policy or its administrator says so.
    Policy,
    /// The path does not carry what the chosen one needs: its substitute decides.
    Lacks(Lack),
    /// The path carries again what the chosen one needs.
    Back,
    /// The chosen one is a program, which misbehaved.
    Program,
    /// A code that this version does not know.
    Other(u64),
}

/// The codes of `docs/protocol.md`, section 10.4.
const CODES: [(u64, Reason); 10] = [
    (0, Reason::Agreed),
    (1, Reason::Policy),
    (2, Reason::Back),
    (3, Reason::Program),
    (4, Reason::Lacks(Lack::Ecn(EcnFault::Untold))),
    (5, Reason::Lacks(Lack::Ecn(EcnFault::Bleached))),
    (6, Reason::Lacks(Lack::Ecn(EcnFault::Remarked))),
    (7, Reason::Lacks(Lack::Ecn(EcnFault::AllMarked))),
    (8, Reason::Lacks(Lack::Ecn(EcnFault::Dropped))),
    (9, Reason::Lacks(Lack::Telemetry)),
];

impl Reason {
    /// Its code on the wire.
    pub fn code(self) -> u64 {
        match self {
            Reason::Other(code) => code,
            known => CODES.iter().find(|(_, r)| *r == known).map_or(0, |(code, _)| *code),
        }
    }

    /// What a code means.
    pub fn of_code(code: u64) -> Reason {
        CODES.iter().find(|(c, _)| *c == code).map_or(Reason::Other(code), |(_, r)| *r)
    }

    /// It in words.
    pub const fn words(self) -> &'static str {
        match self {
            Reason::Agreed => "both ends agreed on it",
            Reason::Policy => "the sender's policy or administrator says so",
            Reason::Lacks(lack) => lack.words(),
            Reason::Back => "the path carries the signals it needs again",
            Reason::Program => "the program misbehaved",
            Reason::Other(_) => "for a reason that this version does not know",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_back() {
        for (code, reason) in CODES {
            assert_eq!((Reason::of_code(code), reason.code()), (reason, code));
        }
        assert_eq!(Reason::of_code(77).code(), 77);
    }
}
