//! Compares owners and attributes of what both ends have, by what the sink makes of users and groups.

use super::feeder::{Feed, SessionEnded, State};
use crate::keep::Keep;
use crate::proto::{Account, AccountAnswer, Extra};
use crate::thread_state::Activity;
use lhio::accounts::Sort;
use std::collections::HashMap;

/// Answers remembered at most, and questions that a source asks.
pub(crate) const MAX_ASKED: usize = 65_536;

/// What the sink makes of users and groups, as far as it was asked.
#[derive(Debug, Default)]
pub(super) struct Answers(HashMap<(Sort, Account), AccountAnswer>);

impl State {
    /// Whether the sink has the same beside mode and time, as far as it is kept, or cannot have it.
    pub(super) fn same_extra(
        &mut self,
        mine: Option<&Extra>,
        there: Option<&Extra>,
    ) -> Result<bool, SessionEnded> {
        let (Some(a), Some(b)) = (mine, there) else { return Ok(mine.is_none()) };
        Ok(self.same_account(Sort::User, a.owner.as_ref(), b.owner.as_ref())?
            && self.same_account(Sort::Group, a.group.as_ref(), b.group.as_ref())?
            && self.same_attributes(a, b)?)
    }
    fn same_account(
        &mut self,
        sort: Sort,
        mine: Option<&Account>,
        there: Option<&Account>,
    ) -> Result<bool, SessionEnded> {
        let (Some(a), Some(b)) = (mine, there) else { return Ok(mine == there) };
        let placement = &self.feeder.picker.select.placement;
        let chosen = match sort {
            Sort::User => placement.chown.user.is_some(),
            Sort::Group => placement.chown.group.is_some(),
        };
        // Two that have the same name are the same, and so are two without one that have the same number.
        if !chosen && a.name == b.name && (!a.name.is_empty() || a.id == b.id) {
            return Ok(true);
        }
        // The number says nothing where everything goes to one.
        let asked = if chosen { Account { id: 0, ..a.clone() } } else { a.clone() };
        let answer = self.ask(sort, &asked)?;
        Ok(answer.is_none_or(|n| !n.settable || n.id == b.id))
    }
    fn same_attributes(&mut self, a: &Extra, b: &Extra) -> Result<bool, SessionEnded> {
        let mine = a.told().digest;
        if mine == b.digest || a.accounts.is_empty() || self.feeder.behind.extras.keep().has(Keep::NUMERIC) {
            return Ok(mine == b.digest);
        }
        let mut numbers = HashMap::new();
        for (sort, account) in &a.accounts {
            if let Some(n) = self.ask(*sort, account)? {
                numbers.insert((*sort, account.id), n.id);
            }
        }
        Ok(a.digest_with(|sort, id| numbers.get(&(sort, id)).copied()) == b.digest)
    }
    /// What the sink makes of a user or group; `None` where it was asked about too many.
    fn ask(&mut self, sort: Sort, account: &Account) -> Result<Option<AccountAnswer>, SessionEnded> {
        let key = (sort, account.clone());
        if let Some(n) = self.numbers.0.get(&key) {
            return Ok(Some(*n));
        }
        if self.numbers.0.len() >= MAX_ASKED {
            return Ok(None);
        }
        self.feed(Feed::AskAccount(sort, account.clone()))?;
        self.feeder.thread_state.set(Activity::AwaitsListing);
        let answer = self.feeder.answers.recv();
        self.feeder.thread_state.set(Activity::Works);
        let answer = answer.map_err(|_| SessionEnded)?;
        self.numbers.0.insert(key, answer);
        Ok(Some(answer))
    }
}
