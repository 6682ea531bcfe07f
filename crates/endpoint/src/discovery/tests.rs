//! Tests of the decision which paths to add, move or remove.

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(text: &str) -> SocketAddr {
    SocketAddr::new(ip(text), 4460)
}

/// Ways as `local remote`, those of a path of their own; `~local remote`: over another interface. `local remote n`: by
/// interface n.
fn network(locals: &[&str], routes: &[&str]) -> Network {
    let way = |text: &&str| {
        let mut words = text.trim_start_matches('~').split(' ');
        let (local, remote) = words.next().zip(words.next()).expect("two addresses");
        let link = words.next().map_or(0, |n| n.parse().expect("a number"));
        Route {
            local: ip(local),
            remote: ip(remote),
            own: !text.starts_with('~'),
            default_source: false,
            link,
        }
    };
    let locals = locals.iter().map(|l| ip(l)).collect();
    Network { locals, listening_at: Vec::new(), routes: routes.iter().map(way).collect() }
}

fn lane(lane: u32, local: &str, remote: &str) -> LaneAddresses {
    LaneAddresses {
        lane,
        local: Some(ip(local)),
        remote: at(remote),
        socket: 0,
        works: true,
        validating: false,
    }
}

fn found(lanes: &[LaneAddresses]) -> DiscoveredPaths {
    let one = |l: &LaneAddresses| DiscoveredLane {
        lane: l.lane,
        pair: (l.local.expect("known"), l.remote),
        was_up: true,
    };
    DiscoveredPaths {
        lanes: lanes.iter().map(one).collect(),
        tried: lanes.len() as u32,
        ..DiscoveredPaths::default()
    }
}

fn plan(
    network: &Network,
    lanes: &[LaneAddresses],
    found: &DiscoveredPaths,
    told: &[&str],
    discover: PathDiscovery,
) -> Vec<LaneChange> {
    let remotes: Vec<_> = told.iter().map(|a| at(a)).collect();
    PlanInput { network, lanes, found, pinned: &[], remotes: &remotes, discover }.plan()
}

#[test]
fn a_path_is_added_for_each_address_pair_with_a_route() {
    let first = [lane(0, "10.1.0.1", "10.1.0.2")];
    let apart = network(&["10.1.0.1", "10.2.0.1"], &["10.1.0.1 10.1.0.2", "10.2.0.1 10.2.0.2"]);
    let told = ["10.1.0.2", "10.2.0.2"];
    let auto =
        |n: &Network, told: &[&str]| plan(n, &first, &DiscoveredPaths::default(), told, PathDiscovery::Auto);
    assert_eq!(auto(&apart, &told), [LaneChange::Add(ip("10.2.0.1"), at("10.2.0.2"), false)]);
    assert_eq!(plan(&apart, &first, &DiscoveredPaths::default(), &told, PathDiscovery::Off), []);
    // Nothing has arrived yet that tells which address it has here.
    let mut usual = apart.clone();
    usual.routes[0].default_source = true;
    let unknown = [LaneAddresses { local: None, ..first[0] }];
    let steps = plan(&usual, &unknown, &DiscoveredPaths::default(), &told, PathDiscovery::Auto);
    assert_eq!(steps, [LaneChange::Add(ip("10.2.0.1"), at("10.2.0.2"), false)]);
    assert_eq!(
        plan(&apart, &unknown, &DiscoveredPaths::default(), &told, PathDiscovery::Auto),
        [],
        "nobody can tell"
    );
    // Everything leads everywhere: two paths that share no address, and no more.
    let all = ["10.1.0.1 10.1.0.2", "10.1.0.1 10.2.0.2", "10.2.0.1 10.1.0.2", "10.2.0.1 10.2.0.2"];
    let meshed = network(&["10.1.0.1", "10.2.0.1"], &all);
    assert_eq!(auto(&meshed, &told), [LaneChange::Add(ip("10.2.0.1"), at("10.2.0.2"), false)]);
    assert_eq!(plan(&meshed, &first, &DiscoveredPaths::default(), &told, PathDiscovery::Mesh).len(), 3);
    // One address here and two there, and the other way round.
    assert_eq!(
        auto(&network(&["10.1.0.1"], &all[..2]), &told),
        [LaneChange::Add(ip("10.1.0.1"), at("10.2.0.2"), false)]
    );
    let two = network(&["10.1.0.1", "10.2.0.1"], &[all[0], all[2]]);
    assert_eq!(auto(&two, &told[..1]), [LaneChange::Add(ip("10.2.0.1"), at("10.1.0.2"), false)]);
    // What leaves by another address's interface is no path of its own.
    let weak = network(&["10.1.0.1", "10.2.0.1"], &["10.1.0.1 10.1.0.2", "~10.2.0.1 10.1.0.2"]);
    assert_eq!(auto(&weak, &told), []);
}

