//! Tests of the tables of regions and windows: accounting, and access by key.

use super::*;
use crate::ordered::{PeerRead, RemoteError};
use crate::region::{KeyMap, fresh_key};

fn ordered_end() -> End {
    End::new(1, |i| (i.kind, i.max_rd_atomic) = (Kind::Ordered, 2))
}

/// An ordered queue pair of a protection domain, ready to receive.
fn ordered_pair(e: &mut End, pd: PdId) -> QpId {
    let qp = e.a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(e.scq, e.rcq) }).unwrap();
    e.a.modify_qp(qp, QpState::Rtr).unwrap();
    e.a.modify_qp(qp, QpState::Rts).unwrap();
    qp
}

#[test]
fn deregistration_releases_exactly_the_region_bytes() {
    let limits = Limits { registered_bytes: 100, ..Limits::default() };
    let mut a = Adapter::new(limits, base::Rng::from_u64(1));
    let pd = a.alloc_pd().unwrap();
    let register = |a: &mut Adapter, n| a.reg_mr(pd, Memory::zeroed(n), Access::ALL).map_err(|e| e.0);
    let (first, second) = (register(&mut a, 60).unwrap(), register(&mut a, 30).unwrap());
    a.dereg_mr(first.id).unwrap();
    assert_eq!(register(&mut a, 71).unwrap_err(), Error::Limit("registered bytes"));
    let third = register(&mut a, 70).unwrap();
    for id in [second.id, third.id] {
        a.dereg_mr(id).unwrap();
    }
    assert_eq!(register(&mut a, 101).unwrap_err(), Error::Limit("registered bytes"));
    assert!(register(&mut a, 100).is_ok());
}

#[test]
fn writable_extent_ends_with_the_key() {
    let mut e = ordered_end();
    let (qp, dst) = (e.qp, e.dst);
    let to_the_end = |at| Some(MrRange { mr: dst.id, offset: at, len: SIZE - at });
    for at in [0, 1, SIZE - 1, SIZE] {
        assert_eq!(e.a.write_reach(qp, dst.rkey, at), to_the_end(at));
    }
    assert_eq!(e.a.write_reach(qp, dst.rkey, SIZE + 1), None);
    assert_eq!(e.a.write_reach(qp, dst.rkey ^ 1, 0), None, "no such key");
    assert_eq!(e.a.write_reach(qp, e.src.rkey, 0), None, "readable only");
    let mw = e.a.alloc_mw(e.pd).unwrap();
    let range = WindowRange { mr: dst.id, offset: 100, len: 50, access: Access::REMOTE_WRITE };
    let rkey = e.a.bind_mw(qp, mw, range).unwrap();
    assert_eq!(e.a.write_reach(qp, rkey, 20), Some(MrRange { mr: dst.id, offset: 120, len: 30 }));
    assert_eq!(e.a.write_reach(qp, rkey, 51), None);
    let (pd, other) = (e.pd, e.a.alloc_pd().unwrap());
    let (neighbour, stranger) = (ordered_pair(&mut e, pd), ordered_pair(&mut e, other));
    assert_eq!(e.a.write_reach(neighbour, rkey, 0), None, "another queue pair's window");
    assert_eq!(e.a.write_reach(neighbour, dst.rkey, 0), to_the_end(0), "a region is for its whole domain");
    assert_eq!(e.a.write_reach(stranger, dst.rkey, 0), None, "another domain's region");
    assert_eq!(e.a.write_reach(stranger, rkey, 0), None);
}

#[test]
fn window_region_and_queue_pair_share_a_protection_domain() {
    let mut e = ordered_end();
    let other = e.a.alloc_pd().unwrap();
    let foreign = e.a.reg_mr(other, Memory::zeroed(10), Access::ALL).unwrap();
    let (own_window, foreign_window) = (e.a.alloc_mw(e.pd).unwrap(), e.a.alloc_mw(other).unwrap());
    let show = |mr| WindowRange { mr, offset: 0, len: 10, access: Access::REMOTE_READ };
    let qp = e.qp;
    for (window, mr) in [(own_window, foreign.id), (foreign_window, e.src.id), (foreign_window, foreign.id)] {
        let got = e.a.bind_mw(qp, window, show(mr));
        assert!(matches!(got, Err(Error::Invalid(_))), "{got:?}");
    }
    let rkey = e.a.bind_mw(qp, own_window, show(e.src.id)).unwrap();
    let read = |e: &mut End, qp, rkey| e.a.accept_read(qp, PeerRead { rkey, offset: 0, len: 1, sink: 0 });
    assert_eq!(read(&mut e, qp, rkey), Ok(()));
    let stranger = ordered_pair(&mut e, other);
    for (who, key) in [(stranger, rkey), (stranger, e.src.rkey), (qp, foreign.rkey)] {
        assert_eq!(read(&mut e, who, key), Err(RemoteError::Association));
    }
}

