//! Policies from files and from a real etcd: changes arrive, invalid ones change nothing, and an unreachable store is
//! only reported.

mod common;

use common::{Process, pause};
use longhaul_admin::etcd::{Access, Change, Etcd, StoreError};
use longhaul_admin::policy_cache::PolicyCache;
use longhaul_admin::proto::{Request, Response};
use longhaul_admin::request_handler::RequestHandler;
use longhaul_admin::source::{Source, Store};
use longhaul_admin::watch::{WatchError, watch};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

/// etcd on ports of its own. Killed when dropped.
struct Server {
    child: Option<Child>,
    data: PathBuf,
    port: u16,
    peer: u16,
    tls: Vec<String>,
}

impl Server {
    /// `None`, and said, where there is no etcd.
    fn start(data: &Path, tls: &[&str]) -> Option<Server> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("skipped: there is no etcd (Debian: etcd-server)");
            return None;
        }
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let tls = tls.iter().map(|s| (*s).to_owned()).collect();
        let mut s = Server { child: None, data: data.join("etcd"), port: free(), peer: free(), tls };
        s.go_on();
        Some(s)
    }
    /// Starts it, with the data that it had.
    fn go_on(&mut self) {
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let client = format!("{scheme}://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", self.peer);
        let mut c = Command::new("etcd");
        c.args(["--name", "one", "--initial-cluster", &format!("one={peer}"), "--listen-peer-urls", &peer]);
        c.args(["--initial-advertise-peer-urls", &peer, "--listen-client-urls", &client]);
        c.args(["--advertise-client-urls", &client, "--data-dir"]).arg(&self.data).args(&self.tls);
        self.child = Some(c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }
    fn stop(&mut self) {
        if let Some(mut c) = self.child.take() {
            let _ = (c.kill(), c.wait());
        }
    }
    fn store(&self) -> Store {
        let s = if self.tls.is_empty() { "" } else { "s" };
        // The first one is nobody's: servers are tried in turn.
        format!("etcd{s}://127.0.0.1:9,127.0.0.1:{}/longhaul/policy", self.port).parse().unwrap()
    }
    /// Writes as `longhaul cc push` does, as soon as it is up.
    fn put(&self, access: &Access, text: &str) -> u64 {
        let mut etcd = Etcd::new(&self.store(), access).unwrap();
        loop {
            match etcd.put(text) {
                Ok(revision) => return revision,
                Err(StoreError::Unreachable { .. }) => pause(),
                // Not elected yet.
                Err(StoreError::Refused { status: 503 | 500, .. }) => pause(),
                Err(e) => panic!("{e}"),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn running(o: &RequestHandler) -> (String, u64) {
    let (text, status) = o.process_state.policy();
    (text.to_string(), status.revision)
}

fn errors(o: &RequestHandler) -> String {
    o.process_state.policy().1.errors.join("; ")
}

#[test]
fn policy_update_reaches_all_hosts_and_store_outage_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut etcd) = Server::start(dir.path(), &[]) else { return };
    let access = Access::default();
    let first = etcd.put(&access, "good 1");
    let source = Source::Store(etcd.store());
    let hosts: Vec<_> = (0..3).map(|i| (Process::start(), dir.path().join(format!("host{i}")))).collect();
    let _watching: Vec<_> =
        hosts.iter().map(|(p, state)| watch(&source, &access, state, &p.handler).unwrap()).collect();
    let all = |what: &dyn Fn(&RequestHandler) -> bool| hosts.iter().for_each(|(p, _)| p.until(what));
    all(&|o| running(o) == ("good 1".into(), first));
    let second = etcd.put(&access, "good 2");
    assert!(second > first);
    all(&|o| running(o) == ("good 2".into(), second));
    // Somebody forces a bad one into the store: all errors are told, and the last good one stays.
    let bad = etcd.put(&access, "bad");
    all(&|o| errors(o).contains(&format!("revision {bad}")) && errors(o).contains("line 2: neither"));
    all(&|o| running(o) == ("good 2".into(), second));
    etcd.stop();
    all(&|o| errors(o).contains("cannot reach the store"));
    all(&|o| running(o) == ("good 2".into(), second));
    // A host that starts meanwhile has its copy, and one that never ran has nothing and goes on all the same.
    let late = Process::start();
    let _late = watch(&source, &access, &hosts[0].1, &late.handler).unwrap();
    assert_eq!(running(&late.handler), ("good 2".into(), 0));
    assert!(late.handler.process_state.policy().1.origin.contains("kept copy of etcd://"));
    let new = Process::start();
    let _new = watch(&source, &access, &dir.path().join("new"), &new.handler).unwrap();
    assert_eq!(running(&new.handler), (String::new(), 0));
    etcd.go_on();
    let third = etcd.put(&access, "good 3");
    all(&|o| running(o) == ("good 3".into(), third) && errors(o).is_empty());
    late.until(|o| running(o) == ("good 3".into(), third));
    new.until(|o| running(o) == ("good 3".into(), third));
    let kept = PolicyCache::new(&hosts[1].1, &source.to_string());
    all(&|_| kept.read().as_deref() == Some("good 3"));
    // What was in force was put in force once.
    hosts.iter().for_each(|(p, _)| {
        // It counts once it is in force.
        p.until(|_| p.policies.load(Ordering::Relaxed) >= 3);
        assert_eq!(p.policies.load(Ordering::Relaxed), 3);
    });
}

/// One request to the JSON gateway, beside what the client does.
fn post(port: u16, path: &str, body: &str) -> String {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = format!("http://127.0.0.1:{port}{path}");
    agent.post(url).send(body).unwrap().body_mut().read_to_string().unwrap()
}

#[test]
fn compacted_revisions_and_deleted_keys_are_handled() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut etcd) = Server::start(dir.path(), &[]) else { return };
    let access = Access::default();
    etcd.put(&access, "good 1");
    let p = Process::start();
    let _watching = watch(&Source::Store(etcd.store()), &access, dir.path(), &p.handler).unwrap();
    p.until(|o| running(o).0 == "good 1");
    let key = "bG9uZ2hhdWwvcG9saWN5"; // longhaul/policy
    post(etcd.port, "/v3/kv/deleterange", &format!("{{\"key\":\"{key}\"}}"));
    p.until(|o| errors(o).contains("no policy is there"));
    assert_eq!(running(&p.handler).0, "good 1");
    // While nobody watches, all that was is compacted away.
    etcd.stop();
    p.until(|o| errors(o).contains("cannot reach"));
    etcd.go_on();
    let mut last = 0;
    for n in 2..20 {
        last = etcd.put(&access, &format!("good {n}"));
    }
    post(etcd.port, "/v3/kv/compaction", &format!("{{\"revision\":\"{last}\",\"physical\":true}}"));
    let mut watched = Etcd::new(&etcd.store(), &access).unwrap();
    let mut w = watched.watch(1).unwrap();
    while w.wait().unwrap() != Change::Lost {}
    p.until(|o| running(o) == ("good 19".into(), last));
}

