//! Tests of the division of a server's sessions.

use super::*;
use transport::crypto::Identity;

const PLACES: usize = 4;

struct Server {
    shares: Shares,
    now: Time,
    next: u64,
    /// What each session has moved.
    moved: BTreeMap<ConnId, u64>,
}

impl Server {
    fn new() -> Server {
        Server {
            shares: Shares::new(ShareLimits::of(PLACES), "transfers"),
            now: Time::from_nanos(1_000_000_000),
            next: 0,
            moved: BTreeMap::new(),
        }
    }

    /// The one with key `key` connects from `from`.
    fn come(&mut self, key: u8, from: &str) -> Result<(ConnId, Option<Displaced>), SharesFull> {
        let conn = ConnId(self.next);
        self.next += 1;
        let peer = PeerIdentity::RawKey(Identity::from_seed([key; 32]).public_key());
        let remote = SocketAddr::new(from.parse().unwrap(), 1_000 + self.next as u16);
        Ok((conn, self.shares.enter(self.now, conn, Some(&peer), remote)?))
    }

    /// As `come`, and says what it wants; nobody is displaced.
    fn works(&mut self, key: u8, from: &str) -> ConnId {
        let (conn, displaced) = self.come(key, from).expect("room");
        assert_eq!(displaced, None);
        self.shares.on_first_request(self.now, conn, 0);
        conn
    }

    /// `span` passes, in which each session but `idle` moves a megabyte a second.
    fn pass(&mut self, span: Span, idle: &[ConnId]) -> Vec<ConnId> {
        let (mut gone, end) = (Vec::new(), self.now + span);
        while let Some(t) = self.shares.next_timeout().filter(|t| *t <= end) {
            let bytes = t.since(self.now).as_nanos() / 1_000;
            self.now = self.now.max(t);
            for c in self.shares.places.keys().filter(|c| !idle.contains(c)) {
                *self.moved.entry(*c).or_default() += bytes;
            }
            let moved =
                |c| SessionProgress { bytes: self.moved.get(&c).copied().unwrap_or(0), working: false };
            gone.extend(self.shares.check(t, moved).into_iter().map(|d| d.conn));
        }
        self.now = end;
        gone
    }
}

fn fits(words: &str) {
    assert!(words.len() <= wire::frame::MAX_REASON / 4, "{} bytes: {words}", words.len());
}

#[test]
fn one_key_may_hold_all_sessions_without_competition() {
    let mut s = Server::new();
    for _ in 0..PLACES {
        s.works(1, "192.0.2.1");
    }
    assert_eq!(s.pass(Span::from_secs(100), &[]), []);
    let full = s.come(1, "192.0.2.2").unwrap_err().to_string();
    assert_eq!(
        full,
        "4 transfers run, the server's limit, 4 with your key, 0 from your address; try again when one has ended"
    );
    fits(&full);
}

#[test]
fn newcomer_takes_the_youngest_session_of_the_largest_holder() {
    let mut s = Server::new();
    let all: Vec<_> = (0..PLACES)
        .map(|_| {
            s.pass(Span::from_secs(1), &[]);
            s.works(1, "192.0.2.1")
        })
        .collect();
    let (_, d) = s.come(2, "192.0.2.2").unwrap();
    let d = d.expect("one is displaced");
    assert_eq!(d.conn, all[3]);
    assert_eq!(d.words, "others wait and your key has 4 of 4 transfers; repeat the command later to go on");
    fits(&d.words);
    // Until both have as many.
    assert_eq!(s.come(2, "192.0.2.2").unwrap().1.expect("another").conn, all[2]);
    s.come(2, "192.0.2.2").expect_err("two each");
    s.come(1, "192.0.2.1").expect_err("two each");
}

#[test]
fn many_keys_at_one_address_cannot_displace_another_address() {
    let mut s = Server::new();
    // One IPv6 network of 64 bits is one address; of IPv4 each is one.
    for (n, from) in ["2001:db8::1", "2001:db8::2:3:4:5"].into_iter().cycle().take(PLACES).enumerate() {
        s.works(n as u8 + 10, from);
    }
    for key in [1, 2] {
        let (c, d) = s.come(key, "2001:db8:0:1::1").unwrap();
        fits(&d.expect("displaced").words);
        s.shares.on_first_request(s.now, c, 0);
    }
    s.come(1, "2001:db8:0:1::1").expect_err("a second place of one key, where all have one");
    for key in 20..30 {
        s.come(key, "2001:db8::9").expect_err("they have their share");
    }
    // A third address has its first, and no second.
    assert!(s.come(9, "192.0.2.1").unwrap().1.is_some());
    s.come(9, "192.0.2.1").expect_err("nobody has more than two");
}