#[test]
fn number_of_paths_and_attempts_is_limited() {
    let first = [lane(0, "10.1.0.1", "10.1.0.2")];
    let told: Vec<String> = (2..18).map(|n| format!("10.1.0.{n}")).collect();
    let routes: Vec<String> = told.iter().map(|r| format!("10.1.0.1 {r}")).collect();
    let (told, routes): (Vec<_>, Vec<_>) =
        (told.iter().map(String::as_str).collect(), routes.iter().map(String::as_str).collect());
    let n = network(&["10.1.0.1"], &routes);
    assert_eq!(
        plan(&n, &first, &DiscoveredPaths::default(), &told, PathDiscovery::Auto).len(),
        MAX_AUTO_PATHS - 1
    );
    assert_eq!(
        plan(&n, &first, &DiscoveredPaths::default(), &told, PathDiscovery::Mesh).len(),
        MAX_MESH_PATHS - 1
    );
    let tired = DiscoveredPaths { tried: MAX_PATH_ATTEMPTS - 1, ..DiscoveredPaths::default() };
    assert_eq!(plan(&n, &first, &tired, &told, PathDiscovery::Auto).len(), 1);
    let mut failed = DiscoveredPaths::default();
    failed.failed.push((ip("10.1.0.1"), at("10.1.0.3")));
    let steps = plan(&n, &first, &failed, &told, PathDiscovery::Auto);
    assert_eq!(
        steps[0],
        LaneChange::Add(ip("10.1.0.1"), at("10.1.0.4"), false),
        "not there, where nobody answered"
    );
}

#[test]
fn lanes_without_a_route_move_or_are_disabled() {
    let lanes = [lane(0, "10.1.0.1", "10.1.0.2"), lane(1, "10.2.0.1", "10.2.0.2")];
    let f = found(&lanes[1..]);
    let told = ["10.1.0.2", "10.2.0.2"];
    let go = |n: &Network, lanes: &[LaneAddresses]| plan(n, lanes, &f, &told, PathDiscovery::Auto);
    // The address is gone; there is no other way to where the lane led.
    let n = network(&["10.2.0.1"], &["10.2.0.1 10.2.0.2"]);
    assert_eq!(go(&n, &lanes), [LaneChange::Disable(0)]);
    let n = network(&["10.1.0.1"], &["10.1.0.1 10.1.0.2"]);
    assert_eq!(go(&n, &lanes), [LaneChange::Close(1)], "what was found makes room");
    let n = network(&["10.1.0.1", "10.2.0.1"], &["10.1.0.1 10.1.0.2"]);
    assert_eq!(go(&n, &lanes)[0], LaneChange::Disable(1), "the address is there, but its interface is down");
    // Its only address was replaced by another.
    let n = network(&["10.1.0.9"], &["10.1.0.9 10.1.0.2"]);
    assert_eq!(go(&n, &lanes[..1]), [LaneChange::Move(0, ip("10.1.0.9"), at("10.1.0.2"))]);
    // A way that is none of its own is better than none.
    let n = network(&["10.9.0.9"], &["~10.9.0.9 10.1.0.2"]);
    assert_eq!(go(&n, &lanes[..1]), [LaneChange::Move(0, ip("10.9.0.9"), at("10.1.0.2"))]);
    // Nothing left: it stays, as something may come back.
    assert_eq!(go(&network(&[], &[]), &lanes[..1]), [LaneChange::Disable(0)]);
    // It is back.
    let n = network(&["10.1.0.1"], &["10.1.0.1 10.1.0.2"]);
    let silent = LaneAddresses { works: false, ..lanes[0] };
    assert_eq!(go(&n, &[silent]), [LaneChange::Probe(0)]);
    // It is back, and silent; with nothing else that works, another address is tried.
    let n = network(&["10.1.0.1", "10.3.0.1"], &["10.1.0.1 10.1.0.2", "10.3.0.1 10.1.0.2"]);
    assert_eq!(go(&n, &[silent])[0], LaneChange::Move(0, ip("10.3.0.1"), at("10.1.0.2")));
}

