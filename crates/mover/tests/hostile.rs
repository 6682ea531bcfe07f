//! Clients that speak the protocol by hand, against servers that allow part of it: what they learn, and what they change.

#![allow(clippy::disallowed_methods, reason = "a test waits for threads")]

mod common;

use base::{Span, Time};
use common::{client_endpoint, noise, put, put_as_another, put_slowly, put_with, serve};
use endpoint::{App, ConnId, Connect, Endpoint, Event};
use longhaul_mover::path::RelPath;
use longhaul_mover::proto::{
    CopyMessage, Extraneous, Flags, Hello, Kind, MAX_MESSAGE, Meta, Name, Offer, Op, Record, Root, Sending,
    VERSION, decode, put as add,
};
use longhaul_mover::{Error, ServeOptions, TransferOptions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use verbs::{Access, Data, Memory, MrId, Opcode, RecvWr, SendOp, SendWr, Sge, Sges, Status};

/// A transfer that takes longer has failed.
const WATCHDOG: Span = Span::from_secs(30);
const META: Meta = Meta { mode: 0o640, secs: 1_000_000_000, nanos: 5 };
const FLAGS: Flags = Flags {
    skip_same: true,
    checksum: true,
    overwrite: true,
    dry_run: false,
    recursive: true,
    fresh: false,
    scan: false,
};

fn path(p: &str) -> RelPath {
    RelPath::parse(p.as_bytes()).unwrap()
}
fn name(p: &str) -> Name {
    Name { root: 0, path: path(p) }
}
fn message(records: &[Record<'_>]) -> Vec<u8> {
    let mut m = Vec::new();
    records.iter().for_each(|r| add(&mut m, r));
    m
}
fn hello(op: Op, flags: Flags, p: &str) -> Vec<u8> {
    let (paths, contents) = (vec![path(p)], vec![false]);
    let (transfer, sending) = ([7; 16], Sending::default());
    let into = op == Op::Put;
    message(&[Record::Hello(Hello {
        version: VERSION,
        op,
        flags,
        transfer,
        paths,
        into,
        contents,
        sending,
        link_targets: false,
        data_reduction: longhaul_mover::DataReduction::default(),
        keep: Default::default(),
    })])
}
/// What opens a put of a folder's contents into the served folder, and asks for everything there is to be listed.
fn opening(flags: Flags) -> Vec<Vec<u8>> {
    let roots = vec![Root { name: RelPath::root(), kind: Kind::Dir }];
    vec![hello(Op::Put, flags, ""), message(&[Record::Roots(roots), Record::ListCredit(1_000)])]
}
fn small<'a>(p: &str, data: &'a [u8]) -> Record<'a> {
    Record::Small { name: name(p), meta: META, hash: *blake3::hash(data).as_bytes(), data }
}
fn offer(p: &str, size: u64) -> Record<'static> {
    let extents = vec![std::ops::Range { start: 0, end: size }];
    Record::Offer(Offer { file: 0, name: name(p), meta: META, size, extents })
}

/// Sends `first` at once and `then` after the end of the listing, and notes what is answered.
struct ByHand {
    connect: Option<Connect>,
    conn: Option<ConnId>,
    first: Vec<Vec<u8>>,
    then: Vec<Vec<u8>>,
    buffers: Vec<MrId>,
    answers: Vec<String>,
    started: Option<Time>,
    closed: bool,
}

