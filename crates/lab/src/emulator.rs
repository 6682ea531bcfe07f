//! The process that emulates the network between the namespaces.

pub mod record;

/// The emulator's main program: what follows the hidden argument
/// ([`EMULATOR_ARGUMENT`](crate::EMULATOR_ARGUMENT)) is passed in, and the exit code comes back.
pub fn main(_args: &[String]) -> i32 {
    2
}
