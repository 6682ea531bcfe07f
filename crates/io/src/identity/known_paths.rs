//! The file `known_paths`: rates of paths, kept from one run of a client to the next.

use super::{FileRole, IdentityError, MAX_FILE, open_strictly, read_text, sync_folder, temp_beside};
use crate::clock::WallTime;
use base::{Rate, Span};
use endpoint::{PATH_LIFETIME, Remembered};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

/// Paths kept at most: the latest.
const MAX_LINES: usize = 256;

/// The file of known paths: lines of `ADDRESS BITS_PER_SECOND MICROSECONDS UNIX_SECONDS [TRAIN_BYTES]` (rate, lowest round trip,
/// when, and the longest train that a short queue takes).
/// Nothing depends on it but how fast a transfer starts: a line that cannot be read counts as absent, and of two programs
/// that write at the same time one wins.
#[derive(Clone, Debug)]
pub struct KnownPaths {
    path: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    peer: IpAddr,
    path: Remembered,
    at: i64,
}

impl Line {
    fn parse(text: &str) -> Option<Line> {
        let mut words = text.split_ascii_whitespace();
        let peer = words.next()?.parse().ok()?;
        let rate = Rate::from_bits_per_sec(words.next()?.parse().ok()?);
        let rtt = Span::from_micros(words.next()?.parse().ok()?);
        let at = words.next()?.parse().ok()?;
        let train: Option<u64> = words.next().map(str::parse).transpose().ok()?;
        let sound = words.next().is_none() && rate > Rate::ZERO && !rtt.is_zero() && train != Some(0);
        sound.then_some(Line { peer, path: Remembered { rate, rtt, train }, at })
    }

    fn is_fresh(&self, now: WallTime) -> bool {
        let age = now.secs.saturating_sub(self.at);
        u64::try_from(age).is_ok_and(|age| Span::from_secs(age) <= PATH_LIFETIME)
    }
}

impl KnownPaths {
    pub(super) fn new(path: PathBuf) -> KnownPaths {
        KnownPaths { path }
    }

    fn read(&self) -> Result<Vec<Line>, IdentityError> {
        let Some(file) = open_strictly(&self.path, FileRole::Trust)? else { return Ok(Vec::new()) };
        let text = read_text(file, &self.path, MAX_FILE)?;
        Ok(text.lines().filter_map(Line::parse).collect())
    }

    /// The remembered rate of the path to `peer`, if it is recent.
    ///
    /// # Errors
    /// A file that cannot be read or that others may change.
    pub fn recall(&self, peer: IpAddr, now: WallTime) -> Result<Option<Remembered>, IdentityError> {
        let line = self.read()?.into_iter().rfind(|l| l.peer == peer.to_canonical());
        Ok(line.filter(|l| l.is_fresh(now)).map(|l| l.path))
    }

    /// Notes what the path to `peer` carried. Paths of this machine to itself are not worth it.
    ///
    /// # Errors
    /// A file that cannot be read, written, or that others may change.
    pub fn remember(&self, peer: IpAddr, path: Remembered, now: WallTime) -> Result<(), IdentityError> {
        let peer = peer.to_canonical();
        if peer.is_loopback() {
            return Ok(());
        }
        let mut lines = self.read()?;
        lines.retain(|l| l.peer != peer && l.is_fresh(now));
        lines.drain(..lines.len().saturating_sub(MAX_LINES - 1));
        lines.push(Line { peer, path, at: now.secs });
        let mut text = String::new();
        for l in lines {
            let (rate, rtt) = (l.path.rate.bits_per_sec(), l.path.rtt.as_micros());
            // Writing to a string cannot fail.
            let _ = write!(text, "{} {rate} {rtt} {}", l.peer, l.at);
            if let Some(train) = l.path.train {
                let _ = write!(text, " {train}");
            }
            text.push('\n');
        }
        let (temp, mut file) = temp_beside(&self.path)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temp, &self.path));
        if let Err(e) = written {
            let _ = fs::remove_file(&temp);
            return Err(IdentityError::file("write", &self.path, e));
        }
        sync_folder(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> WallTime {
        WallTime { secs, nanos: 0 }
    }

    #[test]
    fn paths_expire_after_an_hour_and_damaged_lines_are_skipped() {
        let folder = std::env::temp_dir().join(format!("longhaul-paths-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let known = KnownPaths::new(folder.join("known_paths"));
        let (a, b): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        let path =
            |mbit| Remembered { rate: Rate::from_mbit(mbit), rtt: Span::from_micros(70_123), train: None };
        assert_eq!(known.recall(a, at(0)).unwrap(), None);
        known.remember(a, path(900), at(1_000)).unwrap();
        known.remember(b, path(10), at(1_010)).unwrap();
        known.remember(a, path(950), at(1_020)).unwrap();
        known.remember("127.0.0.1".parse().unwrap(), path(1), at(1_020)).unwrap();
        assert_eq!(known.recall(a, at(4_620)).unwrap(), Some(path(950)));
        assert_eq!(known.recall(a, at(4_621)).unwrap(), None, "an hour");
        assert_eq!(known.recall(a, at(1_019)).unwrap(), None, "a clock that was set back");
        let text = fs::read_to_string(&known.path).unwrap();
        assert_eq!(text.lines().count(), 2);
        let damage = [
            "192.0.2.1",
            "192.0.2.1 -1 5 1020",
            "192.0.2.1 0 5 1020",
            "\0\u{fffd}",
            "192.0.2.1 1 1 1020 x",
            "192.0.2.1 1 1 1020 0",
            "192.0.2.1 1 1 1020 -5",
            "192.0.2.1 1 1 1020 5 5",
        ];
        fs::write(&known.path, format!("{}\n{text}", damage.join("\n"))).unwrap();
        assert_eq!(known.recall(b, at(1_100)).unwrap(), Some(path(10)));
        let shallow = Remembered { train: Some(6_000), ..path(50) };
        known.remember(b, shallow, at(1_101)).unwrap();
        assert_eq!(known.recall(b, at(1_102)).unwrap(), Some(shallow));
        assert!(fs::read_to_string(&known.path).unwrap().contains("2001:db8::1 50000000 70123 1101 6000\n"));
        // The latest are kept.
        for n in 0..=u8::MAX {
            known.remember(IpAddr::from([198, 51, 100, n]), path(5), at(1_100)).unwrap();
        }
        assert_eq!(fs::read_to_string(&known.path).unwrap().lines().count(), MAX_LINES);
        assert_eq!(known.recall(a, at(1_100)).unwrap(), None);
        fs::remove_dir_all(folder).expect("removed");
    }
}