#[test]
fn store_requires_users_and_certificates() {
    use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        // Private keys among them, and nobody else may read those.
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = file("ca.pem", &params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::from_params(&params, &key);
    let issue = |name: &str, san: &str| {
        let own = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![san.to_owned()]).unwrap().signed_by(&own, &issuer).unwrap();
        (file(&format!("{name}.crt"), &certificate.pem()), file(&format!("{name}.key"), &own.serialize_pem()))
    };
    let ((server, server_key), host) = (issue("server", "127.0.0.1"), issue("host", "host"));
    let text = |p: &Path| p.to_str().unwrap().to_owned();
    let (server, server_key, roots) = (text(&server), text(&server_key), text(&ca));
    let tls = [
        "--cert-file",
        &server,
        "--key-file",
        &server_key,
        "--client-cert-auth",
        "--trusted-ca-file",
        &roots,
    ];
    let Some(etcd) = Server::start(dir.path(), &tls) else { return };
    let access = Access { ca: Some(ca), certificate: Some(host), user: None };
    etcd.put(&access, "good 1");
    // Without a certificate of its own, or with an authority that the store's is not from.
    let bare = Access { certificate: None, ..access.clone() };
    assert!(Etcd::new(&etcd.store(), &bare).unwrap().get().is_err());
    let wrong = Access { ca: Some(PathBuf::from(&server)), ..access.clone() };
    assert!(Etcd::new(&etcd.store(), &wrong).unwrap().get().is_err());
    let missing = Access { ca: Some(dir.path().join("none")), ..access };
    assert!(matches!(Etcd::new(&etcd.store(), &missing), Err(StoreError::File { .. })));
}

