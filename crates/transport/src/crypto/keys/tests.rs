//! Tests of the key schedule, of key updates and of key limits.

use super::super::tls::DataSecrets;
use super::*;
use proptest::prelude::*;

fn hex(s: &str) -> Vec<u8> {
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn ends(suite: Suite) -> (KeyPair, KeyPair) {
    let secrets = DataSecrets { client: Secret::from_bytes([1; 32]), server: Secret::from_bytes([2; 32]) };
    (KeyPair::data(suite, 1472, &secrets, Side::Client), KeyPair::data(suite, 1472, &secrets, Side::Server))
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct Sent {
    lane: u32,
    pn: u64,
    phase: bool,
    generation: u64,
    tag: [u8; TAG_LEN],
    body: Vec<u8>,
    /// A packet of the receiver's that this one acknowledges.
    ack: Option<(u32, u64)>,
}

fn send(from: &mut KeyPair, lane: u32, pn: u64) -> Sent {
    let mut body = vec![pn as u8; 40];
    let (phase, generation) = (from.sealer().phase(), from.sealer().generation());
    let tag = from.seal(lane, pn, &[u8::from(phase)], &mut body).unwrap();
    Sent { lane, pn, phase, generation, tag, body, ack: None }
}

fn receive(to: &mut KeyPair, p: &Sent) -> Result<Opened, OpenError> {
    let mut body = p.body.clone();
    let opened = to.open(p.phase, p.lane, p.pn, &[u8::from(p.phase)], &p.tag, &mut body)?;
    assert_eq!(body, vec![p.pn as u8; 40]);
    Ok(opened)
}

/// Expected values computed with another implementation of RFC 5869 (Python's hmac module).
#[test]
fn schedule_vectors() {
    let secret = Secret::from_bytes(core::array::from_fn(|i| i as u8));
    let expand = |label, n: usize| {
        let mut out = vec![0; n];
        secret.expand(label, &mut out);
        out
    };
    assert_eq!(expand("lh key", 16), hex("ce295c1db8031bfac11f5ff94507e90e"));
    assert_eq!(expand("lh key", 32), hex("b7f0b97a30edc89ebe50dab0bdb5c9849cd7b8ef02c1a4fea614c7247247f13a"));
    assert_eq!(expand("lh iv", 16), hex("be7fae11db6bc45f30593f72b5091334"));
    assert_eq!(expand("lh hp", 16), hex("50d9d5b255cc79c30e4aecf179cd2d0a"));
    let next = hex("8195318a04a0bde146b7996bd8b62a870f2393cde6b8fe6dc85a5c4db2d9e3cd");
    assert_eq!(secret.next().0[..], next[..]);
}

#[test]
fn initial_secrets_come_from_the_identifier() {
    let prk = Secret::extract(INITIAL_SALT, &hex("8394c8f03e515708"));
    for (label, want) in [
        ("lh client in", "25a403cc43eeb4d26375e4a8a686f6954138fdd593f89eb10123da52e458035b"),
        ("lh server in", "d94f2945373ec9f00a3cbd483aa59df8ee5d5bccd3198ba8cac25a7961506fb9"),
    ] {
        let mut out = [0; 32];
        expand_label(&prk, label, &mut out);
        assert_eq!(out[..], hex(want)[..]);
    }
    let mut client = KeyPair::initial(b"abcdefgh", Side::Client);
    let mut server = KeyPair::initial(b"abcdefgh", Side::Server);
    assert_eq!(receive(&mut server, &send(&mut client, 0, 0)), Ok(Opened::Current));
    assert_eq!(receive(&mut client, &send(&mut server, 0, 0)), Ok(Opened::Current));
    let mut other = KeyPair::initial(b"abcdefgi", Side::Server);
    assert_eq!(receive(&mut other, &send(&mut client, 0, 1)), Err(OpenError::Forged(Forged)));
}

/// Directions must not share keys, or reflected packets would open.
#[test]
fn reflected_packets_are_forged() {
    for suite in Suite::ALL.into_iter().filter(|s| *s != Suite::Crc32c) {
        let (mut client, _) = ends(suite);
        let p = send(&mut client, 0, 0);
        assert_eq!(receive(&mut client, &p), Err(OpenError::Forged(Forged)), "{suite}");
    }
}

#[test]
fn suites_have_different_keys() {
    let mut seen = std::collections::HashSet::new();
    for suite in Suite::ALL {
        assert!(seen.insert(send(&mut ends(suite).0, 0, 0).tag));
    }
}

#[test]
fn set_up_keys_are_never_updated() {
    let (mut client, mut server) =
        (KeyPair::initial(b"x", Side::Client), KeyPair::initial(b"x", Side::Server));
    receive(&mut server, &send(&mut client, 0, 0)).unwrap();
    client.on_acknowledged(0, 0);
    assert_eq!(client.update(), Err(KeyError::NoUpdates));
    // Even a peer that updates (anyone can compute these keys) is not followed.
    client.advance();
    assert_eq!(receive(&mut server, &send(&mut client, 0, 1)), Err(OpenError::Forged(Forged)));
    assert_eq!(server.open_keys().generation(), 0);
    let (mut plain, _) = ends(Suite::Crc32c);
    assert_eq!(plain.update(), Err(KeyError::NoUpdates));
}

#[test]
fn key_update_is_followed_once() {
    for suite in [
        Suite::Aes128Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Aegis128L,
        Suite::Aegis128X2,
        Suite::IntegrityGmac,
        Suite::IntegrityAegis,
    ] {
        let (mut a, mut b) = ends(suite);
        // RFC 9001, section 6.1: not before an acknowledgement.
        receive(&mut b, &send(&mut a, 0, 0)).unwrap();
        assert_eq!(a.update(), Err(KeyError::UpdateTooSoon));
        a.on_acknowledged(0, 0);
        a.update().unwrap();
        let p = send(&mut a, 0, 1);
        assert!(p.phase);
        assert_eq!(receive(&mut b, &p), Ok(Opened::Updated));
        // Section 6.2: the answer travels under updated keys.
        let answer = send(&mut b, 0, 0);
        assert!(answer.phase);
        assert_eq!(receive(&mut a, &answer), Ok(Opened::Updated));
        assert_eq!((a.sealer().generation(), b.sealer().generation()), (1, 1));
        assert_eq!(receive(&mut b, &send(&mut a, 0, 2)), Ok(Opened::Current));
        // Not again before the acknowledgement, and not before old keys are gone.
        assert_eq!(a.update(), Err(KeyError::UpdateTooSoon));
        assert!(!a.on_acknowledged(0, 0));
        a.discard_previous();
        a.settle();
        assert_eq!(a.update(), Err(KeyError::UpdateTooSoon), "packet 0 was of the phase before");
        assert!(a.on_acknowledged(0, 1));
        assert!(!a.on_acknowledged(0, 2), "told once");
        assert_eq!(a.update(), Err(KeyError::UpdateTooSoon));
        a.settle();
        b.discard_previous();
        a.update().unwrap();
        assert_eq!(receive(&mut b, &send(&mut a, 0, 3)), Ok(Opened::Updated));
        assert_eq!(b.sealer().generation(), 2);
    }
}

/// What an initiator with one timer does: acknowledged first, then three probe timeouts after the peer followed.
#[test]
fn discarding_old_keys_settles_the_update() {
    let (mut a, mut b) = ends(Suite::Aegis128L);
    for round in 0..5 {
        receive(&mut b, &send(&mut a, 0, 2 * round)).unwrap();
        a.on_acknowledged(0, 2 * round);
        a.update().unwrap();
        assert_eq!(receive(&mut b, &send(&mut a, 0, 2 * round + 1)), Ok(Opened::Updated));
        assert_eq!(receive(&mut a, &send(&mut b, 0, round)), Ok(Opened::Updated));
        a.on_acknowledged(0, 2 * round + 1);
        assert_eq!(a.update(), Err(KeyError::UpdateTooSoon));
        a.discard_previous();
        b.discard_previous();
    }
    assert_eq!(b.seal_keys().generation(), 5);
}

#[test]
fn both_ends_may_update_simultaneously() {
    let (mut a, mut b) = ends(Suite::Aegis128L);
    a.on_acknowledged(0, 0);
    assert_eq!(a.update(), Err(KeyError::UpdateTooSoon), "nothing was sent that could be acknowledged");
    send(&mut a, 0, 0);
    send(&mut b, 0, 0);
    a.on_acknowledged(0, 0);
    b.on_acknowledged(0, 0);
    a.update().unwrap();
    b.update().unwrap();
    let (p, q) = (send(&mut a, 0, 1), send(&mut b, 0, 1));
    assert_eq!(receive(&mut b, &p), Ok(Opened::Updated));
    assert_eq!(receive(&mut a, &q), Ok(Opened::Updated));
    assert_eq!((a.sealer().generation(), b.sealer().generation()), (1, 1));
}

#[test]
fn late_packets_open_until_old_keys_are_discarded() {
    let (mut a, mut b) = ends(Suite::Aes128Gcm);
    let late: Vec<Sent> = (0..4).map(|pn| send(&mut a, 0, pn)).collect();
    let other_lane: Vec<Sent> = (0..4).map(|pn| send(&mut a, 5, 1000 + pn)).collect();
    receive(&mut b, &late[0]).unwrap();
    a.on_acknowledged(0, 0);
    a.update().unwrap();
    let new = [send(&mut a, 0, 4), send(&mut a, 0, 5)];
    assert_eq!(receive(&mut b, &new[1]), Ok(Opened::Updated));
    assert_eq!(receive(&mut b, &late[1]), Ok(Opened::Previous));
    assert_eq!(receive(&mut b, &new[0]), Ok(Opened::Current));
    // A lane that has seen nothing of the new phase, with numbers above those of the other lane.
    assert_eq!(receive(&mut b, &other_lane[3]), Ok(Opened::Previous));
    assert_eq!(receive(&mut b, &send(&mut a, 5, 1010)), Ok(Opened::Current));
    assert_eq!(receive(&mut b, &other_lane[0]), Ok(Opened::Previous));
    b.discard_previous();
    assert_eq!(receive(&mut b, &late[2]), Err(OpenError::Expired));
    assert_eq!(b.open_keys().forged(), 0);
}

/// RFC 9001, section 6.4: an old key with a number above one under a newer key is an error.
#[test]
fn old_keys_with_new_numbers_are_refused() {
    let (mut a, mut b) = ends(Suite::Aes128Gcm);
    let mut attacker = ends(Suite::Aes128Gcm).0;
    receive(&mut b, &send(&mut a, 0, 0)).unwrap();
    a.on_acknowledged(0, 0);
    a.update().unwrap();
    receive(&mut b, &send(&mut a, 0, 1)).unwrap();
    assert_eq!(receive(&mut b, &send(&mut attacker, 0, 2)), Err(OpenError::Forged(Forged)));
    assert_eq!(b.open_keys().generation(), 1);
}

#[test]
fn forged_packets_never_trigger_a_key_update() {
    let (mut a, mut b) = ends(Suite::ChaCha20Poly1305);
    let mut p = send(&mut a, 0, 0);
    p.phase = true;
    for _ in 0..3 {
        assert_eq!(receive(&mut b, &p), Err(OpenError::Forged(Forged)));
    }
    assert_eq!((b.open_keys().generation(), b.open_keys().forged()), (0, 3));
    assert!(!b.sealer().phase());
}

#[test]
fn key_limits_are_enforced() {
    let (mut a, mut b) = ends(Suite::Aes128Gcm);
    assert_eq!(a.sealer().left(), 1 << 28);
    a.seal.limit = 10;
    assert!(a.sealer().reserve(0, 0, 4).is_ok());
    assert_eq!(a.sealer().left(), 6);
    assert!(!a.sealer().should_update());
    assert!(a.sealer().reserve(1, 0, 1).is_ok());
    assert!(a.sealer().should_update());
    assert_eq!(a.sealer().reserve(0, 4, 6).err(), Some(KeyError::Exhausted));
    assert!(a.sealer().reserve(0, 4, 5).is_ok());
    assert_eq!(a.seal(0, 9, &[], &mut []), Err(KeyError::Exhausted));
    a.on_acknowledged(1, 0);
    a.update().unwrap();
    assert_eq!(a.sealer().left(), 10);

    b.open.limit = 2;
    let mut bad = send(&mut ends(Suite::Aes128Gcm).0, 0, 0);
    bad.tag[0] ^= 1;
    assert_eq!(receive(&mut b, &bad), Err(OpenError::Forged(Forged)));
    assert_eq!(receive(&mut b, &bad), Err(OpenError::IntegrityLimit));
    assert_eq!(receive(&mut b, &send(&mut ends(Suite::Aes128Gcm).0, 0, 0)), Err(OpenError::IntegrityLimit));
}

#[test]
fn lane_numbers_are_limited() {
    let (mut a, mut b) = ends(Suite::Aes128Gcm);
    let lane = MAX_LANES as u32;
    assert_eq!(a.seal(lane, 0, &[], &mut []), Err(KeyError::Lane(lane)));
    assert_eq!(b.open(false, lane, 0, &[], &[0; 16], &mut []), Err(OpenError::Lane(lane)));
    b.on_acknowledged(u32::MAX, 0);
    assert!(a.seal(lane - 1, 0, &[], &mut []).is_ok());
}

#[test]
fn secrets_are_not_shown() {
    let (a, _) = ends(Suite::Aes128Gcm);
    let text = format!("{a:?} {:?}", Secret::from_bytes([0xab; 32]));
    assert!(text.contains("Secret(..)") && !text.contains("ab, ") && !text.contains("171"), "{text}");
}

#[derive(Clone, Debug)]
enum Op {
    Send {
        from: usize,
        lane: u32,
    },
    Deliver {
        to: usize,
        which: usize,
    },
    Drop {
        to: usize,
        which: usize,
    },
    Forge {
        to: usize,
        which: usize,
    },
    Update {
        by: usize,
    },
    /// Three probe timeouts pass: nothing old is on its way any more, and both ends discard old keys.
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0usize..2, 0u32..3).prop_map(|(from, lane)| Op::Send { from, lane }),
        10 => (0usize..2, any::<usize>()).prop_map(|(to, which)| Op::Deliver { to, which }),
        1 => (0usize..2, any::<usize>()).prop_map(|(to, which)| Op::Drop { to, which }),
        2 => (0usize..2, any::<usize>()).prop_map(|(to, which)| Op::Forge { to, which }),
        2 => (0usize..2).prop_map(|by| Op::Update { by }),
        1 => Just(Op::Wait),
    ]
}

