//! The server memory that a client's measurement reserves, and the time it may leave it idle.

use super::proto::Plan;
use crate::units::show_bytes;
use base::{Span, Time};
use endpoint::{ConnInfo, network_of};
use lhio::budget::{Budget, BudgetExceeded, Share};

/// A client that has moved nothing for so long gives its memory back: longer than any path is silent on which a connection lives.
const SILENT: Span = Span::from_secs(40);
/// One that was refused, or has its result, and does not close is closed.
const LINGER: Span = Span::from_secs(30);

/// A session's part of the memory for all.
pub struct MemoryClaim {
    share: Share,
    /// Payload that had moved when it was looked at last, and when that changed.
    moved: (u64, Time),
    /// All is said.
    over: bool,
}

impl MemoryClaim {
    /// Of a client that has just come.
    pub fn new(budget: &Budget, info: &ConnInfo, now: Time) -> MemoryClaim {
        // A client that shows no key is known by its address only.
        let key = info.peer.as_ref().map(ToString::to_string);
        let groups = key.into_iter().chain([network_of(info.remote.ip()).to_string()]).collect();
        MemoryClaim { share: budget.share(0, groups), moved: (0, now), over: false }
    }

    /// Takes what a plan needs.
    ///
    /// # Errors
    /// Words for the client: what there is, and what to do.
    pub fn take(&mut self, plan: &Plan) -> Result<(), String> {
        self.share.take(plan.memory()).map_err(|BudgetExceeded { wanted, total, free }| {
            format!(
                "cannot get {} of memory for this measurement: the server has {} for all clients, and {} of that \
                 free for this one; try a smaller --region, --size or --depth, or fewer --streams",
                show_bytes(wanted),
                show_bytes(total),
                show_bytes(free)
            )
        })
    }

    /// Gives its memory back.
    pub fn give_back(&mut self) {
        self.share.give_back(self.share.held());
    }

    /// The client has all that it was to have, and is to close.
    pub fn end(&mut self, now: Time) {
        (self.over, self.moved.1) = (true, now);
    }

    /// When to look whether something has [moved](MemoryClaim::look).
    pub fn next_look(&self) -> Time {
        self.moved.1 + if self.over { LINGER } else { SILENT }
    }

    /// Why the session is to be closed, if it is: `moved` is payload so far, both ways together.
    pub fn look(&mut self, now: Time, moved: impl FnOnce() -> u64) -> Option<&'static str> {
        if now < self.next_look() {
            return None;
        }
        if self.over {
            return Some("the measurement is over");
        }
        let moved = moved();
        if moved == self.moved.0 {
            return Some("cannot finish the measurement: nothing was transferred for 40 s; try again");
        }
        self.moved = (moved, now);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(budget: &Budget, from: &str) -> MemoryClaim {
        MemoryClaim { share: budget.share(0, vec![from.to_owned()]), moved: (0, Time::ZERO), over: false }
    }

    #[test]
    fn plan_beyond_client_memory_is_refused_with_numbers() {
        let plan = Plan { region: 64 << 20, streams: 4, ..Plan::example() };
        let budget = Budget::new(768 << 20);
        let mut first = claim(&budget, "a");
        assert_eq!(first.take(&plan), Ok(()));
        let text = claim(&budget, "a").take(&plan).unwrap_err();
        assert!(
            text.contains("256.03 MiB") && text.contains("768.00 MiB") && text.contains("--region"),
            "{text}"
        );
        drop(first);
        assert_eq!(budget.used(), 0);
        let huge = Plan { region: 1 << 40, streams: 128, ..Plan::example() };
        assert!(claim(&budget, "a").take(&huge).is_err());
    }

    #[test]
    fn idle_and_lingering_clients_are_closed() {
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let mut c = claim(&Budget::unlimited(), "a");
        assert_eq!(c.look(at(39), || panic!("too early")), None);
        assert_eq!(c.look(at(40), || 7), None);
        assert_eq!(c.look(at(79), || panic!("too early")), None);
        assert!(c.look(at(80), || 7).is_some());
        c.end(at(81));
        assert_eq!((c.look(at(110), || 0), c.look(at(111), || 9).is_some()), (None, true));
    }
}
