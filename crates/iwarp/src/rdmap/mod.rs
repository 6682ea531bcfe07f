//! RDMAP, the remote direct memory access protocol: operations (RFC 5040; RFC 7306).

pub mod messages;
pub mod terminate;

use terminate::Cause;

/// The version that goes with RFC 5040 (section 4.1).
pub const VERSION: u8 = 1;

/// What a message does (RFC 5040, section 4.1; RFC 7306, section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opcode {
    /// Puts bytes into a buffer of the receiver.
    Write,
    /// Asks for bytes.
    ReadRequest,
    /// Brings them.
    ReadResponse,
    /// Fills the receiver's next receive.
    Send {
        /// Asks for the receiver's attention.
        solicited: bool,
        /// Makes a key of the receiver void.
        invalidate: bool,
    },
    /// Ends the connection and says why.
    Terminate,
    /// Eight bytes that consume a receive.
    Immediate {
        /// Asks for the receiver's attention.
        solicited: bool,
    },
    /// Asks for an atomic operation.
    AtomicRequest,
    /// Brings what was there before.
    AtomicResponse,
}

/// Control field of a write.
pub(crate) const WRITE: u8 = Opcode::Write.control();
/// Control fields of sends.
pub(crate) const SEND: u8 = Opcode::Send { solicited: false, invalidate: false }.control();
pub(crate) const SEND_SOLICITED: u8 = Opcode::Send { solicited: true, invalidate: false }.control();

impl Opcode {
    /// The control field with this operation.
    pub const fn control(self) -> u8 {
        let code = match self {
            Opcode::Write => 0,
            Opcode::ReadRequest => 1,
            Opcode::ReadResponse => 2,
            Opcode::Send { solicited: false, invalidate: false } => 3,
            Opcode::Send { solicited: false, invalidate: true } => 4,
            Opcode::Send { solicited: true, invalidate: false } => 5,
            Opcode::Send { solicited: true, invalidate: true } => 6,
            Opcode::Terminate => 7,
            Opcode::Immediate { solicited: false } => 8,
            Opcode::Immediate { solicited: true } => 9,
            Opcode::AtomicRequest => 10,
            Opcode::AtomicResponse => 11,
        };
        VERSION << 6 | code
    }

    /// Reads a control field. Its reserved bits are ignored (RFC 5040, section 4.1).
    ///
    /// # Errors
    /// [`terminate::VERSION`], [`terminate::OPCODE`].
    pub const fn parse(control: u8) -> Result<Opcode, Cause> {
        if control >> 6 != VERSION {
            return Err(terminate::VERSION);
        }
        Ok(match control & 0x0f {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            n @ 3..=6 => Opcode::Send { solicited: n > 4, invalidate: n % 2 == 0 },
            7 => Opcode::Terminate,
            n @ 8..=9 => Opcode::Immediate { solicited: n == 9 },
            10 => Opcode::AtomicRequest,
            11 => Opcode::AtomicResponse,
            _ => return Err(terminate::OPCODE),
        })
    }

    /// The queue of its messages; `None` when they name their buffer.
    pub const fn queue(self) -> Option<u32> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::Send { .. } | Opcode::Immediate { .. } => Some(crate::ddp::QN_SEND),
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(crate::ddp::QN_REQUEST),
            Opcode::Terminate => Some(crate::ddp::QN_TERMINATE),
            Opcode::AtomicResponse => Some(crate::ddp::QN_ATOMIC),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_control_field_round_trips() {
        let mut known = 0;
        for control in 0..=255u8 {
            match Opcode::parse(control) {
                Ok(op) => {
                    assert_eq!(op.control(), control & !0x30, "reserved bits are ignored");
                    known += 1;
                }
                Err(e) if control >> 6 == VERSION => {
                    assert_eq!((e, control & 0x0f > 11), (terminate::OPCODE, true))
                }
                Err(e) => assert_eq!(e, terminate::VERSION),
            }
        }
        assert_eq!(known, 4 * 12);
    }
}