#[test]
fn one_key_at_many_addresses_cannot_displace_a_key_at_one_address() {
    let mut s = Server::new();
    s.works(1, "192.0.2.1");
    s.works(1, "192.0.2.1");
    s.works(2, "192.0.2.2");
    s.works(2, "192.0.2.3");
    s.come(2, "192.0.2.4").expect_err("it has two already");
}

#[test]
fn silent_session_is_closed_at_once_under_pressure_and_later_otherwise() {
    let mut s = Server::new();
    for n in 0..PLACES - 1 {
        s.works(n as u8, &format!("192.0.2.{n}"));
    }
    let (silent, _) = s.come(7, "192.0.2.7").unwrap();
    s.come(8, "192.0.2.8").expect_err("it has just come, too");
    s.pass(Span::from_secs(2), &[]);
    let d = s.come(8, "192.0.2.8").unwrap().1.expect("displaced");
    assert_eq!(d.conn, silent);
    assert!(d.words.contains("no request came"), "{}", d.words);
    fits(&d.words);
    // Without pressure it takes until the deadline, which words name.
    assert_eq!(s.pass(Span::from_secs(19), &[]), []);
    assert_eq!(s.pass(Span::from_secs(1), &[]), [ConnId(s.next - 1)]);
    assert_eq!(s.shares.taken(), PLACES - 1);
}

#[test]
fn slow_session_is_displaced_only_under_pressure() {
    let mut s = Server::new();
    let all: Vec<_> = (0..PLACES).map(|n| s.works(n as u8, &format!("192.0.2.{n}"))).collect();
    // Nobody waits: it may be as slow as it likes.
    assert_eq!(s.pass(Span::from_secs(60), &all[1..2]), []);
    let d = s.come(9, "192.0.2.9").unwrap().1.expect("displaced");
    assert_eq!(d.conn, all[1]);
    assert_eq!(
        d.words,
        "less than 4096 bytes/s moved for 10 s while others wait; repeat the command to go on"
    );
    fits(&d.words);
    s.come(10, "192.0.2.10").expect_err("the others are at work");
}

#[test]
fn slow_session_that_recovers_or_waits_for_the_server_is_kept() {
    let mut s = Server::new();
    let all: Vec<_> = (0..PLACES).map(|n| s.works(n as u8, &format!("192.0.2.{n}"))).collect();
    s.pass(Span::from_secs(15), &all[1..2]);
    s.pass(Span::from_secs(3), &[]);
    s.come(9, "192.0.2.9").expect_err("it is quick again");
    // From now on nothing moves, since the server hashes for all.
    for _ in 0..30 {
        s.now += Span::from_secs(1);
        let bytes = |c| s.moved.get(&c).copied().unwrap_or(0);
        s.shares.check(s.now, |c| SessionProgress { bytes: bytes(c), working: true });
    }
    s.come(9, "192.0.2.9").expect_err("they wait for the server");
}

#[test]
fn largest_holder_of_slow_sessions_is_displaced_first() {
    let mut s = Server::new();
    let honest = s.works(1, "192.0.2.1");
    let attackers: Vec<_> = (1..PLACES).map(|_| s.works(2, "192.0.2.2")).collect();
    let all: Vec<_> = [&[honest][..], &attackers].concat();
    s.pass(Span::from_secs(20), &all);
    for _ in 0..2 {
        let (c, d) = s.come(3, "192.0.2.3").unwrap();
        s.shares.on_first_request(s.now, c, 0);
        assert!(attackers.contains(&d.expect("displaced").conn));
    }
}

#[test]
fn clients_without_a_key_are_counted_by_address() {
    let mut s = Server::new();
    let come = |s: &mut Server, from: &str| {
        let conn = ConnId(s.next);
        s.next += 1;
        let r = s.shares.enter(s.now, conn, None, SocketAddr::new(from.parse().unwrap(), 1));
        s.shares.on_first_request(s.now, conn, 0);
        r
    };
    for _ in 0..PLACES {
        assert_eq!(come(&mut s, "::ffff:192.0.2.1"), Ok(None));
    }
    come(&mut s, "192.0.2.1").expect_err("the same address, written otherwise");
    assert!(come(&mut s, "192.0.2.2").unwrap().is_some());
}
