//! Files that outlive a process, and may be torn, edited or somebody else's: the journal of a transfer, known hosts,
//! authorized keys, one-time tokens. Nothing panics, nothing is believed that is not there, and what is written is
//! read back.
//!
//! Byte 0 of the input chooses the file.

#![no_main]

mod scratch;

use lhio::identity::{AuthorizedKeys, Host, HostCheck, PrivateKey, PublicKey, StateFolder};
use libfuzzer_sys::fuzz_target;
use mover::journal::{Found, Identity, Journal};
use mover::proto::Meta;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::OnceLock;

/// What is transferred: 10 chunks of 256 KiB.
const CHUNKS: u64 = 10;
/// log2 of a chunk's bytes.
const CHUNK_LOG2: u8 = 18;
/// Bytes of a header of a journal, and of a record.
const HEADER: usize = 77;
const RECORD: usize = 48;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 4 {
        0 => journal(choice >> 2, rest),
        1 => known_hosts(rest),
        2 => authorized_keys(rest),
        _ => tokens(rest),
    }
});

fn anonymous(contents: &[u8]) -> File {
    let fd = rustix::fs::memfd_create("journal", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let mut file = File::from(fd);
    file.write_all(contents).and_then(|()| file.rewind()).expect("memory");
    file
}

/// Byte by byte what a journal with these records says; the sums are right where the fuzzer wants it.
fn journal(how: u8, body: &[u8]) {
    let meta = Meta { mode: 0o644, secs: 5, nanos: 6 };
    let id = Identity::new(
        CHUNKS << CHUNK_LOG2,
        &meta,
        CHUNK_LOG2,
        std::slice::from_ref(&(0..CHUNKS << CHUNK_LOG2)),
    );
    let mut contents = Vec::new();
    if how & 1 == 0 {
        // A genuine header: an empty journal is opened.
        let mut fresh = anonymous(&[]);
        Journal::open(fresh.try_clone().expect("a handle"), &id).expect("memory");
        fresh.rewind().and_then(|()| fresh.read_to_end(&mut contents)).expect("memory");
        assert_eq!(contents.len(), HEADER);
    }
    if how & 2 == 0 {
        contents.extend_from_slice(body);
    } else {
        // Records with sums that fit.
        for r in body.chunks_exact(RECORD - 8) {
            contents.extend_from_slice(r);
            contents.extend_from_slice(&blake3::hash(r).as_bytes()[..8]);
        }
    }
    let mut file = anonymous(&contents);
    let (mut j, found) = Journal::open(file.try_clone().expect("a handle"), &id).expect("memory");
    assert!(found.chunks.keys().all(|c| *c < CHUNKS), "{found:?}");
    assert!(found.chunks.is_empty() || found.same_source && !found.other_source);
    for (chunk, digest) in &found.chunks {
        let mut record = chunk.to_be_bytes().to_vec();
        record.extend_from_slice(digest);
        let stands = contents[HEADER..].chunks_exact(RECORD).any(|r| r[..RECORD - 8] == record);
        assert!(stands, "chunk {chunk} is believed, and no record says so");
    }
    // What is noted now is found the next time, and nothing else is lost.
    j.append(&[(7, [7; 32])]).expect("memory");
    drop(j);
    file.rewind().expect("memory");
    let again: Found = Journal::open(file, &id).expect("memory").1;
    let mut expected = found.chunks;
    expected.insert(7, [7; 32]);
    assert_eq!(again.chunks, expected);
}

/// The folder of this process's files.
fn state() -> &'static StateFolder {
    static STATE: OnceLock<StateFolder> = OnceLock::new();
    STATE.get_or_init(|| StateFolder::open(scratch::folder()).expect("a folder"))
}

fn write(path: &Path, contents: &[u8]) {
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut f| f.write_all(contents)).expect("memory");
}

fn key(n: u8) -> PublicKey {
    PrivateKey::from_seed(&[n; 32]).expect("a seed").public()
}

fn known_hosts(contents: &[u8]) {
    let file = state().path().join("known_hosts");
    write(&file, contents);
    let hosts = state().known_hosts();
    let first = contents.split(|b| b.is_ascii_whitespace()).next().unwrap_or_default();
    let named = core::str::from_utf8(first).ok().and_then(|name| Host::parse(name).ok());
    for host in named.into_iter().chain([Host::parse("host").expect("a name")]) {
        assert_eq!(Host::parse(&host.to_string()).expect("shown as it is read").name(), host.name());
        match hosts.check(&host, key(1)) {
            Ok(HostCheck::Unknown) => {
                hosts.add(&host, key(1)).expect("memory");
                assert_eq!(hosts.check(&host, key(1)).expect("read before"), HostCheck::Known);
                let other = hosts.check(&host, key(2)).expect("read before");
                assert!(matches!(other, HostCheck::Changed(c) if c.known == key(1)));
            }
            Ok(HostCheck::Known) => {
                let shown = key(1).to_string();
                let words: Vec<&str> = shown.split(' ').collect();
                let text = String::from_utf8_lossy(contents);
                assert!(text.contains(words[1]) || host.name() == "host", "a key that is not there is known");
            }
            Ok(HostCheck::Changed(c)) => assert!(c.known != key(1) && c.line > 0),
            Err(e) => assert!(!e.to_string().is_empty()),
        }
    }
}

fn authorized_keys(contents: &[u8]) {
    let text = String::from_utf8_lossy(contents);
    let keys = AuthorizedKeys::parse(&text);
    assert!(keys.iter().count() + keys.ignored().len() <= text.lines().count());
    for (key, comment) in keys.iter() {
        assert!(keys.contains(key));
        // Written out again, the line lets the same key in, and that only.
        let line = AuthorizedKeys::parse(&format!("{key} {comment}"));
        assert_eq!(line.iter().map(|(k, _)| *k).collect::<Vec<_>>(), [*key]);
    }
}

fn tokens(contents: &[u8]) {
    let tokens = state().tokens().expect("a folder");
    let folder = state().path().join("tokens");
    let name: String = key(1).0.iter().map(|b| format!("{b:02x}")).collect();
    write(&folder.join(&name), contents);
    let listed = tokens.list(1_000).expect("a folder");
    assert!(listed.iter().all(|(k, expires)| *k == key(1) && *expires >= 1_000));
    // What is listed can be used once; what is not, never.
    assert_eq!(tokens.redeem(&key(1), 1_000).is_ok(), listed.len() == 1);
    assert!(tokens.redeem(&key(1), 1_000).is_err());
    let _ = fs::remove_file(folder.join(&name));
}