impl ByHand {
    fn send(&self, ep: &mut Endpoint, m: Vec<u8>) {
        let qp = ep.connection(self.conn.unwrap()).unwrap().qps[0];
        let data = Data::Inline(m.into());
        ep.adapter().post_send(qp, SendWr::new(1_000, SendOp::Send, data)).unwrap();
    }
    fn begin(&mut self, ep: &mut Endpoint, conn: ConnId) {
        let info = ep.connection(conn).unwrap();
        let (pd, qp) = (info.pd, info.qps[0]);
        for wr_id in 0..32 {
            let rights = Access::LOCAL_WRITE | Access::LOCAL_READ;
            let mr = ep.adapter().reg_mr(pd, Memory::zeroed(MAX_MESSAGE), rights).map_err(|e| e.0).unwrap();
            let sges = Sges::One(Sge { lkey: mr.lkey, offset: 0, len: mr.len });
            ep.adapter().post_recv(qp, RecvWr { wr_id, sges }).unwrap();
            self.buffers.push(mr.id);
        }
        for m in std::mem::take(&mut self.first) {
            self.send(ep, m);
        }
    }
    /// What was answered, without what depends on time or chance.
    fn note(&mut self, r: &Record<'_>) {
        match r {
            Record::Progress { .. } | Record::Welcome { .. } => {}
            Record::Grant { file, start, len, .. } => {
                self.answers.push(format!("Grant {file} {start} {len}"));
            }
            r => self.answers.push(format!("{r:?}")),
        }
    }
    fn heard(&mut self, now: Time, m: &[u8], ep: &mut Endpoint) {
        for r in decode(m).unwrap() {
            self.note(&r);
            match r {
                Record::ListEnd if self.then.is_empty() => ep.close(now, self.conn.unwrap(), 0x1000, "done"),
                Record::ListEnd => {
                    for m in std::mem::take(&mut self.then) {
                        self.send(ep, m);
                    }
                }
                // Nothing is written to the memory: what was offered is taken back.
                Record::Grant { file, .. } => {
                    self.send(
                        ep,
                        message(&[Record::Drop { file, cause: 8, text: String::new() }, Record::SourceEnd]),
                    );
                }
                Record::Done { file, .. } => {
                    self.send(
                        ep,
                        message(&[Record::Drop { file, cause: 0, text: String::new() }, Record::SourceEnd]),
                    );
                }
                Record::SinkEnd(_) | Record::Abort { .. } => {
                    ep.close(now, self.conn.unwrap(), 0x1000, "done")
                }
                _ => {}
            }
        }
    }
}

impl App for ByHand {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        let started = *self.started.get_or_insert(now);
        if let Some(c) = self.connect.take() {
            self.conn = Some(ep.connect(now, c).unwrap());
        }
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Connected { conn } => self.begin(ep, conn),
                Event::Closed { reason, .. } => {
                    self.answers.push(format!("closed: {reason}"));
                    self.closed = true;
                }
                _ => {}
            }
        }
        let Some(info) = self.conn.and_then(|c| ep.connection(c)) else { return };
        let cq = info.cq;
        while let Some(wc) = ep.adapter().poll_cq(cq) {
            if wc.opcode == Opcode::Recv && wc.status == Status::Success {
                let mut m = vec![0; wc.byte_len as usize];
                ep.adapter().read_mr(self.buffers[wc.wr_id as usize], 0, &mut m).unwrap();
                self.heard(now, &m, ep);
            }
        }
        assert!(now.since(started) < WATCHDOG, "still waiting; heard so far: {:#?}", self.answers);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.started.map(|s| s + WATCHDOG)
    }
    fn finished(&self) -> bool {
        self.closed
    }
}

/// What a server answers to these messages, until the connection ends.
fn answers(addr: SocketAddr, first: Vec<Vec<u8>>, then: Vec<Vec<u8>>) -> Vec<String> {
    let (mut driver, mut ep, connect) = client_endpoint(addr);
    let (connect, conn) = (Some(connect), None);
    let (buffers, answers) = Default::default();
    let mut app = ByHand { connect, conn, first, then, buffers, answers, started: None, closed: false };
    driver.run(&mut ep, &mut app).unwrap();
    app.answers
}
fn write_only(root: &Path) -> ServeOptions {
    ServeOptions { allow_read: false, ..ServeOptions::new(root) }
}

/// Name, mode, modification time and contents of everything below a folder but what transfers keep for themselves.
fn picture(root: &Path) -> Vec<(String, u32, i64, i64, Vec<u8>)> {
    let (mut v, mut todo) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(p) = todo.pop() {
        let m = p.symlink_metadata().unwrap();
        let shown = p.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        if shown.contains(".longhaul-") {
            continue;
        }
        let data = match () {
            () if m.is_dir() => {
                todo.extend(std::fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
                Vec::new()
            }
            () if m.is_symlink() => std::fs::read_link(&p).unwrap().into_os_string().into_encoded_bytes(),
            () => std::fs::read(&p).unwrap(),
        };
        v.push((shown, m.mode(), m.mtime(), m.mtime_nsec(), data));
    }
    v.sort();
    v
}
/// Things that a client wants to know of.
fn furnish(root: &Path) {
    std::fs::create_dir_all(root.join("folder/below")).unwrap();
    std::fs::write(root.join("folder/salaries"), "precious").unwrap();
    std::fs::write(root.join("small"), "precious").unwrap();
    std::fs::write(root.join("large"), noise(1, 2 << 20)).unwrap();
    std::os::unix::fs::symlink("small", root.join("link")).unwrap();
    for p in ["folder", "small", "large"] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(77);
        std::fs::File::open(root.join(p)).unwrap().set_modified(time).unwrap();
    }
}

