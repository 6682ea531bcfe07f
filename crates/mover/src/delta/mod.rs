//! Deltas: of a large file that exists at the destination and differs, only what the destination does not have is sent.
//!
//! Both ends cut their file by content (FastCDC), so that bytes that moved are cut at the same places, and tell the pieces
//! apart by their BLAKE3. The sink lists the pieces of its file, the source says which of its own are among them
//! ([`Copied`]), and the sink copies those into the new file. Everything is verified by the chunk hashes of the new file
//! afterwards, as if it had arrived, so that a wrong list or a wrong copy costs time and no more.

mod cutter;
mod matcher;
mod plan;

pub(crate) use cutter::Cutter;
pub(crate) use matcher::Listing;
pub(crate) use plan::Plan;

/// First half of a piece's BLAKE3.
pub type Key = [u8; 16];

/// Smaller files are sent whole: listing them costs as much.
pub(crate) const MIN_FILE: u64 = 1 << 20;
/// Larger files are sent whole: the lists of their pieces would take too much memory.
pub(crate) const MAX_FILE: u64 = 1 << 42;
/// Smallest aim for the length of a piece, and largest: what the library can do.
const MIN_AIM: usize = 2 << 10;
const MAX_AIM: usize = 4 << 20;
/// log2 of the number of pieces at which their length grows with the file and no more with its square root.
const AIM_PIECES_LOG2: u32 = 20;
/// Pieces of any file that are listed, beside twice what its size leads to.
const MORE_PIECES: u64 = 1024;

/// A piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u32,
    /// Of its contents.
    pub key: Key,
}

/// A piece of the sink's file as it is listed: pieces follow one another, so that none can overlap another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Bytes between the end of the piece before and this one: a hole.
    pub gap: u64,
    /// Length in bytes, at least 1 and at most [`MAX_PIECE`].
    pub len: u32,
    /// First half of its BLAKE3.
    pub key: Key,
}

/// Longest piece in bytes.
pub const MAX_PIECE: u32 = 4 * MAX_AIM as u32;

/// A part of the new file that is in the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// First byte in the new file.
    pub at: u64,
    /// First byte in the old file.
    pub from: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
}

impl Copied {
    /// First byte behind it in the new file.
    pub(crate) fn end(&self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

/// Length to aim for when files are cut of which the new one has `size` bytes: about its square root, so that the list is about
/// as short as what is sent around one change.
pub(crate) fn aim(size: u64) -> usize {
    let root = 1u64 << (size.max(1).ilog2() / 2);
    let share = (size >> AIM_PIECES_LOG2).next_power_of_two();
    usize::try_from(root.max(share)).unwrap_or(MAX_AIM).clamp(MIN_AIM, MAX_AIM)
}

/// Pieces that are listed at most, and that are copied at most. What is behind them is sent.
pub(crate) fn most_pieces(size: u64) -> u64 {
    size.div_ceil(aim(size) as u64) * 2 + MORE_PIECES
}

/// Whether a file of this size may be sent as a delta at all.
pub(crate) fn fits(size: u64) -> bool {
    (MIN_FILE..=MAX_FILE).contains(&size)
}

#[cfg(test)]
mod tests;
