//! Client admission by the application, and what rejected clients cost.

mod pair;

use base::{Span, Time};
use longhaul_endpoint::{ClientAdmission, ConnId, Event};
use pair::{Pair, closed, config, identity, server_config};
use std::sync::{Arc, Mutex};
use transport::crypto::{OneTimeToken, PeerIdentity, PublicKey};

const WORDS: &str = "not today";

/// Turns the first so many away, and keeps whom it was asked about.
struct RejectFirst {
    refused: usize,
    asked: Arc<Mutex<Vec<PublicKey>>>,
}

impl ClientAdmission for RejectFirst {
    fn admit(&mut self, _: Time, peer: &PeerIdentity) -> Result<(), String> {
        let PeerIdentity::RawKey(key) = peer else { return Err("no key".into()) };
        let mut asked = self.asked.lock().expect("lock");
        asked.push(*key);
        if asked.len() <= self.refused { Err(WORDS.into()) } else { Ok(()) }
    }
}

fn with_gate(mut p: Pair, refused: usize) -> (Pair, Arc<Mutex<Vec<PublicKey>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    p.server.set_client_admission(Some(Box::new(RejectFirst { refused, asked: asked.clone() })));
    (p, asked)
}

#[test]
fn rejected_clients_use_no_queue_pair_event_or_session() {
    let mut s = server_config(&[]);
    let server = s.server.as_mut().expect("server");
    server.authority.keys = None;
    // Room for one who is let in; queue pairs of others would be in the way.
    (server.max_connections, s.limits.qps) = (65, 1);
    let (mut p, asked) = with_gate(Pair::with(config(2), s), 64);
    let all: Vec<ConnId> = (0..65).map(|_| p.connect()).collect();
    p.run(Span::from_secs(2));
    assert_eq!(*asked.lock().expect("lock"), vec![identity(2).public_key(); 65], "each once");
    let events = p.server_events();
    assert!(matches!(events[..], [Event::Incoming { .. }]), "{events:?}");
    assert_eq!(p.server.connections().count(), 1);
    let ended: Vec<_> = p.client_events().into_iter().filter(|e| matches!(e, Event::Closed { .. })).collect();
    assert_eq!(ended.len(), 64);
    assert!(ended.iter().all(|e| closed(core::slice::from_ref(e)).is_some_and(|w| w.contains(WORDS))));
    // Their places are free again.
    let open = all.iter().filter(|c| p.client.stats(**c).is_some()).count();
    assert!(open >= 1);
    p.server.adapter().alloc_pd().expect("room");
}

#[test]
fn data_of_unauthorised_clients_is_not_processed() {
    let (mut p, asked) = with_gate(Pair::new(), 1);
    // Its first packets of data overtake its last word of the handshake.
    p.filter = Box::new(|f| {
        if f.to_server && f.bytes[0] & 0x80 != 0 {
            f.at += Span::from_millis(5);
        }
        true
    });
    let c = p.connect();
    while p.client_events().is_empty() {
        p.run(Span::from_millis(1));
    }
    // It asks for a queue pair before it can know that it is turned away.
    p.client.open_qp(p.now, c, Default::default()).expect("asked");
    p.run(Span::from_millis(12));
    assert!(asked.lock().expect("lock").is_empty(), "what came first cannot be read yet");
    p.run(Span::from_secs(3));
    assert_eq!((p.server_events(), p.server.connections().count()), (Vec::new(), 0));
    assert!(closed(&p.client_events()).is_some_and(|w| w.contains(WORDS)));
}

#[test]
fn admission_is_not_consulted_for_clients_refused_by_settings() {
    let (mut p, asked) = with_gate(Pair::with(config(3), server_config(&[2])), 0);
    p.connect();
    p.run(Span::from_secs(2));
    assert!(asked.lock().expect("lock").is_empty());
    assert!(closed(&p.client_events()).is_some_and(|w| w.contains("not authorised")));
}

/// Found by reading: each handshake has a copy of the tokens from when it began.
#[test]
fn one_of_two_concurrent_handshakes_with_one_token_is_admitted() {
    let token = OneTimeToken::new([7; 32], Some(identity(1).public_key().fingerprint()));
    let mut s = server_config(&[]);
    s.server.as_mut().expect("server").authority.tokens.push(token.clone());
    let mut p = Pair::with(config(3), s);
    for _ in 0..2 {
        let mut c = p.connect_options();
        c.token = Some(token.clone());
        p.client.connect(p.now, c).expect("connect");
    }
    p.run(Span::from_secs(2));
    let events = p.server_events();
    assert!(matches!(events[..], [Event::Incoming { .. }]), "{events:?}");
    assert_eq!(p.server.connections().count(), 1);
    assert!(closed(&p.client_events()).is_some_and(|w| w.contains("used before")));
}
