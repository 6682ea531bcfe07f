use super::*;
use base::Rng;
use proptest::prelude::*;

const TRAIN: u64 = 65_000;

fn class(name: &str, parent: Option<usize>, weight: u32, level: u8) -> Class {
    Class { name: name.into(), parent, weight, level, guarantee: None, cap: None, order: Order::Fair }
}

fn terms(class: usize, weight: u32) -> Terms {
    Terms { class, weight, guarantee: None, deadline: None }
}

/// A simulated sender with a demand over time and a maximum rate.
struct Flow {
    id: FlowId,
    train: u64,
    /// Whether it wants to send, by milliseconds.
    wants: Box<dyn Fn(u64) -> bool>,
    /// The rate that its congestion control allows, in bytes per second.
    most: u64,
    sent: u64,
    /// When each train left.
    trains: Vec<(Time, u64)>,
    ask_at: Time,
}

/// A process that drives a tree as an endpoint does: flows ask when they can send, and are called.
struct Host {
    tree: Tree,
    flows: Vec<Flow>,
    now: Time,
    rng: Rng,
    /// Most nanoseconds by which timers are late.
    late: u64,
}

impl Host {
    fn new(classes: &[Class], cap: Option<u64>) -> Host {
        let tree = Tree::new(classes, cap.map(Rate::from_mbit));
        let (now, rng) = (Time::from_nanos(1_000_000_000), Rng::from_u64(7));
        Host { tree, flows: Vec::new(), now, rng, late: 120_000 }
    }

    fn flow(&mut self, t: Terms, wants: impl Fn(u64) -> bool + 'static) -> usize {
        let id = self.tree.join(self.flows.len() as u64, &t).expect("room");
        self.flows.push(Flow {
            id,
            train: TRAIN,
            wants: Box::new(wants),
            most: u64::MAX,
            sent: 0,
            trains: Vec::new(),
            ask_at: Time::ZERO,
        });
        self.flows.len() - 1
    }

    /// Asks for as many trains as the flow gets now; false if it got none.
    fn drive(&mut self, i: usize) -> bool {
        let (now, since) = (self.now, self.now.as_nanos() / 1_000_000 - 1_000);
        let f = &mut self.flows[i];
        let may = f.most == u64::MAX || f.sent < (f.most as f64 * (now.as_secs_f64() - 1.0)) as u64 + TRAIN;
        if !(f.wants)(since) || !may {
            self.tree.leave(now, f.id);
            f.ask_at = now;
            return false;
        }
        match self.tree.ask(now, f.id, f.train) {
            Ok(()) => {
                f.sent += f.train;
                f.trains.push((now, f.train));
                f.ask_at = now;
                true
            }
            Err(at) => {
                assert!(at > now);
                f.ask_at = at;
                false
            }
        }
    }

    fn run(&mut self, span: Span) {
        let until = self.now + span;
        while self.now < until {
            // Flows that are ready take turns, a train each, then the called one.
            let mut ready: std::collections::VecDeque<usize> =
                (0..self.flows.len()).filter(|i| self.flows[*i].ask_at <= self.now).collect();
            let mut turns = 0;
            loop {
                turns += 1;
                assert!(turns < 100_000, "no end");
                if let Some(i) = ready.pop_front() {
                    if self.drive(i) {
                        ready.push_back(i);
                    }
                } else if let Some(owner) = self.tree.poll_call(self.now) {
                    ready.push_back(owner as usize);
                } else {
                    break;
                }
            }
            let asks = self.flows.iter().map(|f| f.ask_at).filter(|t| *t > self.now);
            let next = asks.chain(self.tree.deadline()).min().unwrap_or(Time::MAX);
            let least = self.now + Span::from_micros(50);
            self.now = next.max(least).min(self.now + Span::from_millis(1));
            self.now += Span::from_nanos(self.rng.below(self.late));
        }
    }