#[test]
fn a_write_only_server_answers_the_same_whatever_lies_there() {
    // What is sent is what lies there, in part of the cases: the likeliest to be left out.
    let large = noise(1, 2 << 20);
    let probes = || {
        vec![
            vec![message(&[small("small", b"precious"), small("small", b"other"), Record::SourceEnd])],
            vec![message(&[Record::Dir { name: name("folder"), meta: META }, Record::SourceEnd])],
            vec![message(&[
                Record::Link { name: name("link"), meta: META, target: b"small" },
                Record::SourceEnd,
            ])],
            vec![message(&[offer("large", large.len() as u64)])],
            vec![message(&[Record::Touch { name: name("small"), meta: META }, Record::SourceEnd])],
            vec![message(&[Record::Touch { name: name("none"), meta: META }, Record::SourceEnd])],
            vec![message(&[small("new/small", b"x"), Record::SourceEnd])],
        ]
    };
    for flags in [FLAGS, Flags { skip_same: false, checksum: false, ..FLAGS }, Flags { fresh: true, ..FLAGS }]
    {
        for (i, probe) in probes().into_iter().enumerate() {
            let (empty, full) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            furnish(full.path());
            let ask = |root: &Path| answers(serve(write_only(root)).addr, opening(flags), probe.clone());
            let (a, b) = (ask(empty.path()), ask(full.path()));
            assert_eq!(a, b, "probe {i}");
            let all = b.join("\n");
            assert!(!all.contains("Entry") && !all.contains("salaries"), "{all}");
            assert!(all.contains("ListEnd") && (all.contains("SinkEnd") || all.contains("closed")), "{all}");
            assert_eq!(all.contains("nobody was told of"), [4, 5].contains(&i), "{all}");
        }
    }
}

#[test]
fn what_is_in_the_way_on_a_write_only_server_fails_without_the_reason() {
    let root = tempfile::tempdir().unwrap();
    furnish(root.path());
    std::os::unix::fs::symlink("/", root.path().join("out")).unwrap();
    let before = picture(root.path());
    let probes = [
        small("folder", b"x"),
        small("small/below", b"x"),
        small("link/below", b"x"),
        small("out/below", b"x"),
        Record::Dir { name: name("small"), meta: META },
        Record::Link { name: name("folder"), meta: META, target: b"x" },
    ];
    let told = |o: &ServeOptions, probe: &Record<'_>| {
        let then = vec![message(&[probe.clone(), Record::SourceEnd])];
        let mut a = answers(serve(o.clone()).addr, opening(FLAGS), then);
        a.retain(|l| l.starts_with("Failed"));
        assert_eq!(a.len(), 1, "{probe:?}: {a:?}");
        let text = a[0].split("cause:").nth(1).unwrap().to_owned();
        assert!(text.contains("does not say why"), "{text}");
        text
    };
    let open = write_only(root.path());
    let mut texts: Vec<String> = probes.iter().map(|p| told(&open, p)).collect();
    // Where nothing may be replaced, what exists looks like what is in the way.
    let kept = ServeOptions { allow_overwrite: false, ..open };
    texts.extend(
        [small("small", b"precious"), small("large", b"x"), probes[0].clone()].map(|p| told(&kept, &p)),
    );
    assert!(texts.iter().all(|t| *t == texts[0]), "{texts:#?}");
    // So does a destination that cannot be one.
    let roots = vec![Root { name: RelPath::root(), kind: Kind::Dir }];
    let first = vec![hello(Op::Put, FLAGS, "small"), message(&[Record::Roots(roots)])];
    let a = answers(serve(kept.clone()).addr, first, Vec::new()).join("\n");
    assert!(a.contains("does not say why") && !a.contains("is a file"), "{a}");
    let now = picture(root.path());
    let changed: Vec<_> = before.iter().filter(|b| !now.contains(b)).map(|b| &b.0).collect();
    assert!(changed.is_empty() || changed == [""], "{changed:?}");
}

