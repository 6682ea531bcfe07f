//! `longhaul cc attach --policy`: applies a policy's rules to the TCP sockets of other programs.

use super::file_state::{self, FileState};
use super::policies;
use super::tcp::failure;
use crate::args::{Attach, Detach, StoreAccess};
use crate::exit::{Code, Failure, Outcome};
use crate::govern;
use ::policy::Policy;
use admin::etcd::Etcd;
use admin::process_state::hash;
use admin::request_handler::{Hooks, WithWarnings};
use admin::source::{Source, Store};
use admin::watch::{read_policy_file, whole};
use admin::{Admin, Options};
use cc::platform::{Carrier, Traffic};
use kernel::{AttachedPolicy, Rules, Selection};
use lhio::clock::WallTime;
use lhio::identity::StateFolder;
use lhio::poll::Poller;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Has a policy hold; with `--watch`, and every other one that its source has from then on.
pub fn attach(a: &Attach, source: Option<&Source>) -> Outcome<()> {
    let group = group(a.cgroup.as_deref())?;
    if let (true, Some(source)) = (a.watch, source) {
        return watch(a, source, group);
    }
    let name = source.map_or_else(|| "the built-in policy".to_owned(), name_of);
    let text = match source {
        None => String::new(),
        Some(Source::File(file)) => read_policy_file(file).map_err(Failure::usage)?,
        Some(Source::Store(store)) => from_store(store, &a.access)?,
    };
    let (policy, warnings) =
        read(&text).map_err(|lines| Failure::usage(format!("{name}:\n  {}", lines.join("\n  "))))?;
    let (replaced, remarks) = hold(&policy, &text, &name, &group).map_err(failure)?;
    let instead = if replaced { ", instead of the one before" } else { "" };
    out_line!(
        "{name} holds for new TCP connections of {}{instead}; `{}` removes it",
        group.display(),
        detaching(a.cgroup.as_deref())
    );
    warnings.iter().chain(&remarks).for_each(|w| out_line!("  {w}"));
    Ok(())
}

/// The command that takes away what was attached to this cgroup, or to all processes.
pub(super) fn detaching(group: Option<&Path>) -> String {
    match group {
        None => "longhaul cc detach --policy".to_owned(),
        Some(group) => format!("longhaul cc detach --policy --cgroup {}", in_shell(group)),
    }
}

/// A path as a shell takes it for one word.
fn in_shell(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// What a source is called wherever somebody looks for it: a file by its whole path.
fn name_of(source: &Source) -> String {
    match source {
        Source::File(file) => whole(file).display().to_string(),
        Source::Store(_) => source.to_string(),
    }
}

/// Takes a policy away.
pub fn detach(what: &Detach) -> Outcome<()> {
    let group = group(what.cgroup.as_deref())?;
    kernel::detach_policy(&group).map_err(failure)?;
    out_line!(
        "no policy holds for new TCP connections of {} any more; existing ones keep their settings",
        group.display()
    );
    Ok(())
}

/// The cgroup that is named, or that of all processes.
fn group(named: Option<&Path>) -> Outcome<PathBuf> {
    named.map_or_else(|| kernel::root_cgroup().map_err(failure), |g| Ok(g.to_owned()))
}

fn read(text: &str) -> Result<(Policy, Vec<String>), Vec<String>> {
    let (policy, warnings) = Policy::read_for_hosts(text).map_err(|p| policies::lines(&p))?;
    Ok((policy.with_interfaces(lhio::addresses_of_interface), policies::lines(&warnings)))
}

/// Whether there was one before, and what does not reach the kernel's sockets.
fn hold(
    policy: &Policy,
    text: &str,
    source: &str,
    group: &Path,
) -> Result<(bool, Vec<String>), kernel::Error> {
    let rules = Rules::of(policy, kernel::is_available);
    let replaced = kernel::attach_policy(&rules, group, source, text, WallTime::now().unix_secs())?;
    Ok((replaced, rules.remarks().to_vec()))
}

fn from_store(store: &Store, access: &StoreAccess) -> Outcome<String> {
    let found = Etcd::new(store, &govern::access(access)?).and_then(|mut etcd| etcd.get());
    let value = found.map_err(super::set::store_failure)?.value;
    let (bytes, _) = value.ok_or_else(|| {
        Failure::new(
            Code::Partial,
            format!(
                "cannot read the policy at {store}: there is none; \
                 try `longhaul cc push` first"
            ),
        )
    })?;
    String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!(
            "cannot read the policy at {store}: it is not UTF-8; \
             try `longhaul cc push` again"
        ))
    })
}

