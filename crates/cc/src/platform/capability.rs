//! Which of the signals that algorithms need a path was found to carry.

use crate::registry::{Marks, Needs};
use core::fmt;

/// Whether a signal was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Found {
    /// Not tested, or too little was seen.
    #[default]
    Unknown,
    /// It is present.
    Yes,
    /// It is absent, or no longer present.
    No,
}

impl Found {
    /// Its name.
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
    /// The peer does not report it.
    Untold,
    /// It arrives cleared.
    Bleached,
    /// It arrives as the other ECN-capable codepoint.
    Remarked,
    /// Every packet arrives marked.
    AllMarked,
    /// ECN-capable packets do not arrive.
    Dropped,
}

impl EcnFault {
    /// Its description.
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

/// The signal that an algorithm lacks on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lack {
    /// Reliable marks.
    Ecn(EcnFault),
    /// Telemetry of hops.
    Telemetry,
}

impl Lack {
    /// Its description.
    pub const fn words(self) -> &'static str {
        match self {
            Lack::Ecn(fault) => fault.words(),
            Lack::Telemetry => "no hop writes telemetry",
        }
    }
}

/// The validation state of one ECN codepoint on a path (states as in RFC 9000, appendix A.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnPath {
    /// Not used yet, or nothing is known.
    #[default]
    Unknown,
    /// Being tested.
    Testing,
    /// It arrives as sent, or marked.
    Capable,
    /// It does not.
    Failed(EcnFault),
}

impl EcnPath {
    /// Its name.
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

/// The known signals of a path in the forward direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PathCapability {
    /// ECT(0).
    pub ect0: EcnPath,
    /// ECT(1).
    pub ect1: EcnPath,
    /// Whether marked packets were seen at all.
    pub marks: Found,
    /// Whether L4S packets were seen marked while the queue was almost empty.
    pub l4s: Found,
    /// Whether hops write telemetry.
    pub telemetry: Found,
}

impl PathCapability {
    /// The signal that an algorithm lacks here; `None` if it can work, as far as is known.
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
    fn each_need_is_checked_against_its_own_signal() {
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
