//! X.509 certificates instead of keys, over real sockets.

mod common;

use common::{Bench, Server, bytes, expect, json, stderr};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer, KeyPair};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

/// An authority with its root in a file.
struct Ca {
    params: CertificateParams,
    key: KeyPair,
    file: String,
}

impl Ca {
    fn new(b: &Bench, name: &str) -> Ca {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let file = b.path(&format!("{name}.pem"));
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Ca { params, key, file: file.to_str().unwrap().into() }
    }
    /// Writes NAME.crt and NAME.key; their paths.
    fn issue(&self, b: &Bench, name: &str, san: &str, usage: Usage, last_year: i32) -> [String; 2] {
        let mut p = CertificateParams::new(vec![san.to_owned()]).unwrap();
        p.extended_key_usages = vec![usage];
        p.not_before = rcgen::date_time_ymd(2020, 1, 1);
        p.not_after = rcgen::date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = p.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        let path = |end: &str| b.path(&format!("{name}.{end}"));
        fs::write(path("crt"), cert.pem()).unwrap();
        private(&path("key"), &key.serialize_pem());
        [path("crt").to_str().unwrap().into(), path("key").to_str().unwrap().into()]
    }
}

fn private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Valid until long after this program.
const FAR: i32 = 4000;

/// A bench with an authority, and certificates of a server on this machine and of a client called alice.
struct CertificateBench {
    b: Bench,
    ca: Ca,
    server: [String; 2],
    client: [String; 2],
}

impl CertificateBench {
    fn new() -> CertificateBench {
        let b = Bench::new();
        let ca = Ca::new(&b, "root");
        let server = ca.issue(&b, "server", "127.0.0.1", Usage::ServerAuth, FAR);
        let client = ca.issue(&b, "client", "alice.example", Usage::ClientAuth, FAR);
        CertificateBench { b, ca, server, client }
    }
    /// Both ends by certificate; `more` for the server.
    fn serve(&self, more: &[&str]) -> Server {
        let [cert, key] = &self.server;
        let mut args = vec!["--cert", cert, "--key", key, "--ca", &self.ca.file];
        args.extend(more);
        self.b.serve("srv", &args)
    }
    fn ls(&self, server: &Server, pair: &[String; 2], ca: &str) -> Output {
        self.b.run(&["ls", "--cert", &pair[0], "--key", &pair[1], "--ca", ca, &server.url("")])
    }
}

#[track_caller]
fn says(o: &Output, code: i32, words: &[&str]) {
    expect(o, code);
    let said = stderr(o);
    for w in words {
        assert!(said.contains(w), "no {w:?} in: {said}");
    }
}

#[test]
fn every_command_works_with_certificates_at_both_ends() {
    let o = CertificateBench::new();
    let server = o.serve(&[]);
    assert!(server.ready["fingerprint"].is_null());
    let [cert, key] = &o.client;
    let trust = ["--cert", cert, "--key", key, "--ca", &o.ca.file];
    fs::write(o.b.path("file"), bytes(1, 3_000_000)).unwrap();
    let (file, back) = (o.b.path("file"), o.b.path("back"));
    let (url, list) = (server.url("in/"), server.url("in/file"));
    let run = |args: &[&str]| {
        let out = o.b.run(&[args, &trust].concat());
        expect(&out, 0);
        out
    };
    run(&["put", file.to_str().unwrap(), &url]);
    run(&["get", &list, back.to_str().unwrap()]);
    assert_eq!(fs::read(back).unwrap(), bytes(1, 3_000_000));
    assert!(String::from_utf8_lossy(&run(&["ls", &url]).stdout).contains("file"));
    assert!(!o.b.client.join("known_hosts").exists(), "known hosts have no part in it");

    let [cert, key] = &o.server;
    let args = ["perf", "server", "--json", "--listen", "127.0.0.1:0", "--cert", cert, "--key", key];
    let perf = Server::start(&o.b.server, &[&args[..], &["--ca", &o.ca.file]].concat());
    let out = run(&["perf", "client", &perf.address, "-n", "4MiB", "--json", "--verify"]);
    assert_eq!(json(&out)["verified"], true);
}

#[test]
fn either_end_can_use_a_certificate_alone() {
    let o = CertificateBench::new();
    // The server shows a certificate and knows the client's key.
    let [cert, key] = &o.server;
    let server = o.b.serve("srv", &["--cert", cert, "--key", key]);
    expect(&o.b.run(&["ls", "--ca", &o.ca.file, &server.url("")]), 0);
    let unlike = o.b.run(&["ls", "--accept-new", &server.url("")]);
    says(&unlike, 4, &["X.509", "--ca FILE"]);
    // The client shows a certificate and knows the server's key. Both in one file.
    let both = o.b.path("both.pem");
    let text = o.client.iter().map(|f| fs::read_to_string(f).unwrap()).collect::<String>();
    private(&both, &text);
    let server = o.b.serve("srv", &["--ca", &o.ca.file]);
    expect(&o.b.run(&["ls", "--accept-new", "--cert", both.to_str().unwrap(), &server.url("")]), 0);
    let none = o.b.run(&["ls", "--accept-new", &server.url("")]);
    says(&none, 4, &["--cert", "certificate"]);
    let plain = o.b.run(&["ls", "--ca", &o.ca.file, "--cert", both.to_str().unwrap(), &server.url("")]);
    says(&plain, 4, &["without --ca"]);
}

