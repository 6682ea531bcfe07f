//! What is checked of a work request when it is posted.

use crate::Kind;
use crate::error::Error;
use crate::work::SendOp;

/// Bytes of an atomic operation's target and answer.
pub(crate) const ATOMIC_LEN: u64 = 8;

/// Checks that queue pairs of this kind offer `op`.
fn check_kind(op: SendOp, kind: Kind) -> Result<(), Error> {
    match op {
        SendOp::SendInvalidate { .. } | SendOp::LocalInvalidate { .. } if kind == Kind::Unreliable => {
            Err(Error::Unsupported("keys made void on an unreliable queue pair"))
        }
        SendOp::Bind(_) if kind != Kind::Reliable => Err(Error::Unsupported(
            "a work request that binds a window on this kind of queue pair; use bind_mw",
        )),
        SendOp::SendImm { .. } if kind == Kind::Ordered => {
            Err(Error::Unsupported("a send with immediate data on an ordered queue pair; use a write"))
        }
        _ => Ok(()),
    }
}

/// Checks the lengths of a work request.
pub(crate) fn check_len(op: SendOp, len: u64, kind: Kind, max_datagram: u32) -> Result<(), Error> {
    let max = match op {
        SendOp::Send | SendOp::SendImm { .. } if kind == Kind::Unreliable => u64::from(max_datagram),
        SendOp::Send | SendOp::SendImm { .. } => crate::MAX_SEND_LEN,
        SendOp::Read { .. } | SendOp::Atomic { .. } if kind == Kind::Unreliable => {
            return Err(Error::Unsupported("reads and atomic operations on an unreliable queue pair"));
        }
        SendOp::SendInvalidate { .. } => crate::MAX_SEND_LEN,
        SendOp::LocalInvalidate { .. } | SendOp::Bind(_) => 0,
        SendOp::Atomic { .. } if len != ATOMIC_LEN => {
            return Err(Error::Invalid("an atomic operation needs eight bytes for its answer"));
        }
        // RFC 5041, section 5.2: the length of a message is less than 2^32.
        _ if kind == Kind::Ordered => u64::from(u32::MAX),
        _ => crate::MAX_RDMA_LEN,
    };
    check_kind(op, kind)?;
    if let SendOp::Write { offset, .. }
    | SendOp::WriteImm { offset, .. }
    | SendOp::Read { offset, .. }
    | SendOp::Atomic { offset, .. } = op
        && offset.checked_add(len).is_none()
    {
        return Err(Error::OutOfBounds);
    }
    if len > max { Err(Error::TooLong { len, max }) } else { Ok(()) }
}
