//! A stand-alone laboratory for tests and manual experiments:
//!
//! - `longhaul-lab-node up NAME TOPOLOGY` sets one up (a topology as JSON), prints `up`, and removes it when its
//!   standard input ends;
//! - `longhaul-lab-node clean` removes what laboratories of dead owners left behind;
//! - `longhaul-lab-node lab-emulator FOLDER` is the emulator that `up` starts.

use std::io::{Read, Write};

use longhaul_lab::{EMULATOR_ARGUMENT, Lab, TopologySpec, clean, emulator};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [EMULATOR_ARGUMENT, ..] => std::process::exit(emulator::main(&arguments[1..])),
        ["up", name, topology] => up(name, topology),
        ["clean"] => {
            clean().map_err(|error| error.to_string()).and_then(|names| print_line(&names.join("\n")))
        }
        _ => Err("usage: longhaul-lab-node up NAME TOPOLOGY | clean".to_owned()),
    };
    if let Err(error) = done {
        // If nobody reads the message, the exit code has to suffice.
        let _ = writeln!(std::io::stderr(), "{error}");
        std::process::exit(1);
    }
}

fn up(name: &str, topology: &str) -> Result<(), String> {
    let topology: TopologySpec = serde_json::from_str(topology).map_err(|error| error.to_string())?;
    let lab = Lab::up(name, &topology, 1).map_err(|error| error.to_string())?;
    print_line("up")?;
    // Until the end, whatever is said.
    std::io::stdin().read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
    let summary = lab.down().map_err(|error| error.to_string())?;
    print_line(&serde_json::to_string(&summary).map_err(|error| error.to_string())?)
}

fn print_line(text: &str) -> Result<(), String> {
    writeln!(std::io::stdout(), "{text}").map_err(|error| format!("cannot write to standard output: {error}"))
}
