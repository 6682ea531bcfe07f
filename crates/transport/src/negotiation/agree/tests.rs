//! Tests of the initial agreement.

use super::*;
use proptest::prelude::*;

fn offer(name: &str) -> CcOffer {
    CcOffer { name: name.into(), version: 1, needs: 0, params: String::new() }
}
fn preferred(name: &str) -> CcPreference {
    CcPreference { refused: false, name: name.into(), version: 0, params: String::new() }
}
fn terms(offers: &[&str], preferences: &[&str]) -> CcTerms {
    CcTerms {
        echoes: signal::MARKS,
        offers: offers.iter().map(|n| offer(n)).collect(),
        preferences: preferences.iter().map(|n| preferred(n)).collect(),
        ..CcTerms::default()
    }
}
fn refuse(t: &mut CcTerms, name: &str) {
    t.preferences.push(CcPreference { refused: true, ..preferred(name) });
}
fn sent_with(sender: &CcTerms, receiver: &CcTerms) -> Option<String> {
    one_way(sender, receiver).map(|o| o.spec())
}

#[test]
fn sender_uses_its_first_choice_without_preferences() {
    let (c, s) = (terms(&["bbr", "cubic"], &[]), terms(&["haul", "bbr"], &[]));
    let a = agree(&c, &s).unwrap();
    assert_eq!((a.by_client.spec(), a.by_server.spec()), ("bbr".into(), "haul".into()));
}

#[test]
fn preference_is_granted_unless_the_sender_prefers_its_own() {
    let mut sender = terms(&["haul", "bbr", "cubic"], &[]);
    let receiver = terms(&["haul"], &["mine", "cubic", "bbr"]);
    assert_eq!(sent_with(&sender, &receiver), Some("cubic".into()));
    sender.prefer_own = true;
    assert_eq!(sent_with(&sender, &receiver), Some("haul".into()));
}

#[test]
fn refused_algorithm_is_never_used() {
    let mut sender = terms(&["haul", "bbr"], &[]);
    sender.prefer_own = true;
    let mut receiver = terms(&["haul"], &[]);
    refuse(&mut receiver, "haul");
    assert_eq!(sent_with(&sender, &receiver), Some("bbr".into()));
    receiver.only = true;
    let e = agree(&receiver, &sender).unwrap_err();
    assert_eq!(e.sender, "server");
    assert!(e.to_string().contains("haul, bbr") && e.to_string().contains("refuses haul"), "{e}");
    // Names and not numbers, and nothing of what there is none of.
    assert!(e.to_string().contains("takes none, refuses haul and tells of congestion marks; try"), "{e}");
    assert_eq!(describe(&CcTerms::default()), "tells of no signals");
    let all = CcTerms { echoes: signal::MARKS | signal::L4S | signal::TELEMETRY | 64, ..CcTerms::default() };
    assert_eq!(
        describe(&all),
        "tells of congestion marks, marks of L4S, telemetry, signals that this version does not know"
    );
    receiver.preferences.push(preferred("bbr"));
    assert_eq!(sent_with(&sender, &receiver), Some("bbr".into()));
}

#[test]
fn parameters_and_versions_follow_the_preference() {
    let mut sender = terms(&["haul", "cubic"], &[]);
    sender.offers[1].params = "hystart=off".into();
    let mut receiver = terms(&["haul"], &["cubic"]);
    assert_eq!(sent_with(&sender, &receiver), Some("cubic:hystart=off".into()), "the sender's own");
    (receiver.preferences[0].version, receiver.preferences[0].params) = (1, "hystart=on".into());
    assert_eq!(sent_with(&sender, &receiver), Some("cubic:hystart=on".into()));
    receiver.preferences[0].version = 2;
    assert_eq!(sent_with(&sender, &receiver), Some("haul".into()), "another version is another algorithm");
}

