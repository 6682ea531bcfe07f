//! The hot loops whose instructions are counted: both ends in one thread, joined in memory, in virtual time and with fixed
//! seeds, so that nearly the same instructions run each time. `cargo xtask counts` runs each loop under callgrind and compares.
//!
//! Without arguments it lists the loops; `longhaul-counts LOOP [UNITS]` runs one and says how many units were counted.

mod loops;
mod pair;
mod region;
mod streams;

use anyhow::{Context, Result};
use loops::LOOPS;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(name) = args.first() else {
        for l in LOOPS {
            println!("{} {}", l.name, l.unit);
        }
        return Ok(());
    };
    let l = LOOPS.iter().find(|l| l.name == name);
    let l = l.with_context(|| format!("no loop `{name}`; without arguments, the program lists them"))?;
    let units = match args.get(1) {
        Some(text) => text.parse().with_context(|| format!("`{text}` is no number of units"))?,
        None => l.units,
    };
    let counted = (l.run)(units)?;
    println!("units {counted}");
    println!("features {}", features().join(" "));
    Ok(())
}

/// The kind of processor, and what it shows of what ciphers, checksums and copies choose their code by. valgrind shows less than there is.
fn features() -> Vec<&'static str> {
    let mut shown = vec![std::env::consts::ARCH];
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! look {
            ($($name:tt)*) => { $(if std::is_x86_feature_detected!($name) { shown.push($name); })* };
        }
        look!("sse4.2" "avx" "avx2" "aes" "pclmulqdq" "bmi2" "adx" "vaes" "vpclmulqdq" "avx512f");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! look {
            ($($name:tt)*) => { $(if std::arch::is_aarch64_feature_detected!($name) { shown.push($name); })* };
        }
        look!("neon" "aes" "pmull" "crc" "sha2" "sha3");
    }
    shown
}