/// Follows a source until this ends. What cannot be used changes nothing, and is told as of other processes.
fn watch(a: &Attach, source: &Source, group: PathBuf) -> Outcome<()> {
    let name = name_of(source);
    let told = group.display().to_string();
    let read_policy = move |text: &str| -> Result<WithWarnings, Vec<String>> {
        let (policy, mut warnings) = read(text)?;
        let (_, remarks) = hold(&policy, text, &name, &group).map_err(|e| vec![e.to_string()])?;
        warnings.extend(remarks);
        Ok((Arc::new(policy), warnings))
    };
    let hooks = Hooks {
        read_policy: Arc::new(read_policy),
        load_program: Arc::new(|_, _| {
            Err(vec![
                "cannot load a program here: this process moves no data; try `longhaul cc attach --tcp FILE`"
                    .into(),
            ])
        }),
        unload_program: Arc::new(|_| false),
        programs: Arc::new(Vec::new),
        // The kernel has others than are known here, which is looked at when rules are put in force.
        is_known: Arc::new(|_| true),
        news: Arc::new(Vec::new),
    };
    let state = StateFolder::open_default()?;
    let options = Options {
        command: "cc attach --watch",
        control: govern::control(&a.control)?,
        source: Some((source.clone(), govern::access(&a.access)?)),
        state: state.path(),
        hooks,
    };
    let mut poller = Poller::new().map_err(Failure::system)?;
    let admin = Admin::start(options, poller.waker()).map_err(govern::watch_failure)?;
    out_line!(
        "watching {source} for new TCP connections of {told}; the policy stays in force after this ends, until `{}`",
        detaching(a.cgroup.as_deref())
    );
    loop {
        poller.wait(&mut [], None).map_err(Failure::system)?;
        admin.idle();
    }
}

/// How the file that a policy was read from compares with what holds.
fn on_disk(h: &AttachedPolicy) -> Option<FileState> {
    let is_file = h.source.starts_with('/');
    file_state::compare(if is_file { &h.source } else { "" }, &hash(h.policy.as_bytes()))
}

/// What holds, a line each.
pub fn lines(ago: impl Fn(u64) -> String) -> Vec<String> {
    let line = |h: AttachedPolicy| {
        let gone = if h.cgroup_exists { "" } else { " (the cgroup is gone)" };
        let hash = hash(h.policy.as_bytes());
        let disk = on_disk(&h).and_then(FileState::text).map_or_else(String::new, |t| format!("; {t}"));
        let (group, since) = (h.group.display(), ago(h.since));
        format!("TCP of {group}{gone}, policy: {}, hash {hash}, for {since}{disk}", h.source)
    };
    attached_policies().into_iter().map(line).collect()
}

/// The same for programs.
pub fn values() -> Vec<serde_json::Value> {
    let value = |h: AttachedPolicy| {
        serde_json::json!({
            "cgroup": h.group.display().to_string(),
            "origin": h.source,
            "hash": hash(h.policy.as_bytes()),
            "on_disk": on_disk(&h).map(FileState::word),
            "since": h.since,
            "cgroup_exists": h.cgroup_exists,
        })
    };
    attached_policies().into_iter().map(value).collect()
}

/// Only root may look, and where nothing can be attached nothing is.
fn attached_policies() -> Vec<AttachedPolicy> {
    kernel::attached_policies().unwrap_or_default()
}

/// The policy that holds for a cgroup, and where it is from.
pub fn held(named: Option<&Path>) -> Outcome<Policy> {
    let group = group(named)?;
    let group = std::fs::canonicalize(&group).unwrap_or(group);
    let held = kernel::attached_policies().map_err(failure)?.into_iter().find(|h| h.group == group);
    let held = held.ok_or_else(|| failure(kernel::Error::NoPolicy(group.display().to_string())))?;
    Ok(read(&held.policy).map_err(|lines| Failure::usage(lines.join("\n")))?.0)
}

/// What an algorithm comes down to where the kernel's TCP carries a flow.
pub fn in_kernel(t: &Traffic, algorithm: &str, fallback: &str) -> Option<String> {
    (t.carrier == Carrier::Tcp).then(|| {
        match kernel::select_algorithm(algorithm, fallback, kernel::is_available) {
            Selection::Algorithm(name) => format!("this kernel has {name}"),
            Selection::Fallback(name) => format!("not in this kernel: its fallback, {name}"),
            Selection::Neither if fallback == algorithm => {
                format!("{algorithm} is not in this kernel: the kernel's default")
            }
            Selection::Neither => {
                "neither the algorithm nor its fallback is in this kernel: the kernel's default".to_owned()
            }
        }
    })
}