    fn sent(&self) -> Vec<u64> {
        self.flows.iter().map(|f| f.sent).collect()
    }

    /// Bytes of a flow between two times, in milliseconds from the start.
    fn between(&self, i: usize, from: u64, to: u64) -> u64 {
        let at = |ms: u64| Time::from_nanos((1_000 + ms) * 1_000_000);
        let trains = self.flows[i].trains.iter();
        trains.filter(|(t, _)| (at(from)..at(to)).contains(t)).map(|(_, n)| n).sum()
    }

    fn all_trains(&self) -> Vec<(Time, u64)> {
        let mut all: Vec<_> = self.flows.iter().flat_map(|f| f.trains.iter().copied()).collect();
        all.sort_unstable();
        all
    }
}

/// The most by which the bytes sent in any interval exceed those that the rate carries.
fn max_excess(all: &[(Time, u64)], rate: Rate) -> u64 {
    let (mut worst, mut level, mut last) = (0.0_f64, 0.0_f64, Time::ZERO);
    for (at, bytes) in all {
        let drained = rate.bytes_per_sec() as f64 * at.since(last).as_secs_f64();
        level = (level - drained).max(0.0) + *bytes as f64;
        (worst, last) = (worst.max(level), *at);
    }
    worst as u64
}

fn mbit(bytes: u64, ms: u64) -> f64 {
    bytes as f64 * 8.0 / ms as f64 / 1_000.0
}

fn assert_near(got: f64, wanted: f64, part: f64) {
    assert!((got - wanted).abs() <= wanted * part, "{got} is not {wanted}");
}

#[test]
fn flows_without_any_cap_never_wait() {
    let mut h = Host::new(&[class("a", None, 1, 0), class("b", None, 1, 7)], None);
    let (a, b) = (h.flow(terms(0, 1), |_| true), h.flow(terms(1, 1), |_| true));
    for _ in 0..1_000 {
        assert_eq!(h.tree.ask(h.now, h.flows[b].id, TRAIN), Ok(()));
        assert_eq!(h.tree.ask(h.now, h.flows[a].id, TRAIN), Ok(()));
    }
    assert_eq!((h.tree.poll_call(h.now), h.tree.deadline()), (None, None));
    assert_eq!(h.tree.permitted(h.flows[a].id), 1_000 * TRAIN);
}

#[test]
fn shares_follow_weights_and_unused_shares_go_to_the_others() {
    let classes = [class("a", None, 5, 0), class("b", None, 3, 0), class("c", None, 2, 0)];
    let mut h = Host::new(&classes, Some(1_000));
    h.flow(terms(0, 1), |ms| ms < 2_000);
    h.flow(terms(1, 1), |_| true);
    h.flow(terms(2, 1), |_| true);
    h.run(Span::from_millis(4_000));
    for (i, share) in [500.0, 300.0, 200.0].into_iter().enumerate() {
        assert_near(mbit(h.between(i, 0, 2_000), 2_000), share, 0.02);
    }
    assert_near(mbit(h.between(1, 2_000, 4_000), 2_000), 600.0, 0.02);
    assert_near(mbit(h.between(2, 2_000, 4_000), 2_000), 400.0, 0.02);
    assert!(h.between(0, 2_001, 4_000) == 0);
}

