//! The administrator's side of the process: its policy, and its control socket. `longhaul run` says by variables which they are.

use admin::etcd::Access;
use admin::request_handler::Hooks;
use admin::source::Source;
use admin::{Admin, Options};
use base::Time;
use endpoint::{App, Endpoint};
use engine::{Engine, Governor};
use policy::Policy;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zeroize::Zeroizing;

/// Where the policy is from: a file, or a key in a store.
const POLICY: &str = "LONGHAUL_POLICY";
/// The folder in which a store's last good policy is kept.
const STATE: &str = "LONGHAUL_STATE";
/// How to get at the store.
const STORE: [&str; 5] = [
    "LONGHAUL_STORE_CA",
    "LONGHAUL_STORE_CERT",
    "LONGHAUL_STORE_KEY",
    "LONGHAUL_STORE_USER",
    "LONGHAUL_STORE_PASSWORD",
];
/// The folder of control sockets; without it there is none. And the number of the group that may use it.
const CONTROL: &str = "LONGHAUL_CONTROL";
const GROUP: &str = "LONGHAUL_CONTROL_GROUP";

/// The program's name, by which rules of policies match.
pub(crate) fn program() -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    exe.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// Reads the policy, watches its source and listens, as far as the variables say so.
///
/// # Errors
/// The policy cannot be used.
pub(crate) fn start(engine: &Engine) -> Result<(), String> {
    let source =
        variable(POLICY).map(|text| text.parse::<Source>().map_err(|e| e.to_string())).transpose()?;
    let control = variable(CONTROL).map(|folder| {
        let group = variable(GROUP).and_then(|n| n.parse().ok());
        (PathBuf::from(folder), group)
    });
    if source.is_none() && control.is_none() {
        return Ok(());
    }
    let state = variable(STATE).map(PathBuf::from).unwrap_or_default();
    let command = format!("run {}", program());
    let options = Options {
        command: &command,
        control,
        source: source.map(|s| (s, access())),
        state: &state,
        hooks: hooks(),
    };
    let admin = Admin::start(options, engine.waker()).map_err(|e| e.to_string())?;
    engine.set_governor(Box::new(Governing { turns: admin.administration(), _admin: admin }));
    Ok(())
}

fn access() -> Access {
    let [ca, certificate, key, user, password] = STORE.map(variable);
    let path = PathBuf::from;
    Access {
        ca: ca.map(path),
        certificate: certificate.map(path).zip(key.map(path)),
        user: user.map(|name| (name, Zeroizing::new(password.unwrap_or_default()))),
    }
}

fn hooks() -> Hooks {
    /// Every policy has a number of its own, so that flows are asked again.
    static VERSION: AtomicU64 = AtomicU64::new(1);
    let lines = |p: &policy::Problems| p.to_string().lines().map(str::to_owned).collect::<Vec<_>>();
    Hooks {
        read_policy: Arc::new(move |text: &str| {
            let (policy, warnings) = Policy::read(text).map_err(|p| lines(&p))?;
            let policy = policy.with_interfaces(lhio::addresses_of_interface);
            Ok((Arc::new(policy.with_version(VERSION.fetch_add(1, Ordering::Relaxed))), lines(&warnings)))
        }),
        // The sandbox that they run in is no part of the library.
        load_program: Arc::new(|_: &[u8], _: &str| {
            Err(vec!["cannot load a congestion-control program into a program of `longhaul run`; try a built-in algorithm".into()])
        }),
        unload_program: Arc::new(|_: &str| false),
        programs: Arc::new(Vec::new),
        is_known: Arc::new(|name: &str| cc::registry::find(name).is_ok()),
        news: Arc::new(Vec::new),
    }
}

/// What the engine's loop does for administrators.
struct Governing {
    turns: admin::administered_app::Administration,
    /// Its threads end with it.
    _admin: Admin,
}

impl Governor for Governing {
    fn drive(&mut self, now: Time, endpoint: &mut Endpoint, app: &mut dyn App) {
        self.turns.drive(now, endpoint, app);
    }
    fn next_timeout(&self) -> Option<Time> {
        self.turns.next_timeout()
    }
}
