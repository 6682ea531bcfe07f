//! Errors of local misuse and exhaustion. What a peer does wrong is a [`Violation`](crate::Violation).

/// A refused call. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The handle names nothing.
    #[error("no such {0}: it was destroyed or never created; use the handle its creation returned")]
    NotFound(&'static str),
    /// The object is in use.
    #[error("{0} is in use; wait until the work on it has completed and its users are destroyed")]
    Busy(&'static str),
    /// A table of [`Limits`](crate::Limits) is full.
    #[error("limit reached: {0}; free some or raise the limit")]
    Limit(&'static str),
    /// The queue holds as many work requests as it was created for.
    #[error("the queue is full; poll completions before posting more, or create it larger")]
    QueueFull,
    /// The completion queue has no room for the completion of one more work request.
    #[error("the completion queue is full; poll it before posting more, or create it larger")]
    CqFull,
    /// No region of the queue pair's protection domain has this local key.
    #[error("unknown local key; use the lkey of a region in the queue pair's protection domain")]
    BadKey,
    /// An offset or length outside of the region.
    #[error("the range lies outside of the memory region; check offset and length")]
    OutOfBounds,
    /// The region was not registered for this use.
    #[error("the region lacks the right for this; register it with the access it needs")]
    Access,
    /// The memory behind the region failed (a mapped file that was truncated, for instance).
    #[error("the memory behind the region failed; check the file or device it maps")]
    Fault,
    /// The message is longer than this operation allows.
    #[error("message of {len} bytes is longer than the {max} allowed; split it")]
    TooLong {
        /// Length asked for, in bytes.
        len: u64,
        /// Longest allowed, in bytes.
        max: u64,
    },
    /// The queue pair's state does not allow it.
    #[error("the queue pair's state does not allow this; move it to the right state first")]
    State,
    /// The service type or object does not offer it.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// An argument outside of its range.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
}

/// Why [`Adapter::gather`](crate::Adapter::gather) gave no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// The queue pair is gone, or the message was completed or flushed since: drop the segment.
    #[error("the message of this segment is no longer outstanding; drop the segment")]
    Stale,
    /// `out` is not as long as the segment, or the segment does not lie in its message.
    #[error("the buffer or range does not match the segment; pass exactly seg.len bytes")]
    Mismatch,
    /// The memory behind a region failed; the queue pair went to the error state.
    #[error("the memory behind a region failed; the queue pair is in error")]
    Fault,
}
