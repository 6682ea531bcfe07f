//! `longhaul cc set`, `push` and `pull`: sends policies to processes and stores.

use super::processes::{self, Running};
use super::{policies, programs};
use crate::args::{Cap, Load, Pull, Push, Set, Unload};
use crate::exit::{Code, Failure, Outcome};
use crate::{govern, out};
use admin::etcd::{Etcd, StoreError};
use admin::proto::{Request, Response};
use admin::watch::{read_policy_file, whole};
use base::Rate;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use policy::Policy;
use serde_json::json;
use std::path::Path;

/// Reads a policy and checks all of it, as far as that can be done without knowing the hosts.
fn checked(path: &Path) -> Outcome<String> {
    let text = read_policy_file(path).map_err(Failure::usage)?;
    let name = path.display().to_string();
    let say = |lines: Vec<String>| format!("{}:\n  {}", base::text::line(&name), lines.join("\n  "));
    match Policy::read_for_hosts(&text) {
        Ok((_, warnings)) if warnings.list.is_empty() => Ok(text),
        Ok((_, warnings)) => {
            err_lines!("longhaul: {}", say(policies::lines(&warnings)));
            Ok(text)
        }
        Err(p) => Err(Failure::usage(format!(
            "cannot use the policy, and nothing was changed: {}",
            say(policies::lines(&p))
        ))),
    }
}

/// Gives processes another policy, or changes one flow.
pub fn set(a: &Set) -> Outcome<()> {
    if let Some(f) = &a.flow {
        if a.cc.is_none() && a.cap.is_none() {
            return Err(Failure::usage(
                "cannot change the flow: no change is given; try --cc, --cap or both",
            ));
        }
        let cap = a.cap.map(|Cap(cap)| cap.map_or(0, Rate::bits_per_sec));
        let request = Request::SetFlow { flow: f.flow, algorithm: a.cc.clone(), cap_bits_per_second: cap };
        return tell(&mut processes::exactly_one(f.pid)?, &request);
    }
    let Some(file) = &a.file else {
        return Err(Failure::usage(
            "cannot change anything: neither a policy nor a flow \
             is given; try POLICY or --flow",
        ));
    };
    // What it may name is known to the process: it checks, and says what is wrong.
    let text = read_policy_file(file).map_err(Failure::usage)?;
    tell_all(a.pid, &Request::SetPolicy { text, path: whole(file).display().to_string() })
}

/// Loads a program, which is tried here first.
pub fn load(a: &Load) -> Outcome<()> {
    let module = programs::module(&a.file).map_err(Failure::usage)?;
    let path = programs::place(&a.file);
    policies::load_program(&module, &path).map_err(|e| Failure::usage(e.join("\n  ")))?;
    tell_all(a.pid, &Request::Load { program: BASE64_STANDARD.encode(module), path })
}

/// Takes a program's name away.
pub fn unload(a: &Unload) -> Outcome<()> {
    tell_all(a.pid, &Request::Unload { name: a.name.clone(), force: a.force })
}

/// Asks the same of all processes, or of one. What each answers is said.
fn tell_all(pid: Option<u32>, request: &Request) -> Outcome<()> {
    let (mut failed, all) = (Vec::new(), processes::at_least_one(pid)?);
    let count = all.len();
    for mut r in all {
        failed.extend(tell(&mut r, request).err());
    }
    let Some(first) = failed.first() else { return Ok(()) };
    // Where nobody did it, the reason is everybody's.
    let code = if failed.len() == count { first.code } else { Code::Partial };
    let all = failed.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    Err(Failure::new(code, format!("{all}\n{} of {count} processes refused or failed", failed.len())))
}

fn tell(r: &mut Running, request: &Request) -> Outcome<()> {
    match r.request(request)? {
        Response::Done { text, warnings } => {
            out_line!("process {} ({}): {text}", r.process.pid, r.process.command);
            warnings.iter().for_each(|w| out_line!("  {w}"));
            Ok(())
        }
        _ => Err(processes::unexpected_response(r)),
    }
}

pub fn store_failure(e: StoreError) -> Failure {
    let code = match &e {
        StoreError::Unreachable { .. } | StoreError::Ended { .. } => Code::Connect,
        StoreError::Refused { .. } => Code::Refused,
        StoreError::File { .. } | StoreError::TooLong(_) => Code::Usage,
        StoreError::Form { .. } => Code::System,
    };
    Failure::line(code, e)
}

/// Writes a policy into the store, from which all hosts that watch it take it.
pub fn push(a: &Push) -> Outcome<()> {
    let text = checked(&a.file)?;
    let mut etcd = Etcd::new(&a.store, &govern::access(&a.access)?).map_err(store_failure)?;
    let revision = etcd.put(&text).map_err(store_failure)?;
    if a.json {
        out::json(&json!({ "store": a.store.to_string(), "revision": revision }));
    } else {
        out_line!("{} has it as revision {revision}", a.store);
    }
    Ok(())
}

/// Prints the policy that the store has.
pub fn pull(a: &Pull) -> Outcome<()> {
    let mut etcd = Etcd::new(&a.store, &govern::access(&a.access)?).map_err(store_failure)?;
    let Some((bytes, revision)) = etcd.get().map_err(store_failure)?.value else {
        return Err(Failure::new(
            Code::Partial,
            format!(
                "cannot read the policy at {}: there is none; try `longhaul \
                 cc push` first",
                a.store
            ),
        ));
    };
    err_line!("revision {revision}");
    out::data(&bytes);
    Ok(())
}
