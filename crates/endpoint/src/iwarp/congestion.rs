//! Congestion control of iWARP connections: the kernel's TCP does it, chosen by `TCP_CONGESTION`.

use super::StreamCommand;
use crate::Endpoint;
use crate::app::{ConnId, Event};
use cc::platform::Choice;

/// Checks whether the system has a TCP congestion control of this name; an error says why not.
pub type HasCongestion = fn(&str) -> Result<(), String>;

/// Longest name in bytes: Linux's `TCP_CA_NAME_MAX` without the zero at the end.
const NAME: usize = 15;
/// Preferences that are looked at; asking the system about one takes a socket.
const MAX_PREFERENCES: usize = 16;

/// What the system may call an algorithm of ours (`TCP_CONGESTION`), as [`cc::registry::kernel_names`] has it; none of those
/// that it cannot have. What is not built in here is the system's by the name it was attached by.
fn kernel_names(spec: &str) -> Vec<String> {
    const SAME: [&str; 5] = ["reno", "cubic", "dctcp", "vegas", "bbr"];
    let mut names = cc::registry::kernel_names(spec);
    let known = |name: &String| SAME.contains(&name.as_str()) || !cc::registry::is_built_in(name);
    if !names.last().is_some_and(known) {
        return Vec::new();
    }
    names.retain(|n| !n.is_empty() && n.len() <= NAME && n.bytes().all(|b| b.is_ascii_graphic()));
    names
}

/// The system's names for what is asked for, at least one.
fn system_names(spec: &str) -> Result<Vec<String>, String> {
    if let Some((name, _)) = spec.split_once(':') {
        return Err(format!("the system's TCP takes no parameters: ask for `{name}` alone"));
    }
    let names = kernel_names(spec);
    if names.is_empty() {
        return Err(format!(
            "`{spec}` is no congestion control of the system's TCP, which this connection goes by; see \
             /proc/sys/net/ipv4/tcp_available_congestion_control"
        ));
    }
    Ok(names)
}

impl Endpoint {
    /// Drivers of streams say how to ask the system whether it has a congestion control, so that a wrong name changes nothing.
    pub fn set_has_congestion(&mut self, has: HasCongestion) {
        self.iwarp_state.has_congestion = Some(has);
    }

    /// Whether the kernel's TCP has a congestion control for this algorithm of ours.
    pub fn tcp_has(&self, name: &str) -> bool {
        self.system_congestion(name).is_ok()
    }

    /// The first of these, in order of preference and divided by commas, that the system has.
    ///
    /// # Errors
    /// In words, why each cannot be had.
    pub(super) fn system_congestion(&self, specs: &str) -> Result<String, String> {
        let has = |names: Vec<String>| {
            let asked = self.iwarp_state.has_congestion;
            let found = names.iter().find(|name| asked.is_some_and(|has| has(name).is_ok()));
            match (found, names.last(), asked) {
                (Some(name), ..) => Ok(name.clone()),
                // What it says is about the name that was meant.
                (None, Some(name), Some(has)) => has(name).map(|()| name.clone()),
                (None, name, _) => Ok(name.cloned().unwrap_or_default()),
            }
        };
        let mut refusals = Vec::new();
        for spec in cc::registry::preferences(specs).into_iter().take(MAX_PREFERENCES) {
            match system_names(spec).and_then(has) {
                Ok(name) => return Ok(name),
                Err(why) => refusals.push(why),
            }
        }
        match &refusals[..] {
            [only] => Err(only.clone()),
            all => Err(format!("none of `{specs}` can be had: {}", all.join("; "))),
        }
    }

    /// What the system calls what a policy chose: the algorithm, or else the fallback, if it is one of TCP's; `None`: the
    /// system's own choice stays.
    pub(crate) fn tcp_name(&self, choice: &Choice) -> Option<String> {
        let names = |spec: &str| spec.split(':').next().unwrap_or_default().to_owned();
        let algorithm = names(&choice.algorithm);
        if kernel_names(&algorithm).is_empty() {
            return None;
        }
        [algorithm, names(&choice.fallback)].iter().find_map(|name| self.system_congestion(name).ok())
    }