#[test]
fn a_write_only_server_refuses_what_would_tell() {
    let root = tempfile::tempdir().unwrap();
    furnish(root.path());
    let s = serve(write_only(root.path()));
    let before = picture(root.path());
    for (first, word) in [
        (hello(Op::Get, FLAGS, "small"), "gives none"),
        (hello(Op::List, FLAGS, ""), "gives none"),
        (hello(Op::Put, Flags { dry_run: true, ..FLAGS }, ""), "--dry-run"),
        (hello(Op::Put, Flags { overwrite: false, ..FLAGS }, ""), "--no-overwrite"),
    ] {
        let a = answers(s.addr, vec![first], Vec::new()).join("\n");
        assert!(a.contains("refused: true") && a.contains(word), "{a}");
        assert!(!a.contains("salaries") && !a.contains("Entry"), "{a}");
    }
    assert_eq!(picture(root.path()), before);
    // The ordinary client says it to its user, and sends everything without being told what is there.
    let from = tempfile::tempdir().unwrap();
    std::fs::write(from.path().join("small"), "precious").unwrap();
    let rehearsal = TransferOptions { dry_run: true, checksum: true, ..TransferOptions::default() };
    let r = put_with(s.addr, &from.path().join("small"), "", rehearsal, |_, _| ()).unwrap();
    assert!(matches!(r.error, Some(Error::Refused { text }) if text.contains("--dry-run")));
    for _ in 0..2 {
        let r = put(s.addr, &from.path().join("small"), "").unwrap();
        assert_eq!((r.success(), r.totals.files, r.progress.files_skipped), (true, 1, 0));
    }
}

#[test]
fn parts_on_a_write_only_server_are_resumed_by_their_sender_only() {
    let (root, from) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = from.path().join("large");
    std::fs::write(&file, noise(1, 24 << 20)).unwrap();
    let interrupt = |s: &common::Server| {
        let r = put_slowly(s.addr, &file, "", 200, |p, wake| {
            std::thread::spawn(move || {
                while p.snapshot().bytes_confirmed < 8 << 20 && p.outcome().is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                p.interrupt();
                wake();
            });
        });
        assert_eq!(r.unwrap().error, Some(Error::Interrupted));
    };
    let s = serve(write_only(root.path()));
    interrupt(&s);
    let r = put(s.addr, &file, "").unwrap();
    assert!(r.success() && r.totals.resumed_bytes >= 4 << 20, "{:?}", r.totals);
    std::fs::remove_file(root.path().join("large")).unwrap();
    interrupt(&s);
    let r = put_as_another(s.addr, &file, "").unwrap();
    assert!(r.success() && r.totals.resumed_bytes == 0, "{:?}", r.totals);
    assert!(std::fs::read(root.path().join("large")).unwrap() == noise(1, 24 << 20));
    // A server that may be read from has no such secrets.
    std::fs::remove_file(root.path().join("large")).unwrap();
    let s = serve(ServeOptions::new(root.path()));
    interrupt(&s);
    let r = put_as_another(s.addr, &file, "").unwrap();
    assert!(r.success() && r.totals.resumed_bytes >= 4 << 20, "{:?}", r.totals);
}

#[test]
fn a_read_only_server_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    furnish(root.path());
    // What an interrupted transfer left stays as well, and is not given away.
    std::fs::write(root.path().join(".large.longhaul-part"), "left").unwrap();
    std::fs::write(root.path().join(".large.longhaul-journal"), "left").unwrap();
    let s = serve(ServeOptions { allow_write: false, ..ServeOptions::new(root.path()) });
    let before = picture(root.path());
    let changes = message(&[
        small("small", b"x"),
        small("new", b"x"),
        Record::Dir { name: name("folder"), meta: META },
        Record::Touch { name: name("small"), meta: META },
        Record::Link { name: name("link"), meta: META, target: b"x" },
        Record::SourceEnd,
    ]);
    let put = [opening(FLAGS), vec![changes.clone(), message(&[offer("large", 1 << 20)])]].concat();
    let a = answers(s.addr, put, Vec::new()).join("\n");
    assert!(a.contains("read-only"), "{a}");
    // Behind requests that are allowed.
    for op in [Op::Get, Op::List] {
        let a = answers(s.addr, vec![hello(op, FLAGS, "folder"), changes.clone()], Vec::new()).join("\n");
        assert!(a.contains("code 0x1002"), "{a}");
    }
    let a =
        answers(s.addr, vec![hello(Op::List, FLAGS, ""), message(&[Record::ListCredit(100)])], Vec::new());
    assert!(
        a.iter().any(|l| l.contains("salaries"))
            && !a.iter().any(|l| l.starts_with("Entry") && l.contains("longhaul-")),
        "{a:?}"
    );
    assert_eq!(picture(root.path()), before);
    for left in [".large.longhaul-part", ".large.longhaul-journal"] {
        assert_eq!(std::fs::read(root.path().join(left)).unwrap(), b"left");
    }
}

