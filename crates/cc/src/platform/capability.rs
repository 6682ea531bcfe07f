//! What a path was found to carry of the signals that algorithms need.

use crate::registry::{Marks, Needs};
use core::fmt;

/// Whether something was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Found {
    /// Nothing was looked for, or too little was seen.
    #[default]
    Unknown,
    /// It is there.
    Yes,
    /// It is not, or not any more.
    No,
}

impl Found {
    /// In a word.
    pub const fn word(self) -> &'static str {
        match self {
            Found::Unknown => "unknown",
            Found::Yes => "yes",
            Found::No => "no",
        }
    }
}

/// What is wrong with the ECN field on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EcnFault {
    /// The peer does not say what it saw.
    Untold,
    /// It arrives cleared.
    Bleached,
    /// It arrives as the other codepoint of ECN-capable transports.
    Remarked,
    /// Every packet arrives marked, whatever is sent.
    AllMarked,
    /// Packets that are ECN-capable do not arrive.
    Dropped,
}

impl EcnFault {
    /// It in words.
    pub const fn words(self) -> &'static str {
        match self {
            EcnFault::Untold => "the peer does not say which packets were marked",
            EcnFault::Bleached => "the path clears the ECN field",
            EcnFault::Remarked => "the path changes the ECN field to another codepoint",
            EcnFault::AllMarked => "every packet arrives marked",
            EcnFault::Dropped => "the path drops ECN-capable packets",
        }
    }
}

/// What an algorithm lacks on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lack {
    /// Marks that can be relied on.
    Ecn(EcnFault),
    /// Telemetry of the hops.
    Telemetry,
}

impl Lack {
    /// It in words.
    pub const fn words(self) -> &'static str {
        match self {
            Lack::Ecn(fault) => fault.words(),
            Lack::Telemetry => "no hop writes telemetry",
        }
    }
}

/// How far the ECN field of one codepoint is known to survive the path (states as in RFC 9000, appendix A.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnPath {
    /// Nothing was sent with it, or nothing is known of what was.
    #[default]
    Unknown,
    /// It is being found out.
    Testing,
    /// It arrives as it was sent, or marked.
    Capable,
    /// It does not.
    Failed(EcnFault),
}

impl EcnPath {
    /// In a word.
    pub const fn word(self) -> &'static str {
        match self {
            EcnPath::Unknown => "unknown",
            EcnPath::Testing => "testing",
            EcnPath::Capable => "capable",
            EcnPath::Failed(EcnFault::Untold) => "untold",
            EcnPath::Failed(EcnFault::Bleached) => "bleached",
            EcnPath::Failed(EcnFault::Remarked) => "remarked",
            EcnPath::Failed(EcnFault::AllMarked) => "all-marked",
            EcnPath::Failed(EcnFault::Dropped) => "dropped",
        }
    }
}

/// What is known of the signals on a path, in the direction away from this end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathCapability {
    /// ECT(0).
    pub ect0: EcnPath,
    /// ECT(1).
    pub ect1: EcnPath,
    /// Whether packets were seen marked at all.
    pub marks: Found,
    /// Whether packets of L4S were seen marked while the queue was all but empty.
    pub l4s: Found,
    /// Whether hops write telemetry.
    pub telemetry: Found,
}

impl PathCapability {
    /// Why an algorithm cannot work here: `None` if it can, as far as is known.
    pub fn lacks(&self, needs: &Needs) -> Option<Lack> {
        let marks = match needs.marks {
            Marks::Optional => EcnPath::Unknown,
            Marks::Step => self.ect0,
            Marks::L4s => self.ect1,
        };
        match marks {
            EcnPath::Failed(fault) => Some(Lack::Ecn(fault)),
            _ if needs.telemetry && self.telemetry == Found::No => Some(Lack::Telemetry),
            _ => None,
        }
    }
}

impl fmt::Display for PathCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ect0={} ect1={} marks={} l4s={} telemetry={}",
            self.ect0.word(),
            self.ect1.word(),
            self.marks.word(),
            self.l4s.word(),
            self.telemetry.word()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_need_looks_at_its_own_signal() {
        let bleached = EcnPath::Failed(EcnFault::Bleached);
        let path = PathCapability { ect0: bleached, ect1: EcnPath::Testing, ..PathCapability::default() };
        let marks = |marks| path.lacks(&Needs { marks, telemetry: false }).map(Lack::words);
        assert_eq!(marks(Marks::Optional), None);
        assert_eq!(marks(Marks::Step), Some("the path clears the ECN field"));
        assert_eq!(marks(Marks::L4s), None);
        let telemetry = Needs { marks: Marks::Optional, telemetry: true };
        assert_eq!(path.lacks(&telemetry), None, "nothing is known yet");
        let none = PathCapability { telemetry: Found::No, ..path };
        assert_eq!(none.lacks(&telemetry), Some(Lack::Telemetry));
        assert_eq!(none.to_string(), "ect0=bleached ect1=testing marks=unknown l4s=unknown telemetry=no");
    }
}