    /// Has the system decide by another algorithm what this end sends on a connection by iWARP, on all of its streams: by the
    /// first of these that it has. What is under way stays so. [`Event::CcChanged`] tells which.
    ///
    /// # Errors
    /// In words, and then nothing has changed: no name of the system's, or none that it has and allows.
    pub(crate) fn set_iwarp_congestion(&mut self, conn: ConnId, specs: &str) -> Result<(), String> {
        let name = self.system_congestion(specs)?;
        let Some(b) = self.iwarp_state.conns.get_mut(&conn).filter(|b| !b.closed) else {
            return Err("the connection has ended".to_owned());
        };
        // Streams that are still to be connected begin with it.
        if let Some(w) = &mut b.wanted {
            w.congestion = Some(name.clone());
        }
        // The system has it; what each stream says of itself follows.
        if let Some(i) = &mut b.info.iwarp {
            i.congestion.clone_from(&name);
        }
        b.ordered = Some(name.clone());
        for (stream, _) in
            b.streams.iter().flatten().filter(|(s, _)| self.iwarp_state.streams.contains_key(s))
        {
            *b.unheard.entry(*stream).or_default() += 1;
            self.iwarp_state
                .orders
                .push_back(StreamCommand::SetCongestion { stream: *stream, name: name.clone() });
        }
        self.query_streams(conn);
        tracing::info!(cc = name, "another congestion control of the system's TCP holds");
        self.app_due = true;
        self.emit(Event::CcChanged { conn, qp: None, sending: true, cc: name, by_peer: false });
        Ok(())
    }

    /// Sets the kernel's congestion control of this end's sending on an iWARP connection, as the peer asked: the
    /// first of these, in order of preference and divided by commas, that the peer may use here and the system has.
    ///
    /// # Errors
    /// In words, and then nothing has changed: the policy lets the peer have none of them, or the system has none of those.
    pub fn grant_tcp_congestion(&mut self, conn: ConnId, specs: &str) -> Result<(), String> {
        self.check_policy();
        if !self.iwarp_state.conns.contains_key(&conn) {
            return Err("there is no such connection by iWARP".to_owned());
        }
        let mut lent = cc::registry::preferences(specs);
        lent.retain(|spec| self.allows_peer_cc(conn, spec));
        if lent.is_empty() {
            return Err(format!("this host's policy does not let the other end have {specs}"));
        }
        let name = self.system_congestion(&lent.join(","))?;
        self.set_iwarp_congestion(conn, &name)?;
        if let Some(ruled) = self.iwarp_state.conns.get_mut(&conn).and_then(|b| b.ruled.as_mut()) {
            // From here on it is what the application asked for, which a later policy judges anew.
            ruled.traffic.asked = name;
            ruled.choice = self.policy_state.as_ref().map(|g| g.policy().choose(&ruled.traffic));
        }
        Ok(())
    }

    /// The policy may name another algorithm than the one that a connection has. What the application asked for itself stays.
    pub(crate) fn apply_policy_to_tcp(&mut self, conn: ConnId) {
        let Some(b) = self.iwarp_state.conns.get(&conn).filter(|b| !b.closed && !b.asked_congestion) else {
            return;
        };
        let choice = b.ruled.as_ref().and_then(|r| r.choice.as_ref());
        let Some((rule, name)) = choice.and_then(|c| Some((c.rule.clone(), self.tcp_name(c)?))) else {
            return;
        };
        if b.info.iwarp.as_ref().is_some_and(|i| i.congestion == name) {
            return;
        }
        if let Err(error) = self.set_iwarp_congestion(conn, &name) {
            tracing::warn!(
                rule,
                algorithm = name,
                error,
                "a connection by iWARP keeps its congestion control"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernel_algorithm_names_are_accepted() {
        assert_eq!(system_names("cubic"), Ok(vec!["cubic_c".to_owned(), "cubic".to_owned()]));
        assert_eq!(system_names("dctcp-c"), system_names("dctcp"));
        assert_eq!(system_names("a-program"), Ok(vec!["a_program".to_owned()]));
        for wrong in ["", "haul", "bbr:initial_window=9", "sixteen_letters_", "two words", "\u{e9}"] {
            assert!(system_names(wrong).is_err(), "{wrong}");
        }
    }
}