proptest! {
    /// However packets are reordered, lost and forged, over several lanes, while both ends update as often as
    /// they may: each genuine packet opens, and the ends are never more than one generation apart.
    #[test]
    fn updates_survive_reordering(ops in proptest::collection::vec(op(), 1..400)) {
        let (a, b) = ends(Suite::Aegis128L);
        let mut end = [a, b];
        let mut net: [Vec<Sent>; 2] = [Vec::new(), Vec::new()];
        let mut pn = [[0u64; 3]; 2];
        let mut heard: [Option<(u32, u64)>; 2] = [None; 2];
        for op in ops {
            match op {
                Op::Send { from, lane } => {
                    let mut p = send(&mut end[from], lane, pn[from][lane as usize]);
                    pn[from][lane as usize] += 1;
                    p.ack = heard[from];
                    net[1 - from].push(p);
                }
                Op::Deliver { to, which } if !net[to].is_empty() => {
                    let at = which % net[to].len();
                    let p = net[to].swap_remove(at);
                    let before = end[to].open_keys().generation();
                    let got = receive(&mut end[to], &p);
                    let want = match p.generation.cmp(&before) {
                        core::cmp::Ordering::Less => Opened::Previous,
                        core::cmp::Ordering::Equal => Opened::Current,
                        core::cmp::Ordering::Greater => Opened::Updated,
                    };
                    prop_assert_eq!(got, Ok(want), "{:?} at {:?}", p, end[to]);
                    heard[to] = Some((p.lane, p.pn));
                    if let Some((lane, pn)) = p.ack {
                        end[to].on_acknowledged(lane, pn);
                    }
                }
                Op::Drop { to, which } if !net[to].is_empty() => {
                    let at = which % net[to].len();
                    net[to].swap_remove(at);
                }
                Op::Forge { to, which } if !net[to].is_empty() => {
                    let mut p = net[to][which % net[to].len()].clone();
                    p.tag[which % TAG_LEN] ^= 0x10;
                    let generation = end[to].open_keys().generation();
                    prop_assert_eq!(receive(&mut end[to], &p), Err(OpenError::Forged(Forged)));
                    prop_assert_eq!(end[to].open_keys().generation(), generation);
                }
                Op::Update { by } => { let _ = end[by].update(); }
                Op::Wait => {
                    for to in 0..2 {
                        let generation = end[to].open_keys().generation();
                        net[to].retain(|p| p.generation >= generation);
                        end[to].discard_previous();
                    }
                }
                _ => {}
            }
            let (a, b) = (end[0].seal_keys().generation(), end[1].seal_keys().generation());
            prop_assert!(a.abs_diff(b) <= 1);
        }
    }
}