#[test]
fn guarantee_is_available_within_milliseconds_against_weights_and_levels() {
    let mut classes = [class("sure", None, 1, 5), class("heavy", None, 10_000, 5), class("high", None, 1, 0)];
    classes[0].guarantee = Some(Rate::from_mbit(300));
    let mut h = Host::new(&classes, Some(1_000));
    h.flow(terms(0, 1), |ms| ms >= 1_000);
    h.flow(terms(1, 1), |_| true);
    h.flow(terms(2, 1), |ms| ms >= 2_000);
    h.run(Span::from_millis(3_000));
    // 300 Mbit/s in the first 5 ms are 187,500 bytes, accurate to a train.
    assert!(h.between(0, 1_000, 1_005) + TRAIN >= 187_500, "{}", h.between(0, 1_000, 1_005));
    assert_near(mbit(h.between(0, 1_000, 2_000), 1_000), 300.0, 0.03);
    assert_near(mbit(h.between(1, 1_000, 2_000), 1_000), 700.0, 0.03);
    assert_near(mbit(h.between(0, 2_000, 3_000), 1_000), 300.0, 0.03);
    assert_near(mbit(h.between(2, 2_000, 3_000), 1_000), 700.0, 0.03);
    // The last train of the lower level may have been in progress when the higher one came.
    assert!(h.between(1, 2_001, 3_000) <= 2 * TRAIN, "{}", h.between(1, 2_001, 3_000));
}

#[test]
fn guarantee_below_the_weighted_share_changes_nothing() {
    let mut classes = [class("sure", None, 1, 0), class("rest", None, 1, 0)];
    classes[0].guarantee = Some(Rate::from_mbit(300));
    let mut h = Host::new(&classes, Some(1_000));
    h.flow(terms(0, 1), |_| true);
    h.flow(terms(1, 1), |_| true);
    h.run(Span::from_millis(2_000));
    assert_near(mbit(h.sent()[0], 2_000), 500.0, 0.02);
}

#[test]
fn nested_caps_hold() {
    let mut classes = [class("a", None, 1, 0), class("a1", Some(0), 1, 0), class("a2", Some(0), 1, 0)];
    classes[0].cap = Some(Rate::from_mbit(100));
    classes[1].cap = Some(Rate::from_mbit(20));
    for host in [None, Some(1_000)] {
        let mut h = Host::new(&classes, host);
        h.flow(terms(1, 1), |_| true);
        h.flow(terms(2, 1), |_| true);
        h.run(Span::from_millis(2_000));
        assert_near(mbit(h.sent()[0], 2_000), 20.0, 0.03);
        assert_near(mbit(h.sent()[1], 2_000), 80.0, 0.03);
        let burst = BURST.max(Rate::from_mbit(100).bytes_in(CATCH_UP)) + TRAIN;
        assert!(max_excess(&h.all_trains(), Rate::from_mbit(100)) <= burst);
    }
}

#[test]
fn flow_guarantee_holds_among_many_flows() {
    let mut h = Host::new(&[class("all", None, 1, 0)], Some(1_000));
    let sure = h.flow(Terms { guarantee: Some(Rate::from_mbit(400)), ..terms(0, 1) }, |_| true);
    (0..30).for_each(|_| {
        h.flow(terms(0, 1), |_| true);
    });
    h.run(Span::from_millis(2_000));
    assert_near(mbit(h.sent()[sure], 2_000), 400.0, 0.03);
    for i in 1..31 {
        assert_near(mbit(h.sent()[i], 2_000), 20.0, 0.1);
    }
    // Without the guarantee it is one of 31.
    let id = h.flows[sure].id;
    h.tree.change(id, &terms(0, 1));
    let before = h.sent();
    h.run(Span::from_millis(2_000));
    assert_near(mbit(h.sent()[sure] - before[sure], 2_000), 1_000.0 / 31.0, 0.1);
}

#[test]
fn share_unused_for_congestion_control_goes_to_the_others() {
    let mut h = Host::new(&[class("a", None, 1, 0), class("b", None, 1, 3)], Some(1_000));
    let slow = h.flow(terms(0, 1), |_| true);
    h.flows[slow].most = 25_000_000;
    let rest = h.flow(terms(1, 1), |_| true);
    h.run(Span::from_millis(2_000));
    assert_near(mbit(h.sent()[slow], 2_000), 200.0, 0.02);
    assert_near(mbit(h.sent()[rest], 2_000), 800.0, 0.02);
}