#[test]
fn algorithm_without_its_signals_is_not_chosen() {
    let mut sender = terms(&["hpcc", "dctcp", "haul"], &[]);
    sender.offers[0].needs = signal::TELEMETRY;
    sender.offers[1].needs = signal::MARKS;
    let mut receiver = terms(&["haul"], &["hpcc"]);
    assert_eq!(sent_with(&sender, &receiver), Some("dctcp".into()));
    receiver.echoes = signal::MARKS | signal::TELEMETRY;
    assert_eq!(sent_with(&sender, &receiver), Some("hpcc".into()));
    sender.offers[0].needs = 1 << 40;
    assert_eq!(sent_with(&sender, &receiver), Some("dctcp".into()), "a signal of the future");
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn some_offer() -> impl Strategy<Value = CcOffer> {
    (0_usize..6, 1_u32..3, 0_u64..8, any::<bool>()).prop_map(|(n, version, needs, params)| CcOffer {
        name: NAMES[n].into(),
        version,
        needs: needs & (needs >> 1),
        params: if params { "x=1".into() } else { String::new() },
    })
}

fn some_preference() -> impl Strategy<Value = CcPreference> {
    (0_usize..6, 0_u32..3, any::<bool>(), any::<bool>()).prop_map(|(n, version, refused, params)| {
        CcPreference {
            refused,
            name: NAMES[n].into(),
            version,
            params: if params && version > 0 && !refused { "y=2".into() } else { String::new() },
        }
    })
}

fn some_terms() -> impl Strategy<Value = CcTerms> {
    let lists = (prop::collection::vec(some_offer(), 1..8), prop::collection::vec(some_preference(), 0..6));
    (any::<bool>(), any::<bool>(), 0_u64..8, lists).prop_map(
        |(prefer_own, only, echoes, (offers, preferences))| CcTerms {
            prefer_own,
            only,
            echoes,
            offers,
            preferences,
        },
    )
}

/// As the other end has it: from bytes.
fn over_the_wire(t: &CcTerms) -> CcTerms {
    let mut b = Vec::new();
    wire::Params { cc_terms: Some(t.clone()), ..wire::Params::default() }.put(&mut b);
    wire::Params::parse(&b).unwrap().cc_terms.unwrap()
}

proptest! {
    #[test]
    fn both_ends_compute_the_same_agreement(c in some_terms(), s in some_terms()) {
        prop_assert_eq!(agree(&c, &over_the_wire(&s)), agree(&over_the_wire(&c), &s));
        // Roles exchanged, the result is the same with roles exchanged.
        if let (Ok(a), Ok(b)) = (agree(&c, &s), agree(&s, &c)) {
            prop_assert_eq!(a.by_client, b.by_server);
        }
    }

    #[test]
    fn agreement_is_offered_and_not_refused(c in some_terms(), s in some_terms()) {
        if let Ok(a) = agree(&c, &s) {
            for (o, from, to) in [(&a.by_client, &c, &s), (&a.by_server, &s, &c)] {
                prop_assert!(from.offers.iter().any(|x| x.name == o.name && x.version == o.version));
                prop_assert!(accepts(to, o));
                prop_assert_eq!(o.needs & !to.echoes, 0);
                for w in to.preferences.iter().filter(|w| w.refused) {
                    prop_assert!(!w.is_about(o));
                }
            }
        } else {
            let none = |from: &CcTerms, to: &CcTerms| from.offers.iter().all(|o| !accepts(to, o));
            prop_assert!(none(&c, &s) || none(&s, &c));
        }
    }

    #[test]
    fn unknown_algorithms_of_the_peer_are_ignored(
        c in some_terms(), s in some_terms(), at in prop::collection::vec((any::<bool>(), 0_usize..20), 0..5),
    ) {
        let mut with = c.clone();
        for (k, (refused, i)) in at.iter().enumerate() {
            let name = format!("unknown-{k}");
            let w = CcPreference { refused: *refused, name, version: 0, params: String::new() };
            let i = i % (with.preferences.len() + 1);
            with.preferences.insert(i, w);
        }
        prop_assert_eq!(agree(&with, &s).ok(), agree(&c, &s).ok());
    }
}