#[test]
fn invalid_certificates_are_refused_with_the_reason() {
    let o = CertificateBench::new();
    let other = Ca::new(&o.b, "other");
    let good = o.serve(&[]);
    says(&o.ls(&good, &o.client, &other.file), 4, &["none of the roots", "--ca"]);
    let foreign = other.issue(&o.b, "foreign", "alice.example", Usage::ClientAuth, FAR);
    says(&o.ls(&good, &foreign, &o.ca.file), 4, &["server", "trusts no issuer", "--cert"]);
    let old = o.ca.issue(&o.b, "old", "alice.example", Usage::ClientAuth, 2021);
    let refused = o.ls(&good, &old, &o.ca.file);
    says(&refused, 4, &["WARNING", "old.crt expired on 2021-01-01", "this end's certificate has expired"]);
    // With an own key instead of a certificate.
    let bare = o.b.run(&["ls", "--ca", &o.ca.file, &good.url("")]);
    says(&bare, 4, &["--cert"]);
    drop(good);

    for (name, san, last, words) in [
        ("late", "127.0.0.1", 2021, "server's certificate has expired"),
        ("moved", "elsewhere.example", FAR, "is for other names"),
    ] {
        let [cert, key] = &o.ca.issue(&o.b, name, san, Usage::ServerAuth, last);
        let server = o.b.serve("srv", &["--cert", cert, "--key", key, "--ca", &o.ca.file]);
        says(&o.ls(&server, &o.client, &o.ca.file), 4, &[words]);
    }
    // A client's certificate is none for a server.
    let [cert, key] = &o.ca.issue(&o.b, "wrong-use", "127.0.0.1", Usage::ClientAuth, FAR);
    let server = o.b.serve("srv", &["--cert", cert, "--key", key, "--ca", &o.ca.file]);
    says(&o.ls(&server, &o.client, &o.ca.file), 4, &["is not for servers"]);
}

#[test]
fn allow_name_admits_listed_names_only() {
    let o = CertificateBench::new();
    let bob = o.ca.issue(&o.b, "bob", "bob.example", Usage::ClientAuth, FAR);
    let server = o.serve(&["--allow-name", "alice.example", "--allow-name", "10.0.0.1"]);
    expect(&o.ls(&server, &o.client, &o.ca.file), 0);
    says(&o.ls(&server, &bob, &o.ca.file), 4, &["--allow-name"]);
    expect(&o.ls(&server, &o.client, &o.ca.file), 0);
    let [cert, key] = &o.server;
    let args = ["serve", "/", "--cert", cert, "--key", key, "--ca", &o.ca.file, "--allow-name", "no name"];
    says(
        &common::longhaul(&o.b.server).args(args).output().unwrap(),
        2,
        &["--allow-name no name", "DNS name"],
    );
}

#[test]
fn unusable_certificate_files_are_reported_with_a_remedy() {
    let o = CertificateBench::new();
    let url = "longhaul://127.0.0.1:9/";
    let ls = |args: &[&str]| o.b.run(&[&["ls", url, "--connect-timeout", "300ms"], args].concat());
    let [cert, key] = &o.client;
    let text = o.b.path("text");
    fs::write(&text, "hello\n").unwrap();
    let text = text.to_str().unwrap();
    let missing = o.b.path("missing");
    let missing = missing.to_str().unwrap();
    says(&ls(&["--cert", missing, "--key", key]), 2, &[missing, "--cert", "PEM"]);
    says(&ls(&["--cert", cert, "--key", missing]), 2, &[missing, "--key"]);
    says(&ls(&["--ca", missing]), 2, &[missing, "--ca"]);
    says(&ls(&["--cert", text, "--key", key]), 2, &["no certificate in", text, "BEGIN CERTIFICATE"]);
    says(&ls(&["--ca", text]), 2, &["no certificate in", text]);
    says(&ls(&["--ca", key]), 2, &["no certificate in", key]);
    says(&ls(&["--cert", cert]), 2, &["cannot read a private key from", cert, "--key"]);
    says(
        &ls(&["--cert", cert, "--key", text]),
        2,
        &["cannot read a private key from", text, "BEGIN PRIVATE KEY"],
    );
    says(
        &ls(&["--cert", cert, "--key", &o.server[1]]),
        2,
        &["cannot use the private key", cert, &o.server[1]],
    );
    let sealed = o.b.path("sealed");
    let sealed_text = fs::read_to_string(key).unwrap().replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    private(&sealed, &sealed_text);
    let sealed = sealed.to_str().unwrap();
    says(&ls(&["--cert", cert, "--key", sealed]), 2, &["passphrase", "openssl pkey"]);
    let broken = o.b.path("broken");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let broken = broken.to_str().unwrap();
    says(&ls(&["--ca", broken]), 2, &["certificate 1 in", broken]);
    // Neither is a key used that others can read, nor are roots that others can change.
    let chmod = |file: &str, mode| fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    chmod(key, 0o644);
    let command = format!("`chmod 600 {key}`");
    says(&ls(&["--cert", cert, "--key", key, "--ca", &o.ca.file]), 2, &["--key", &command]);
    chmod(key, 0o600);
    chmod(&o.ca.file, 0o666);
    let command = format!("`chmod go-w {}`", o.ca.file);
    says(&ls(&["--ca", &o.ca.file]), 2, &["--ca", &command]);
}