#[test]
fn nearest_deadline_gets_the_whole_class() {
    let classes = [Class { order: Order::Deadline, ..class("due", None, 1, 0) }];
    let mut h = Host::new(&classes, Some(1_000));
    for k in 0..10_u64 {
        // 12.5 MB take 100 ms each, at the whole rate.
        let by = h.now + Span::from_millis(100 * (10 - k) + 15);
        let due = Due { by, bytes: 12_500_000 };
        h.flow(Terms { deadline: Some(due), ..terms(0, 1) }, |_| true);
        h.flows[k as usize].train = 62_500;
    }
    let left: Vec<FlowId> = h.flows.iter().map(|f| f.id).collect();
    while !h.tree.promised(0).0.is_empty() {
        h.run(Span::from_millis(5));
        for (k, id) in left.iter().enumerate() {
            if h.flows[k].sent >= 12_500_000 {
                h.flows[k].wants = Box::new(|_| false);
                h.tree.leave(h.now, *id);
            }
        }
    }
    for (k, f) in h.flows.iter().enumerate() {
        let last = f.trains[199].0;
        assert!(
            last <= Time::from_nanos(1_000_000_000) + Span::from_millis(100 * (10 - k as u64) + 15),
            "{k}"
        );
    }
}

#[test]
fn called_flow_that_does_not_ask_blocks_no_other() {
    let mut h = Host::new(&[class("a", None, 1, 0), class("b", None, 1, 7)], Some(100));
    let gone = h.flow(terms(0, 1), |_| true);
    h.flow(terms(1, 1), |_| true);
    h.run(Span::from_millis(100));
    // The first never asks again and does not leave.
    h.flows[gone].ask_at = Time::MAX;
    let before = h.sent()[1];
    let mut calls = 0;
    for _ in 0..20_000 {
        h.now += Span::from_micros(50);
        while let Some(owner) = h.tree.poll_call(h.now) {
            calls += usize::from(owner == 0);
            while owner == 1 && h.drive(1) {}
        }
    }
    assert!(calls <= 1, "{calls}");
    assert_near(mbit(h.sent()[1] - before, 1_000), 100.0, 0.05);
}

#[test]
fn new_classes_take_effect_at_once_for_all_waiting_flows() {
    let one = [class("a", None, 1, 0), class("b", None, 1, 0)];
    let two = [class("b", None, 1, 0), class("c", None, 4, 0)];
    let mut h = Host::new(&one, Some(1_000));
    let (x, y) = (h.flow(terms(0, 1), |_| true), h.flow(terms(1, 1), |_| true));
    for k in 0..200 {
        h.run(Span::from_millis(10));
        let now = if k % 2 == 0 { &two } else { &one };
        h.tree.configure(now, Some(Rate::from_mbit(1_000)));
        let at = |name: &str| now.iter().position(|c| c.name == name);
        let (ids, was) = ((h.flows[x].id, h.flows[y].id), h.sent());
        h.tree.change(ids.0, &terms(at("a").or(at("c")).expect("a class"), 1));
        h.tree.change(ids.1, &terms(at("b").expect("a class"), 1));
        h.run(Span::from_millis(10));
        assert!(h.sent()[x] > was[x] && h.sent()[y] > was[y]);
    }
    assert!(
        max_excess(&h.all_trains(), Rate::from_mbit(1_000))
            <= Rate::from_mbit(1_000).bytes_in(CATCH_UP) + 3 * TRAIN
    );
    let ms = h.now.as_nanos() / 1_000_000 - 1_000;
    assert_near(mbit(h.sent()[x] + h.sent()[y], ms), 1_000.0, 0.02);
    // Without a cap all waiting flows are called.
    h.tree.configure(&one, None);
    let mut called = 0;
    while let Some(owner) = h.tree.poll_call(h.now) {
        assert_eq!(h.tree.ask(h.now, h.flows[owner as usize].id, TRAIN), Ok(()));
        called += 1;
    }
    assert_eq!((called, h.tree.deadline()), (2, None));
}