#[test]
fn other_address_family_gets_a_path_or_a_backup_on_the_same_interface() {
    let first = [lane(0, "10.1.0.1", "10.1.0.2")];
    let told = ["10.1.0.2", "fd00::2"];
    let locals = ["10.1.0.1", "fd00::1"];
    let go = |link: &str, discover| {
        let v6 = format!("fd00::1 fd00::2 {link}");
        plan(
            &network(&locals, &["10.1.0.1 10.1.0.2 1", &v6]),
            &first,
            &DiscoveredPaths::default(),
            &told,
            discover,
        )
    };
    assert_eq!(go("2", PathDiscovery::Auto), [LaneChange::Add(ip("fd00::1"), at("fd00::2"), false)]);
    assert_eq!(go("1", PathDiscovery::Auto), [LaneChange::Add(ip("fd00::1"), at("fd00::2"), true)]);
    assert_eq!(go("1", PathDiscovery::Mesh), [LaneChange::Add(ip("fd00::1"), at("fd00::2"), false)]);
    assert_eq!(go("2", PathDiscovery::Off), []);
}

#[test]
fn last_lane_fails_over_to_another_server_address_and_back() {
    let first = lane(0, "10.1.0.1", "10.1.0.2");
    let told = ["10.1.0.2", "fd00::2", "fd00::3"];
    let go = |n: &Network, lane: LaneAddresses, f: &DiscoveredPaths| {
        plan(n, &[lane], f, &told, PathDiscovery::Auto)[0]
    };
    let only6 = network(&["fd00::1"], &["fd00::1 fd00::2", "fd00::1 fd00::3"]);
    let mut f = DiscoveredPaths::default();
    assert_eq!(go(&only6, first, &f), LaneChange::Move(0, ip("fd00::1"), at("fd00::2")));
    // It is being looked for there, and nobody answers.
    let pair = (ip("fd00::1"), at("fd00::2"));
    f.moves.push(DiscoveredLane { lane: 0, pair, was_up: true });
    f.update_moves(
        &[LaneAddresses { validating: true, works: false, remote: pair.1, ..first }],
        first.remote,
    );
    assert_eq!((f.moves.len(), f.tried), (1, 0));
    f.update_moves(&[LaneAddresses { works: false, ..first }], first.remote);
    assert_eq!((f.moves.len(), f.tried, &f.failed[..]), (0, 1, &[pair][..]));
    assert_eq!(go(&only6, first, &f), LaneChange::Move(0, ip("fd00::1"), at("fd00::3")));
    // There somebody does.
    let third = lane(0, "fd00::1", "fd00::3");
    f.moves.push(DiscoveredLane { lane: 0, pair: (ip("fd00::1"), third.remote), was_up: true });
    f.update_moves(&[third], first.remote);
    assert_eq!((f.moves.len(), f.tried), (0, 1));
    // And back, however often anything was tried: the user named that address.
    let only4 = network(&["10.1.0.1"], &["10.1.0.1 10.1.0.2"]);
    f.tried = MAX_PATH_ATTEMPTS;
    assert_eq!(go(&only4, third, &f), LaneChange::Move(0, ip("10.1.0.1"), at("10.1.0.2")));
    assert_eq!(go(&only6, first, &f), LaneChange::Disable(0), "enough is enough");
    // A way that is there and silent is left as well, when nothing else works.
    let both = network(&["10.1.0.1", "fd00::1"], &["10.1.0.1 10.1.0.2", "fd00::1 fd00::3"]);
    let silent = LaneAddresses { works: false, ..third };
    assert_eq!(go(&both, silent, &f), LaneChange::Move(0, ip("10.1.0.1"), at("10.1.0.2")));
    // Not to where another lane is being tried, as long as there is somewhere else.
    let checked = LaneAddresses { works: false, validating: true, ..lane(1, "fd00::1", "fd00::2") };
    let steps =
        |n: &Network| plan(n, &[first, checked], &DiscoveredPaths::default(), &told, PathDiscovery::Off);
    assert_eq!(steps(&only6), [LaneChange::Move(0, ip("fd00::1"), at("fd00::3"))]);
    let alone = network(&["fd00::1"], &["fd00::1 fd00::2"]);
    assert_eq!(steps(&alone), [LaneChange::Move(0, ip("fd00::1"), at("fd00::2"))]);
    // Two that are silent do not go to the same place.
    let silent = [first, lane(1, "fd00::1", "fd00::2")].map(|l| LaneAddresses { works: false, ..l });
    let all = network(&["10.1.0.1", "fd00::1"], &["10.1.0.1 10.1.0.2", "fd00::1 fd00::2", "fd00::1 fd00::3"]);
    let steps = plan(&all, &silent, &DiscoveredPaths::default(), &told, PathDiscovery::Off);
    let apart = [
        LaneChange::Move(0, ip("fd00::1"), at("fd00::3")),
        LaneChange::Move(1, ip("10.1.0.1"), at("10.1.0.2")),
    ];
    assert_eq!(steps, apart);
    // With another lane that works, none goes anywhere.
    let lanes = [first, lane(1, "fd00::1", "fd00::2")];
    assert_eq!(
        plan(&only6, &lanes, &found(&lanes[1..]), &told, PathDiscovery::Auto)[0],
        LaneChange::Disable(0)
    );
}