#[test]
fn store_requires_passwords() {
    let dir = tempfile::tempdir().unwrap();
    let Some(etcd) = Server::start(dir.path(), &[]) else { return };
    let nobody = Access::default();
    etcd.put(&nobody, "good 1");
    post(etcd.port, "/v3/auth/user/add", r#"{"name":"root","password":"secret"}"#);
    post(etcd.port, "/v3/auth/role/add", r#"{"name":"root"}"#);
    post(etcd.port, "/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post(etcd.port, "/v3/auth/enable", "{}");
    let with = |password: &str| Access {
        user: Some(("root".into(), password.to_owned().into())),
        ..Access::default()
    };
    let get = |access: &Access| Etcd::new(&etcd.store(), access).unwrap().get();
    for refused in [get(&nobody), get(&with("wrong"))] {
        let e = refused.unwrap_err();
        assert!(matches!(e, StoreError::Refused { .. }), "{e}");
        assert!(!e.to_string().contains("wrong"), "{e}");
    }
    let advised = get(&nobody).unwrap_err().to_string();
    assert!(advised.contains("--store-user"), "{advised}");
    let p = Process::start();
    let source = Source::Store(etcd.store());
    let _watching = watch(&source, &with("secret"), dir.path(), &p.handler).unwrap();
    p.until(|o| running(o).0 == "good 1");
    etcd.put(&with("secret"), "good 2");
    p.until(|o| running(o).0 == "good 2");
}

#[test]
fn changed_file_is_reloaded_and_an_invalid_one_keeps_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let (p, path) = (Process::start(), dir.path().join("policy.toml"));
    let source = Source::File(path.clone());
    assert!(matches!(
        watch(&source, &Access::default(), dir.path(), &p.handler),
        Err(WatchError::Policy { .. })
    ));
    fs::write(&path, "bad").unwrap();
    let e = watch(&source, &Access::default(), dir.path(), &p.handler).unwrap_err().to_string();
    assert!(e.contains("line 1") && e.contains("line 2"), "{e}");
    fs::write(&path, "good 1").unwrap();
    let _watching = watch(&source, &Access::default(), dir.path(), &p.handler).unwrap();
    assert_eq!(running(&p.handler).0, "good 1");
    // Of the same length, and perhaps within the same tick of the clock.
    fs::write(&path, "good 2").unwrap();
    p.until(|o| running(o).0 == "good 2");
    fs::write(&path, "worse").unwrap();
    p.until(|o| errors(o).contains("line 1: it is not good; line 2: neither"));
    fs::remove_file(&path).unwrap();
    p.until(|o| errors(o).contains("cannot read"));
    assert_eq!(running(&p.handler).0, "good 2");
    // Editors put another file in its place.
    fs::write(dir.path().join("new"), "good 3").unwrap();
    fs::rename(dir.path().join("new"), &path).unwrap();
    p.until(|o| running(o).0 == "good 3" && errors(o).is_empty());
    let told = p.handler.process_state.events(0).0.into_iter().filter(|e| e.kind == "source").count();
    assert_eq!(told, 3, "each trouble once, and its end");
}

/// Loads the one program that there is.
fn load(o: &RequestHandler) {
    let program = "cHJvZ3JhbQ==".to_owned();
    assert!(matches!(o.handle(Request::Load { program, path: String::new() }), Response::Done { .. }));
}

#[test]
fn policy_needing_a_program_waits_until_it_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let (p, path) = (Process::start(), dir.path().join("policy.toml"));
    fs::write(&path, "good 1").unwrap();
    let source = Source::File(path.clone());
    let _watching = watch(&source, &Access::default(), dir.path(), &p.handler).unwrap();
    fs::write(&path, "good with novel").unwrap();
    p.until(|o| errors(o).contains("novel is not loaded here"));
    assert_eq!(running(&p.handler).0, "good 1");
    load(&p.handler);
    assert_eq!((running(&p.handler).0.as_str(), errors(&p.handler).as_str()), ("good with novel", ""));
    // What is in force waits for nothing.
    load(&p.handler);
    assert_eq!(p.handler.process_state.policy().1.changes, 2);
}

#[test]
fn last_good_policy_is_kept_until_its_program_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut etcd) = Server::start(dir.path(), &[]) else { return };
    let access = Access::default();
    etcd.put(&access, "good 1");
    let source = Source::Store(etcd.store());
    let hosts: Vec<_> = (0..2).map(|i| (Process::start(), dir.path().join(format!("host{i}")))).collect();
    let _watching: Vec<_> =
        hosts.iter().map(|(p, state)| watch(&source, &access, state, &p.handler).unwrap()).collect();
    let (with, without) = (&hosts[0].0, &hosts[1].0);
    with.until(|o| running(o).0 == "good 1");
    without.until(|o| running(o).0 == "good 1");
    load(&with.handler);
    let second = etcd.put(&access, "good with novel");
    with.until(|o| running(o) == ("good with novel".into(), second));
    without.until(|o| errors(o).contains("novel is not loaded here"));
    assert_eq!(running(&without.handler).0, "good 1");
    // It comes into force with the program, also while the store is gone, and is the one that is kept.
    etcd.stop();
    without.until(|o| errors(o).contains("cannot reach"));
    load(&without.handler);
    assert_eq!(running(&without.handler), ("good with novel".into(), second));
    assert_eq!(PolicyCache::new(&hosts[1].1, &source.to_string()).read().as_deref(), Some("good with novel"));
    // A key that was deleted waits for nothing.
    etcd.go_on();
    etcd.put(&access, "bad");
    with.until(|o| errors(o).contains("line 1"));
    post(etcd.port, "/v3/kv/deleterange", "{\"key\":\"bG9uZ2hhdWwvcG9saWN5\"}");
    with.until(|o| errors(o).contains("no policy is there"));
    assert!(with.handler.pending_offer.lock().unwrap().is_none());
}