/// ReDMArk found keys that count up, that begin the same after each start, and that tell those of other applications.
#[test]
fn keys_are_unpredictable() {
    const N: usize = 2_000;
    let keys = |seed| {
        let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(seed));
        let pd = a.alloc_pd().unwrap();
        let mr = |_| a.reg_mr(pd, Memory::zeroed(1), Access::ALL).unwrap();
        let mut all: Vec<u32> = (0..N / 2).map(mr).flat_map(|m| [m.lkey, m.rkey]).collect();
        let first = all.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), N, "a key was given twice");
        first
    };
    let (mine, others) = (keys(1), keys(2));
    assert!(mine.iter().all(|k| *k != 0 && !others.contains(k)), "another start, the same keys");
    // No step from one key to the next is seen twice, and no bit says anything.
    let mut steps: Vec<u32> = mine.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
    steps.sort_unstable();
    assert!(steps.windows(2).all(|w| w[0] != w[1]), "keys that count");
    for bit in 0..32 {
        let set = mine.iter().filter(|k| *k >> bit & 1 == 1).count();
        assert!((N * 2 / 5..N * 3 / 5).contains(&set), "bit {bit} is set in {set} of {N}");
    }
}

#[test]
fn used_key_is_not_issued_again() {
    let mut rng = base::Rng::from_u64(1);
    let (first, second) = {
        let mut same = rng.clone();
        (same.u32(), same.u32())
    };
    let mut taken = KeyMap::default();
    taken.insert(first, ());
    assert_eq!(fresh_key(&taken, &mut rng), second);
}

#[test]
fn access_rights_accumulate() {
    assert_eq!(Access::ALL | Access::LOCAL_WRITE, Access::ALL);
    assert_eq!(Access::LOCAL_WRITE | Access::LOCAL_READ, Access::LOCAL_WRITE);
    assert!((Access::REMOTE_READ | Access::REMOTE_WRITE).contains(Access::REMOTE_READ));
}

#[test]
fn fold_and_address_stay_within_bounds() {
    let mut e = ordered_end();
    let place = |offset, len| MrRange { mr: e.src.id, offset, len };
    let (all, part, beyond) = (place(0, SIZE), place(100, 50), place(SIZE - 1, 2));
    let mut out = Vec::new();
    e.a.fold_mr(part, &mut |b| out.extend_from_slice(b)).unwrap();
    assert_eq!(out, e.bytes(e.src, 100, 50));
    assert_eq!(e.a.fold_mr(beyond, &mut |_| panic!("beyond the region")), Err(Error::OutOfBounds));
    let start = e.a.address(all).unwrap();
    assert!(!start.is_null());
    assert_eq!(e.a.address(part).unwrap().addr(), start.addr() + 100);
    assert_eq!(e.a.address(beyond), Err(Error::OutOfBounds));
}

#[test]
fn offsets_of_a_region_count_from_its_base() {
    const BASE: u64 = 0x7f00_1234_5000;
    let (mut x, mut y) = reliable();
    let at = |e: &mut End| e.a.reg_mr_at(e.pd, Memory::zeroed(1_000), BASE, Access::ALL).unwrap();
    let (mine, theirs) = (at(&mut x), at(&mut y));
    assert_eq!((mine.base, mine.len), (BASE, 1_000));
    x.a.write_mr(mine.id, BASE, &[7; 1_000]).unwrap();
    let sge = |len| Sge { lkey: mine.lkey, offset: BASE + 100, len };
    let write = SendOp::Write { rkey: theirs.rkey, offset: BASE + 900 };
    x.post(SendWr::new(1, write, Data::from(sge(100))));
    x.post(SendWr::new(2, SendOp::Read { rkey: theirs.rkey, offset: BASE + 850 }, Data::from(sge(100))));
    run(&mut x, &mut y, 33);
    assert_eq!(ids(&x.sent()), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(y.bytes(theirs, BASE + 898, 102)[..4], [0, 0, 7, 7]);
    assert_eq!(x.bytes(mine, BASE + 148, 4), [0, 0, 7, 7]);

    // Neither before its first byte nor behind its last, here or there.
    for (offset, len) in [(BASE - 1, 1), (0, 1), (BASE + 1_000, 1), (BASE + 999, 2), (u64::MAX - 1, 1)] {
        let own = Sge { lkey: mine.lkey, offset, len };
        let posted = x.a.post_send(x.qp, SendWr::new(3, write, Data::from(own)));
        assert_eq!(posted, Err(Error::OutOfBounds), "{offset:#x}");
        let (mut x, mut y) = reliable();
        let theirs = at(&mut y);
        let op = SendOp::Write { rkey: theirs.rkey, offset };
        x.post(SendWr::new(4, op, Data::from(x.source(0, len))));
        let (segment, payload) = x.segment(100).unwrap();
        assert_eq!(y.place(&segment, &payload), Err(Violation::OutOfBounds), "{offset:#x}");
        assert_eq!(y.bytes(theirs, BASE, 1_000), vec![0; 1_000]);
    }
    let beyond = x.a.reg_mr_at(x.pd, Memory::zeroed(10), u64::MAX - 5, Access::ALL).map_err(|e| e.0);
    assert!(matches!(beyond, Err(Error::Invalid(_))));
}