#[test]
fn configured_paths_stay_and_discovered_paths_follow_address_lists() {
    let lanes = [lane(0, "10.1.0.1", "10.1.0.2"), lane(1, "10.2.0.1", "10.1.0.2")];
    let n = network(&["10.1.0.1", "10.3.0.1"], &["10.1.0.1 10.1.0.2", "10.3.0.1 10.1.0.2"]);
    let (none, pinned, remotes) = (DiscoveredPaths::default(), [ip("10.2.0.1")], [at("10.1.0.2")]);
    let discover = PathDiscovery::Off;
    let scene =
        PlanInput { network: &n, lanes: &lanes, found: &none, pinned: &pinned, remotes: &remotes, discover };
    assert_eq!(scene.plan(), [LaneChange::Disable(1)]);
    // The server is not at its second address any more.
    let lanes = [lane(0, "10.1.0.1", "10.1.0.2"), lane(1, "10.1.0.1", "10.2.0.2")];
    let n = network(&["10.1.0.1"], &["10.1.0.1 10.1.0.2", "10.1.0.1 10.2.0.2"]);
    assert_eq!(
        plan(&n, &lanes, &found(&lanes[1..]), &["10.1.0.2"], PathDiscovery::Auto),
        [LaneChange::Close(1)]
    );
    assert_eq!(plan(&n, &lanes, &found(&[]), &["10.1.0.2"], PathDiscovery::Auto), [], "that one was named");
}

#[test]
fn addresses_are_exchanged_only_within_the_scope_of_the_path() {
    for (peer, address, may) in [
        ("8.8.8.8", "9.9.9.9", true),
        ("8.8.8.8", "10.0.0.1", false),
        ("8.8.8.8", "100.64.0.1", false),
        ("2600::1", "fd00::1", false),
        ("10.0.0.9", "10.0.0.1", true),
        ("10.0.0.9", "9.9.9.9", true),
        ("10.0.0.9", "169.254.1.1", false),
        ("169.254.1.2", "10.0.0.1", true),
        ("127.0.0.1", "10.0.0.1", false),
        ("::1", "2600::1", false),
        ("10.0.0.9", "127.0.0.1", false),
    ] {
        assert_eq!(AddressScope::covers(ip(peer), ip(address)), may, "{peer} {address}");
    }
}

#[test]
fn unanswered_address_pairs_are_not_retried() {
    let lanes = [lane(1, "10.1.0.1", "10.2.0.2"), lane(2, "10.1.0.1", "10.3.0.2")];
    let mut f = found(&lanes);
    f.lanes.iter_mut().for_each(|l| l.was_up = false);
    f.on_up(1);
    f.on_down(1);
    f.on_down(2);
    assert_eq!(f.failed, [(ip("10.1.0.1"), at("10.3.0.2"))]);
    assert!(f.has(1) && !f.has(2));
}
