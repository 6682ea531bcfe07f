//! Compares the file that a policy was read from with the policy in force.

use admin::process_state::hash;
use policy::MAX_FILE;
use std::io::Read as _;
use std::path::Path;

/// How a policy's file compares with the policy in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It says the same.
    Same,
    /// It says something else.
    Differs,
    /// It is not there any more.
    Gone,
    /// It cannot be read here.
    Unreadable,
}

impl FileState {
    /// For programs.
    pub const fn word(self) -> &'static str {
        match self {
            FileState::Same => "same",
            FileState::Differs => "differs",
            FileState::Gone => "gone",
            FileState::Unreadable => "unreadable",
        }
    }

    /// For people; nothing where all is as it should be.
    pub const fn text(self) -> Option<&'static str> {
        match self {
            FileState::Same => None,
            FileState::Differs => Some("the file has changed since; its earlier contents are in force"),
            FileState::Gone => Some("the file is gone; its earlier contents are in force"),
            FileState::Unreadable => Some("the file is not readable here, and may have changed since"),
        }
    }
}

/// Compares a file with the hash of what is in force; `None` where that is from no file.
pub fn compare(path: &str, in_force: &str) -> Option<FileState> {
    if path.is_empty() {
        return None;
    }
    Some(match read(Path::new(path)) {
        Ok(text) if hash(&text) == in_force => FileState::Same,
        Ok(_) => FileState::Differs,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => FileState::Gone,
        Err(_) => FileState::Unreadable,
    })
}

/// The bytes of a file, as many as a policy may have and one. What another process names may be anything: only files are opened.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    std::fs::File::open(path)?.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_file_is_compared_with_the_policy_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.toml");
        let path = file.to_str().unwrap();
        assert_eq!(compare("", "abc"), None);
        assert_eq!(compare(path, "abc"), Some(FileState::Gone));
        std::fs::write(&file, "one").unwrap();
        assert_eq!(compare(path, &hash(b"one")), Some(FileState::Same));
        assert_eq!(compare(path, &hash(b"two")), Some(FileState::Differs));
        assert_eq!(compare(dir.path().to_str().unwrap(), "abc"), Some(FileState::Unreadable));
    }
}