#[test]
fn a_server_without_overwriting_keeps_what_exists_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    furnish(root.path());
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
    let s = serve(ServeOptions { allow_overwrite: false, ..ServeOptions::new(root.path()) });
    let before = picture(root.path());
    let then = vec![message(&[
        small("small", b"x"),
        small("folder/salaries", b"x"),
        Record::Link { name: name("link"), meta: META, target: b"x" },
        Record::Link { name: name("small"), meta: META, target: b"x" },
        Record::Dir { name: name("folder"), meta: META },
        Record::Touch { name: name("large"), meta: META },
        small("new", b"x"),
        offer("large", 1 << 20),
    ])];
    // The client says that it overwrites; the server does not.
    let a = answers(s.addr, opening(FLAGS), then).join("\n");
    assert!(a.contains("failed: 5"), "{a}");
    let now = picture(root.path());
    // The folder itself got a new name in it, and with it another time.
    let kept = |b: &&(String, u32, i64, i64, Vec<u8>)| b.0.is_empty() || now.contains(b);
    assert_eq!(
        before.iter().filter(kept).count(),
        before.len(),
        "{:?}",
        now.iter().map(|n| &n.0).collect::<Vec<_>>()
    );
    assert_eq!(now.len(), before.len() + 1);
}

/// In front of a put: what is left over is to go.
fn deleting() -> Vec<u8> {
    let delete = Some(longhaul_mover::select::Delete::default());
    message(&[Record::Select(Box::new(longhaul_mover::Select { delete, ..Default::default() }))])
}
fn extraneous(p: &str, kind: Kind, size: u64, meta: Meta) -> Record<'static> {
    Record::Delete(Extraneous { name: name(p), kind, size, meta })
}

#[test]
fn only_allowed_requested_and_listed_files_are_deleted() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir_all(root.path().join("folder")).unwrap();
    for p in ["old", "changed", "folder/new"] {
        std::fs::write(root.path().join(p), "1234").unwrap();
    }
    std::fs::write(outside.path().join("precious"), "1234").unwrap();
    std::os::unix::fs::symlink(outside.path(), root.path().join("door")).unwrap();
    let seen = |p: &std::path::Path| {
        let m = std::fs::metadata(p).unwrap();
        Meta { mode: 0o600, secs: m.mtime(), nanos: m.mtime_nsec() as u32 }
    };
    let (old, precious) = (seen(&root.path().join("old")), seen(&outside.path().join("precious")));
    let deletes = || {
        vec![message(&[
            extraneous("door/precious", Kind::File, 4, precious),
            extraneous("folder", Kind::Dir, 0, META),
            extraneous("old", Kind::File, 4, old),
            extraneous("changed", Kind::File, 5, old),
            Record::SourceEnd,
        ])]
    };
    let all = picture(root.path());
    // Not allowed; allowed and not asked for; asked for by what is no put.
    let s = serve(ServeOptions::new(root.path()));
    let a = answers(s.addr, [vec![deleting()], opening(FLAGS)].concat(), deletes()).join("\n");
    assert!(a.contains("--allow-delete"), "{a}");
    let s = serve(ServeOptions { allow_delete: true, ..ServeOptions::new(root.path()) });
    let a = answers(s.addr, opening(FLAGS), deletes()).join("\n");
    assert!(a.contains("code 0x1002"), "{a}");
    for twice in [
        vec![deleting(), deleting(), hello(Op::Put, FLAGS, "")],
        vec![deleting(), hello(Op::List, FLAGS, "")],
    ] {
        let a = answers(s.addr, twice, Vec::new()).join("\n");
        assert!(a.contains("code 0x1002"), "{a}");
    }
    // The mark of a session changes the time of the folder itself.
    assert_eq!(picture(root.path())[1..], all[1..]);
    // A root itself, and a root that was not announced.
    for (n, p) in [(0, ""), (7, "old")] {
        let e = Extraneous { name: Name { root: n, path: path(p) }, kind: Kind::Dir, size: 0, meta: META };
        let then = vec![message(&[Record::Delete(e), Record::SourceEnd])];
        let a = answers(s.addr, [vec![deleting()], opening(FLAGS)].concat(), then).join("\n");
        assert!(a.contains("code 0x1002"), "{a}");
    }
    assert!(root.path().join("old").exists());
    // A failure of the source keeps all.
    let failed = Record::Failed { path: "x".into(), cause: 14, text: "the disk".into() };
    let then = [vec![message(&[failed])], deletes()].concat();
    answers(s.addr, [vec![deleting()], opening(FLAGS)].concat(), then);
    assert!(root.path().join("old").exists());
    let a = answers(s.addr, [vec![deleting()], opening(FLAGS)].concat(), deletes()).join("\n");
    assert!(a.contains("failed: 1"), "the way through a link: {a}");
    assert!(!root.path().join("old").exists());
    assert!(root.path().join("changed").exists() && root.path().join("folder/new").exists());
    assert!(outside.path().join("precious").exists());
}