#[test]
fn refunded_bytes_can_be_sent_again() {
    let mut h = Host::new(&[class("a", None, 1, 0)], Some(8));
    let a = h.flow(terms(0, 1), |_| true);
    let id = h.flows[a].id;
    let mut sent = 0;
    while h.now < Time::from_nanos(3_000_000_000) {
        if h.tree.ask(h.now, id, TRAIN).is_ok() {
            h.tree.refund(id, TRAIN - 1_000);
            sent += 1_000;
        }
        h.now += Span::from_micros(100);
    }
    assert_near(mbit(sent, 2_000), 8.0, 0.05);
}

fn any_class(i: usize) -> impl Strategy<Value = Class> {
    (
        prop::option::of(0..i.max(1)),
        1_u32..20,
        0_u8..3,
        prop::option::of(10_u64..60),
        prop::option::of(50_u64..400),
    )
        .prop_map(move |(parent, weight, level, guarantee, cap)| Class {
            parent: parent.filter(|_| i > 0),
            guarantee: guarantee.map(Rate::from_mbit),
            cap: cap.map(Rate::from_mbit),
            ..class(&format!("c{i}"), None, weight, level)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For any tree and demand: no class and not the process exceeds its cap by more than a burst, no rate is unused
    /// while a flow wants it, and guarantees hold.
    #[test]
    fn random_trees_respect_caps_and_guarantees_and_are_work_conserving(
        classes in (0..1_usize, prop::collection::vec(any::<u8>(), 6)).prop_flat_map(|_| {
            (any_class(0), any_class(1), any_class(2), any_class(3), any_class(4), any_class(5))
        }),
        demands in prop::collection::vec((0_usize..6, 1_u32..50, 0_u64..400, 100_u64..1_000, 1_500_u64..TRAIN), 1..14),
        cap in 400_u64..2_000,
    ) {
        let classes: Vec<Class> = vec![classes.0, classes.1, classes.2, classes.3, classes.4, classes.5];
        let mut h = Host::new(&classes, Some(cap));
        for (class, weight, from, to, train) in &demands {
            let (from, to) = (*from, *to);
            let i = h.flow(terms(*class, *weight), move |ms| (from..to).contains(&ms));
            h.flows[i].train = *train;
        }
        h.run(Span::from_millis(1_000));
        let rate = Rate::from_mbit(cap);
        let burst = |r: Rate| BURST.max(r.bytes_in(CATCH_UP)) + TRAIN;
        prop_assert!(max_excess(&h.all_trains(), rate) <= burst(rate));
        for (i, c) in classes.iter().enumerate() {
            let below = |mut k: usize| loop {
                match (k == i, classes[k].parent) {
                    (true, _) => break true,
                    (_, Some(p)) => k = p,
                    _ => break false,
                }
            };
            let mut its: Vec<(Time, u64)> = demands.iter().zip(&h.flows).filter(|(d, _)| below(d.0))
                .flat_map(|(_, f)| f.trains.iter().copied()).collect();
            its.sort_unstable();
            if let Some(cap) = c.cap {
                prop_assert!(max_excess(&its, cap) <= burst(cap), "{}: {}", c.name, max_excess(&its, cap));
            }
        }
        // While a flow without any cap above it wants to send, the process must be busy.
        let free = |k: usize| { let mut k = Some(k); loop { match k {
            Some(i) if classes[i].cap.is_some() => break false, Some(i) => k = classes[i].parent, None => break true } } };
        if let Some((from, to)) = demands.iter().filter(|d| free(d.0)).map(|d| (d.2, d.3)).max_by_key(|(f, t)| t.saturating_sub(*f))
            && to > from + 50
        {
            let all: u64 = (0..h.flows.len()).map(|i| h.between(i, from + 5, to)).sum();
            let carries = rate.bytes_in(Span::from_millis(to - from - 5));
            prop_assert!(all + burst(rate) >= carries, "{all} of {carries}");
        }
    }
}
