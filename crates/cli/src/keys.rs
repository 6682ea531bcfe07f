//! `longhaul keys`.

use crate::args::{ClusterKeys, Keys};
use crate::exit::{Failure, Outcome};
use crate::setup::LocalIdentity;
use lhio::clock::WallTime;
use lhio::identity::AuthorizedKeys;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use transport::crypto::PublicKey;

/// Bytes of key text that are read.
const MAX_TEXT: u64 = 1 << 20;

/// Runs one of the commands.
pub fn run(k: &Keys) -> Outcome<()> {
    if let Keys::Cluster(ClusterKeys::New) = k {
        let key = engine::ClusterKey::generate().map_err(Failure::system)?;
        out_line!("{}", key.to_line().trim_end());
        return Ok(());
    }
    let me = LocalIdentity::load()?;
    let key = me.identity.public_key();
    match k {
        Keys::Show => out_line!("{key} {}", comment()),
        Keys::Fingerprint => out_line!("{}", key.fingerprint()),
        Keys::Token { lifetime, count } => {
            for _ in 0..*count {
                out_line!("{}", *me.issue_token(*lifetime)?.to_text());
            }
        }
        Keys::Authorize { file } => return authorize(&me, file),
        Keys::Cluster(_) => {}
        Keys::List => {
            out_line!("folder       {}", me.state.path().display());
            out_line!("this machine {}", key.fingerprint());
            for (k, comment) in me.state.authorized_keys()?.iter() {
                out_line!("may connect  {} {comment}", PublicKey::from_bytes(k.0).fingerprint());
            }
            let now = WallTime::now().unix_secs();
            for (k, until) in me.state.tokens()?.list(now)? {
                let print = PublicKey::from_bytes(k.0).fingerprint();
                out_line!("may connect  {print} once, with a token that {}", validity(until, now));
            }
            let known = me.state.path().join("known_hosts");
            if let Ok(text) = std::fs::read_to_string(&known) {
                for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
                    out_line!("known host   {line}");
                }
            }
        }
    }
    Ok(())
}

/// For how long a token can be used, in Unix time; its last second is included.
fn validity(until: u64, now: u64) -> String {
    match until.checked_sub(now) {
        None => "has expired".to_owned(),
        Some(0) => "expires in less than a second".to_owned(),
        Some(left) => format!("expires in {left} s"),
    }
}

/// USER@HOST, as far as it is known: only for people.
fn comment() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match std::env::var("USER") {
        Ok(user) if !user.is_empty() => format!("{user}@{host}"),
        _ => host,
    }
}

/// Adds the keys of a file that may not connect yet.
fn authorize(me: &LocalIdentity, file: &Path) -> Outcome<()> {
    let fail = |e: std::io::Error| {
        Failure::usage(format!(
            "cannot read keys from {}: {e}; try a file with the output \
             of `longhaul keys show`",
            file.display()
        ))
    };
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(MAX_TEXT).read_to_string(&mut text).map_err(fail)?;
    } else {
        let f = std::fs::File::open(file).map_err(fail)?;
        f.take(MAX_TEXT).read_to_string(&mut text).map_err(fail)?;
    }
    let new = AuthorizedKeys::parse(&text);
    if let Some((line, why)) = new.ignored().first() {
        let text = format!(
            "cannot add the keys in {}: line {line}: {why}; nothing was added; try again without that \
             line",
            file.display()
        );
        return Err(Failure::usage(text));
    }
    let old = me.state.authorized_keys()?;
    let path = me.state.path().join("authorized_keys");
    let fail = |e: std::io::Error| {
        Failure::system(format!(
            "cannot add to {}: {e}; try to make it writable for this \
             user",
            path.display()
        ))
    };
    let before = std::fs::read(&path).unwrap_or_default();
    let mut out = std::fs::File::options().append(true).create(true).mode(0o600).open(&path).map_err(fail)?;
    // An editor may have left the last line without an end.
    let mut lines = if before.last().is_some_and(|b| *b != b'\n') { "\n".to_owned() } else { String::new() };
    let mut added = 0;
    for (key, comment) in new.iter().filter(|(k, _)| !old.contains(k)) {
        lines.push_str(&format!("{key} {comment}\n"));
        added += 1;
    }
    out.write_all(lines.as_bytes()).and_then(|()| out.sync_data()).map_err(fail)?;
    out_line!("added {added} keys to {}; running servers admit them from now on", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_tokens_are_listed_as_expired() {
        assert_eq!(validity(100, 99), "expires in 1 s");
        assert_eq!(validity(100, 100), "expires in less than a second");
        for now in [101, u64::MAX] {
            assert_eq!(validity(100, now), "has expired");
        }
    }
}
