//! Tests of keys and lists in temporary folders.

use super::*;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

fn folder() -> (tempfile::TempDir, StateFolder) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateFolder::open(dir.path().join("a/b")).unwrap();
    (dir, state)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn environment_selects_the_state_folder() {
    let with = |vars: &[(&str, &str)]| {
        choose(|n| vars.iter().find(|(k, _)| *k == n).map(|(_, v)| OsString::from(v)))
    };
    let (home, xdg) = (("HOME", "/h"), ("XDG_CONFIG_HOME", "/x"));
    assert_eq!(with(&[home, xdg, ("LONGHAUL_HOME", "/l")]), Some("/l".into()));
    assert_eq!(with(&[home, xdg, ("LONGHAUL_HOME", "")]), Some("/x/longhaul".into()));
    assert_eq!(with(&[home, ("XDG_CONFIG_HOME", "relative")]), Some("/h/.config/longhaul".into()));
    assert_eq!(with(&[]), None);
}

#[test]
fn host_key_is_created_once_with_private_mode() {
    let (_dir, state) = folder();
    let key = state.host_key().unwrap();
    assert_eq!(state.host_key().unwrap().seed(), key.seed());
    let path = state.path().join("host_key");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(state.path()).unwrap().mode() & 0o777, 0o700);
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 1, "no temporary files stay");
    assert!(fs::read_to_string(&path).unwrap().starts_with("longhaul-ed25519-private "));
}

#[test]
fn concurrent_first_starts_share_one_host_key() {
    for _ in 0..20 {
        let (_dir, state) = folder();
        let keys: Vec<_> = std::thread::scope(|s| {
            let all: Vec<_> = (0..8).map(|_| s.spawn(|| state.host_key().unwrap().public())).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|k| *k == keys[0]));
    }
}

#[test]
fn key_readable_by_others_is_refused_with_a_remedy() {
    let (_dir, state) = folder();
    state.host_key().unwrap();
    let path = state.path().join("host_key");
    chmod(&path, 0o640);
    let e = state.host_key().unwrap_err();
    assert!(matches!(e, IdentityError::OpenToOthers { mode: 0o640, .. }));
    assert!(e.to_string().contains(&format!("chmod 600 {}", path.display())), "{e}");
    chmod(&path, 0o400);
    state.host_key().unwrap();
}

#[test]
fn state_folder_writable_by_others_is_refused() {
    let (dir, state) = folder();
    let (key, host) = (PublicKey([1; 32]), Host::parse("h").unwrap());
    state.host_key().unwrap();
    state.known_hosts().add(&host, key).unwrap();
    let tokens = state.tokens().unwrap();
    tokens.issue(&key, 100, 200).unwrap();
    for open in [state.path().to_owned(), dir.path().join("a")] {
        chmod(&open, 0o777);
        let refused = |e: IdentityError| {
            let text = e.to_string();
            assert!(text.contains(&format!("`chmod go-w {}`", open.display())), "{text}");
        };
        refused(StateFolder::open(state.path()).unwrap_err());
        refused(state.host_key().unwrap_err());
        refused(state.known_hosts().lookup(&host).unwrap_err());
        refused(state.authorized_keys().unwrap_err());
        refused(state.known_paths().recall([192, 0, 2, 1].into(), clock::WallTime::now()).unwrap_err());
        refused(tokens.redeem(&key, 150).unwrap_err());
        chmod(&open, 0o700);
    }
    chmod(&state.path().join("tokens"), 0o777);
    assert!(matches!(tokens.redeem(&key, 150), Err(IdentityError::WritableByOthers { .. })));
    chmod(&state.path().join("tokens"), 0o700);
    tokens.redeem(&key, 150).unwrap();
}

