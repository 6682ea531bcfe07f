//! Provides congestion control that the kernel lacks, by attaching shipped programs to it while a plan runs.

use super::tcp;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The headers that programs include.
const HEADERS: [kernel::Header<'static>; 2] =
    [("opencc.h", programs::HEADER), ("opencc_window.h", programs::WINDOW_HEADER)];

/// The attached programs, which are detached when this is dropped.
#[derive(Debug, Default)]
pub struct KernelPrograms {
    attached: Mutex<BTreeMap<String, Result<kernel::Attached, String>>>,
}

impl KernelPrograms {
    /// The name in `TCP_CONGESTION` of the congestion control that a plan calls `cc`: the same if the kernel has it,
    /// else the shipped program of that name, attached under a name that no other laboratory uses. Empty for the
    /// kernel's default.
    ///
    /// # Errors
    /// Why it is not available, as text; the same text each time.
    pub fn name(&self, cc: &str) -> Result<String, String> {
        let Err(why) = tcp::available(cc) else { return Ok(cc.to_owned()) };
        let Some(source) = programs::shipped::source(cc) else { return Err(why) };
        let mut all = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let attached = all.entry(cc.to_owned()).or_insert_with(|| {
            let words = "there is a program of this name, but it cannot be attached";
            attach(cc, source).map_err(|e| format!("{why}; {words}: {e}"))
        });
        attached.as_ref().map(|a| a.name().to_owned()).map_err(Clone::clone)
    }
}

fn attach(cc: &str, source: &str) -> Result<kernel::Attached, String> {
    kernel::check_support().map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let file = folder.path().join(format!("{cc}.c"));
    std::fs::write(&file, source).map_err(|e| format!("cannot write {}: {e}", file.display()))?;
    let object = kernel::build(&file, &HEADERS).map_err(|e| e.to_string())?;
    // Process numbers have at most 7 digits.
    let number = format!(".{}", std::process::id());
    let room = kernel::MAX_NAME.saturating_sub(number.len());
    let name: String = cc.replace('-', "_").chars().take(room).chain(number.chars()).collect();
    kernel::attach(&object, &name, &[]).map_err(|e| e.to_string())
}
