//! The process that emulates the network between the namespaces.
//!
//! It is a child process of the laboratory's owner and the same program with a hidden argument, so that its load can
//! be measured separately. Packets go from the device of one namespace through [`netem::Network`] to the device of
//! another; super-packets stay in one piece in memory while the model handles their segments one by one.

mod checksum;
mod control;
mod engine;
mod flows;
mod lateness;
pub mod packet;
pub mod record;
mod recorder;
mod session;
mod trace;
mod turn;

use std::io::Write as _;

pub use engine::MAX_MEMORY;
pub use flows::MAX_FLOWS;

pub(crate) use control::{Answer, MAX_LINE, Request};
pub(crate) use session::Setup;

/// The emulator's main program. `args` are the arguments after the hidden one
/// ([`EMULATOR_ARGUMENT`](crate::EMULATOR_ARGUMENT)): the laboratory's state folder. Returns the exit code.
pub fn main(args: &[String]) -> i32 {
    let [folder] = args else {
        print_error("the emulator is started by the laboratory, with its state folder as the only argument");
        return 2;
    };
    match session::run(std::path::Path::new(folder)) {
        Ok(()) => 0,
        Err(error) => {
            print_error(&error.to_string());
            1
        }
    }
}

/// Prints an error; if nobody reads it, the exit code has to suffice.
fn print_error(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", base::text::line(text));
}