#[test]
fn damaged_key_is_never_replaced() {
    let (_dir, state) = folder();
    let path = state.path().join("host_key");
    for text in ["", "garbage", "longhaul-ed25519-private AAAA", "longhaul-ed25519-private", "\u{0}\u{ff}"] {
        fs::write(&path, text).unwrap();
        chmod(&path, 0o600);
        assert!(matches!(state.host_key(), Err(IdentityError::Line { line: 1, .. })), "{text:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::write(&path, vec![b'a'; 10_000]).unwrap();
    assert!(matches!(state.host_key(), Err(IdentityError::TooLarge { .. })));
}

#[test]
fn public_key_matches_rfc_8032() {
    // RFC 8032, section 7.1, test 1.
    let hex = |s: &str| -> [u8; 32] {
        core::array::from_fn(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap())
    };
    let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
    let public = hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
    let key = PrivateKey::from_seed(&seed).unwrap();
    assert_eq!(key.public(), PublicKey(public));
    assert_eq!(PublicKey::parse(&format!("{} me@here", key.public())), Some(key.public()));
    assert!(!format!("{key:?}").contains(&BASE64.encode(seed)));
}

#[test]
fn hosts_parse_in_every_usual_form() {
    for (text, name, port, shown) in [
        ("Example.ORG", "example.org", None, "example.org"),
        ("example.org:4433", "example.org", Some(4433), "[example.org]:4433"),
        ("[example.org]:4433", "example.org", Some(4433), "[example.org]:4433"),
        ("[::1]:1", "::1", Some(1), "[::1]:1"),
        ("fe80::1", "fe80::1", None, "fe80::1"),
        ("[fe80::1]", "fe80::1", None, "fe80::1"),
        // Found by fuzzing: shown without brackets, these were read as nothing or as another host, and a line of
        // known_hosts was not found again.
        ("[fe80::1%eth0]", "fe80::1%eth0", None, "[fe80::1%eth0]"),
        ("[a:1]", "a:1", None, "[a:1]"),
        ("[:\u{742}]", ":\u{742}", None, "[:\u{742}]"),
    ] {
        let h = Host::parse(text).unwrap();
        assert_eq!((h.name(), h.port(), h.to_string().as_str()), (name, port, shown));
        assert_eq!(Host::parse(&h.to_string()).unwrap(), h);
    }
    for bad in ["", ":1", "a b", "a\nb", "#a", "a:", "a:x", "a:65536", "[a", "[a]x", "a:+1", "*", "a,b"] {
        assert!(matches!(Host::parse(bad), Err(IdentityError::BadHost(_))), "{bad:?}");
    }
    // 255 bytes that become 381 in lower case.
    let long = format!("{}a", "\u{130}".repeat(127));
    assert!(matches!(Host::parse(&long), Err(IdentityError::BadHost(_))));
}

#[test]
fn known_hosts_distinguishes_known_unknown_and_changed() {
    let (_dir, state) = folder();
    let known = state.known_hosts();
    let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
    let host = Host::parse("example.org:4433").unwrap();
    assert_eq!(known.check(&host, a).unwrap(), HostCheck::Unknown);
    let path = state.path().join("known_hosts");
    fs::write(&path, "# hand-written, last line without an end\nother longhaul-ed25519 x").unwrap();
    known.add(&host, a).unwrap();
    assert_eq!(known.check(&host, a).unwrap(), HostCheck::Known);
    let HostCheck::Changed(changed) = known.check(&host, b).unwrap() else { panic!("not noticed") };
    assert_eq!((changed.line, changed.known, changed.presented), (3, a, b));
    let text = changed.to_string();
    assert!(text.contains(&format!("delete line 3 of {}", path.display())), "{text}");
    // A damaged line matters only to the host it names.
    let other = Host::parse("other:1").unwrap();
    assert!(matches!(known.check(&other, a), Err(IdentityError::Line { line: 2, .. })));
    chmod(&path, 0o666);
    assert!(matches!(known.check(&host, a), Err(IdentityError::WritableByOthers { .. })));
    let before = fs::read(&path).unwrap();
    assert!(known.add(&Host::parse("new").unwrap(), a).is_err());
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn line_without_a_port_matches_ports_without_their_own() {
    let (_dir, state) = folder();
    let known = state.known_hosts();
    let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
    known.add(&Host::parse("h").unwrap(), a).unwrap();
    known.add(&Host::parse("h:2").unwrap(), b).unwrap();
    let check = |host: &str, key| known.check(&Host::parse(host).unwrap(), key).unwrap();
    assert_eq!(check("h", a), HostCheck::Known);
    assert_eq!(check("H:1", a), HostCheck::Known);
    assert_eq!(check("h:2", b), HostCheck::Known);
    assert!(matches!(check("h:2", a), HostCheck::Changed(_)));
    assert!(matches!(check("h", b), HostCheck::Changed(_)));
}

#[test]
fn authorised_keys_ignore_lines_with_unknown_options() {
    let (_dir, state) = folder();
    assert_eq!(state.authorized_keys().unwrap().iter().count(), 0);
    let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
    let text = format!(
        "# comment\n\n  {a}   alice at work\nfrom=\"10.0.0.1\" {b} bob\nssh-ed25519 AAAA x\nlonghaul-ed25519 short\n"
    );
    let path = state.path().join("authorized_keys");
    fs::write(&path, text).unwrap();
    chmod(&path, 0o644);
    let keys = state.authorized_keys().unwrap();
    assert!(keys.contains(&a) && !keys.contains(&b));
    assert_eq!(keys.iter().collect::<Vec<_>>(), [(&a, "alice at work")]);
    assert_eq!(keys.ignored().iter().map(|(n, _)| *n).collect::<Vec<_>>(), [4, 5, 6]);
    chmod(&path, 0o664);
    assert!(matches!(state.authorized_keys(), Err(IdentityError::WritableByOthers { .. })));
}

#[test]
fn token_is_redeemed_once() {
    let (_dir, state) = folder();
    let tokens = state.tokens().unwrap();
    let (key, other) = (PublicKey([7; 32]), PublicKey([8; 32]));
    tokens.issue(&key, 100, 200).unwrap();
    assert!(matches!(tokens.issue(&key, 100, 300), Err(IdentityError::File { .. })), "made twice");
    let file = fs::read_dir(state.path().join("tokens")).unwrap().next().unwrap().unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(matches!(tokens.redeem(&other, 150), Err(IdentityError::BadToken)));
    assert_eq!(tokens.list(150).unwrap(), [(key, 200)]);
    let won: usize = std::thread::scope(|s| {
        let all: Vec<_> = (0..8).map(|_| s.spawn(|| tokens.redeem(&key, 200).is_ok())).collect();
        all.into_iter().map(|t| usize::from(t.join().unwrap())).sum()
    });
    assert_eq!(won, 1);
    // Another process, later.
    let again = StateFolder::open(state.path()).unwrap().tokens().unwrap();
    assert!(matches!(again.redeem(&key, 150), Err(IdentityError::BadToken)));
}

#[test]
fn expired_or_exposed_tokens_are_rejected() {
    let (_dir, state) = folder();
    let tokens = state.tokens().unwrap();
    let key = PublicKey([0xab; 32]);
    tokens.issue(&key, 100, 200).unwrap();
    assert!(matches!(tokens.redeem(&key, 201), Err(IdentityError::BadToken)));
    assert!(tokens.list(0).unwrap().is_empty());
    tokens.issue(&key, 100, 200).unwrap();
    let path = state.path().join(format!("tokens/{}", "ab".repeat(32)));
    chmod(&path, 0o620);
    assert!(matches!(tokens.redeem(&key, 150), Err(IdentityError::OpenToOthers { .. })));
    // What does not say until when never lets in.
    fs::write(&path, "for ever\n").unwrap();
    chmod(&path, 0o600);
    assert!(matches!(tokens.redeem(&key, 150), Err(IdentityError::BadToken)));
}

#[test]
fn tokens_are_limited_and_expired_ones_are_removed() {
    let (_dir, state) = folder();
    let tokens = state.tokens().unwrap();
    for i in 0..MAX_TOKENS {
        let path = state.path().join(format!("tokens/{i:064x}"));
        fs::write(&path, "200\n").unwrap();
        chmod(&path, 0o600);
    }
    let key = PublicKey([1; 32]);
    assert!(matches!(tokens.issue(&key, 200, 300), Err(IdentityError::TooManyTokens { .. })));
    tokens.issue(&key, 201, 300).unwrap();
    assert_eq!(tokens.list(201).unwrap(), [(key, 300)]);
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_does_not_panic_and_hosts_round_trip(text in "(\\PC|[\\[\\]:#\n\t .0-9a-z]){0,80}") {
        if let Ok(host) = Host::parse(&text) {
            proptest::prop_assert_eq!(Host::parse(&host.to_string()).unwrap(), host);
        }
        let _ = PublicKey::parse(&text);
        let keys = AuthorizedKeys::parse(&text);
        proptest::prop_assert!(keys.iter().count() + keys.ignored().len() <= text.lines().count());
        let _ = AuthorizedKeys::parse(&format!("longhaul-ed25519 {text}"));
    }
}