#[test]
fn selections_and_changes_keep_their_limits() {
    use longhaul_mover::proto::Change;
    use longhaul_mover::select::{MAX_NAMES_BYTES, Names};
    let root = tempfile::tempdir().unwrap();
    furnish(root.path());
    let before = picture(root.path());
    let s = serve(ServeOptions::new(root.path()));
    // Names without end.
    let part = |n: usize| {
        let names = (0..200).map(|i| (path(&format!("{}/{n:05}/{i}", "x".repeat(200))), false)).collect();
        message(&[Record::Names(Names::new(names))])
    };
    let endless: Vec<Vec<u8>> = (0..MAX_NAMES_BYTES / 40_000 + 2).map(part).collect();
    let a = answers(s.addr, [endless, vec![hello(Op::Get, FLAGS, "folder")]].concat(), Vec::new()).join("\n");
    assert!(a.contains("code 0x1002"), "{a}");
    // A change without a verb, of no path's, and where nobody may.
    let say = |c: Change| message(&[Record::Change(c)]);
    let a = answers(s.addr, vec![hello(Op::Change, FLAGS, "folder")], Vec::new()).join("\n");
    assert!(a.contains("code 0x1002"), "{a}");
    let (remove, rename) = (Change::Remove { recursive: true }, Change::Rename);
    for c in [remove, rename] {
        let a = answers(s.addr, vec![say(c), hello(Op::Change, FLAGS, "folder")], Vec::new()).join("\n");
        assert!(a.contains("--allow-delete"), "{a}");
    }
    for (o, said) in [
        (
            ServeOptions { allow_write: false, allow_delete: true, ..ServeOptions::new(root.path()) },
            "read-only",
        ),
        (
            ServeOptions { allow_read: false, allow_delete: true, ..ServeOptions::new(root.path()) },
            "only takes files",
        ),
    ] {
        let s = serve(o);
        for c in [remove, rename, Change::MakeFolder { parents: true }] {
            let a = answers(s.addr, vec![say(c), hello(Op::Change, FLAGS, "folder")], Vec::new()).join("\n");
            assert!(a.contains(said), "{a}");
        }
    }
    assert_eq!(picture(root.path()), before);
}

#[test]
fn messages_about_copies_out_of_turn_end_the_session_and_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    furnish(root.path());
    let s = serve(ServeOptions::new(root.path()));
    let before = picture(root.path());
    let copy = |m: CopyMessage| message(&[Record::Copy(m)]);
    for m in [
        CopyMessage::List,
        CopyMessage::End,
        CopyMessage::Cancel { job: 1 },
        CopyMessage::Invite { guest: [1; 32] },
        CopyMessage::Invited { seconds: 1 },
    ] {
        let a = answers(s.addr, vec![copy(m.clone())], Vec::new()).join("\n");
        assert!(!a.contains("Welcome") && !a.contains("Copy"), "{m:?}: {a}");
        // In the midst of a transfer, too.
        let first = [opening(FLAGS), vec![copy(m.clone())]].concat();
        let a = answers(s.addr, first, Vec::new()).join("\n");
        assert!(!a.contains("SinkEnd") && !a.contains("Copy"), "{m:?}: {a}");
    }
    // Nobody is let in by this server, and it sends to no other.
    for op in [Op::Invite, Op::Copy] {
        let a = answers(s.addr, vec![hello(op, FLAGS, "x"), copy(CopyMessage::List)], Vec::new()).join("\n");
        assert!(a.contains("refused: true") && !a.contains("Copy("), "{a}");
    }
    // A put that begins notes in the folder that it is under way.
    let now = picture(root.path());
    let changed: Vec<_> = before.iter().filter(|b| !now.contains(b)).map(|b| &b.0).collect();
    assert!(now.len() == before.len() && (changed.is_empty() || changed == [""]), "{changed:?}");
}
