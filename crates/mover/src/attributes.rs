//! Reads and sets owners, access control lists, extended attributes and device numbers of files.

use crate::acl;
use crate::hash::Digest;
use crate::keep::Keep;
use crate::placement::chmod::{self, ModeChange};
use crate::placement::{Chown, Placement};
use crate::proto::{
    Account, AccountAnswer, Extra, LISTED_ACCOUNT, MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTES,
    MAX_LISTED_ACCOUNT_BYTES, MAX_LISTED_ACCOUNTS, Meta, Node,
};
use crate::tree::Info;
use lhio::accounts::{Accounts, Sort};
use lhio::safe_path::{Attribute, read_attributes, replace_attributes};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared by the threads of one end.
#[derive(Debug, Default)]
pub(crate) struct PreservedAttributes {
    keep: AtomicU64,
    /// What was asked for, whatever the sink keeps of it.
    asked: Keep,
    /// At the source: changes of permissions.
    chmod: Vec<ModeChange>,
    /// At the source: whom everything is to belong to.
    chown: Chown,
    /// At the sink: the numbers of those.
    owners: (Option<u32>, Option<u32>),
    /// Groups of this process, where it can give files to no others.
    groups: OnceLock<Option<BTreeSet<u32>>>,
    accounts: Accounts,
    owners_lost: AtomicU64,
    attributes_lost: AtomicU64,
}

impl PreservedAttributes {
    pub fn new(keep: Keep) -> PreservedAttributes {
        PreservedAttributes {
            keep: AtomicU64::new(keep.bits()),
            asked: keep,
            ..PreservedAttributes::default()
        }
    }
    /// Of a source that changes permissions and owners as the client says.
    pub fn changing(mut self, p: &Placement) -> PreservedAttributes {
        (self.chmod, self.chown) = (p.chmod.clone(), p.chown.clone());
        self
    }
    /// Of a sink that gives everything to this user and group, if they are kept.
    ///
    /// # Errors
    /// There is no such user or group here, in words for the client.
    pub fn giving_to(mut self, chown: &Chown) -> Result<PreservedAttributes, String> {
        let find = |what: Keep, sort, kind, who: &Option<Vec<u8>>| match who {
            Some(name) if self.keep().has(what) => match number_of(&self.accounts, sort, name) {
                Some(n) => Ok(Some(n)),
                None => Err(format!(
                    "there is no {kind} {} at the destination; name another, or give its number",
                    crate::path::show(name)
                )),
            },
            _ => Ok(None),
        };
        self.owners = (
            find(Keep::OWNER, Sort::User, "user", &chown.user)?,
            find(Keep::GROUP, Sort::Group, "group", &chown.group)?,
        );
        Ok(self)
    }
    /// What was asked to be kept.
    pub fn asked(&self) -> Keep {
        self.asked
    }
    pub fn keep(&self) -> Keep {
        Keep::from_bits(self.keep.load(Ordering::Relaxed)).unwrap_or_default()
    }
    /// The sink keeps no more than this.
    pub fn limit(&self, to: Keep) {
        self.keep.fetch_and(to.bits(), Ordering::Relaxed);
    }
    /// Files whose owner, and whose attributes, could not be set here.
    pub fn lost(&self) -> (u64, u64) {
        (self.owners_lost.load(Ordering::Relaxed), self.attributes_lost.load(Ordering::Relaxed))
    }
    /// The part of mode and time that is kept.
    pub fn meta(&self, m: &Meta) -> Meta {
        Meta { mode: self.keep().mode(m.mode), ..*m }
    }
    /// Mode and time of something that is sent: with its changed permissions, as far as they are kept.
    pub fn meta_of(&self, info: &Info) -> Meta {
        self.meta(&Meta { mode: chmod::apply(&self.chmod, info.meta.mode, info.kind), ..info.meta })
    }
    fn account(&self, sort: Sort, id: u32) -> Account {
        let chosen = match sort {
            Sort::User => &self.chown.user,
            Sort::Group => &self.chown.group,
        };
        if let Some(name) = chosen {
            return Account { id, name: name.clone() };
        }
        let by_name = !self.keep().has(Keep::NUMERIC);
        Account { id, name: if by_name { self.accounts.name(sort, id) } else { Vec::new() } }
    }
    /// What there is beside attributes; `None` where nothing is kept of it.
    pub fn plain(&self, info: &Info) -> Option<Extra> {
        let keep = self.keep();
        if keep.is_empty() {
            return None;
        }
        Some(Extra {
            owner: keep.has(Keep::OWNER).then(|| self.account(Sort::User, info.owner)),
            group: keep.has(Keep::GROUP).then(|| self.account(Sort::Group, info.group)),
            node: info.node,
            ..Extra::default()
        })
    }
    /// The same with attributes of an open file or folder, and whether some had to be left out, since they are more than a
    /// message takes.
    pub fn of_file(&self, info: &Info, f: &impl AsFd) -> io::Result<(Option<Extra>, bool)> {
        let Some(mut x) = self.plain(info) else { return Ok((None, false)) };
        let keep = self.keep();
        let left_behind = std::cell::Cell::new(false);
        let mut excluded = false;
        if keep.has(Keep::ACLS.with(Keep::ATTRIBUTES)) {
            let wanted = |n: &[u8]| {
                let asked = keep.has(Keep::ATTRIBUTES) && keep.with(Keep::PRIVILEGED).takes(n);
                left_behind.set(left_behind.get() || asked && !keep.takes(n));
                keep.takes(n)
            };
            let (mut all, mut bytes) = (read_attributes(f, wanted)?, 0);
            all.retain(|(name, value)| {
                let fits = bytes + name.len() + value.len() + 8 <= MAX_ATTRIBUTE_BYTES;
                bytes += if fits { name.len() + value.len() + 8 } else { 0 };
                excluded |= !fits;
                fits
            });
            excluded |= all.len() > MAX_ATTRIBUTES;
            all.truncate(MAX_ATTRIBUTES);
            x.accounts = self.accounts_of(&all);
            x.attributes = Some(all);
        }
        Ok((Some(x), excluded || left_behind.get()))
    }
    /// Users and groups with a name that access control lists have. Those that are too many go by number.
    fn accounts_of(&self, all: &[Attribute]) -> Vec<(Sort, Account)> {
        let (mut out, mut bytes) = (Vec::new(), 0);
        if self.keep().has(Keep::NUMERIC) {
            return out;
        }
        let lists = all.iter().filter(|(name, _)| acl::is_list(name));
        let named: BTreeSet<(bool, u32)> =
            lists.flat_map(|(_, v)| acl::accounts(v)).map(|(s, id)| (s == Sort::Group, id)).collect();
        for (group, id) in named {
            let sort = if group { Sort::Group } else { Sort::User };
            let name = self.accounts.name(sort, id);
            bytes += name.len() + LISTED_ACCOUNT;
            if !name.is_empty() && out.len() < MAX_LISTED_ACCOUNTS && bytes <= MAX_LISTED_ACCOUNT_BYTES {
                out.push((sort, Account { id, name }));
            }
        }
        out
    }
    fn number(&self, sort: Sort, a: &Account) -> u32 {
        let named = (!a.name.is_empty() && !self.keep().has(Keep::NUMERIC))
            .then(|| self.accounts.number(sort, &a.name));
        named.flatten().unwrap_or(a.id)
    }
    /// What this end makes of a user or group of the other one.
    pub fn answer(&self, sort: Sort, a: &Account) -> AccountAnswer {
        let (chosen, kept) = match sort {
            Sort::User => (self.owners.0, Keep::OWNER),
            Sort::Group => (self.owners.1, Keep::GROUP),
        };
        let id = chosen.unwrap_or_else(|| self.number(sort, a));
        let settable = self.keep().has(kept) && (sort == Sort::User || self.may_give_to(id));
        AccountAnswer { id, settable }
    }
    /// Whether this process can give files to a group: without the privilege, to its own ones.
    fn may_give_to(&self, group: u32) -> bool {
        let own = self.groups.get_or_init(|| {
            if rustix::process::geteuid().is_root() {
                return None;
            }
            let further = rustix::process::getgroups().unwrap_or_default();
            Some(further.into_iter().chain([rustix::process::getegid()]).map(|g| g.as_raw()).collect())
        });
        own.as_ref().is_none_or(|all| all.contains(&group))
    }
    /// User and group that something is to have, as far as they are kept here. A group that it cannot be given to is left
    /// out, as by rsync.
    pub fn owner(&self, x: &Extra) -> (Option<u32>, Option<u32>) {
        let of = |sort, a: &Option<Account>| {
            let answer = self.answer(sort, a.as_ref()?);
            answer.settable.then_some(answer.id)
        };
        (of(Sort::User, &x.owner), of(Sort::Group, &x.group))
    }
    /// Access control lists with the numbers of this end.
    fn attributes_here(&self, x: &Extra, all: &[Attribute]) -> Vec<Attribute> {
        let here = |sort, id| {
            let named = x.accounts.iter().find(|(s, a)| *s == sort && a.id == id);
            named.map_or(id, |(_, a)| self.number(sort, a))
        };
        let list = |(name, value): &Attribute| match acl::is_list(name) {
            true if !x.accounts.is_empty() => (name.clone(), acl::renumbered(value, here)),
            _ => (name.clone(), value.clone()),
        };
        all.iter().map(list).collect()
    }
    /// Counts what could not be given away.
    pub fn owned(&self, r: io::Result<()>) {
        if r.is_err() {
            self.owners_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
    /// Gives owner, group and attributes to an open file or folder; its mode comes after this, since a change of the owner
    /// takes set-id bits away. What cannot be set is counted.
    pub fn apply(&self, f: &impl AsFd, x: &Extra) {
        let (user, group) = self.owner(x);
        if user.is_some() || group.is_some() {
            let there = Info::of_file(f).map(|i| (i.owner, i.group)).ok();
            let wanted = there.map(|t| (user.unwrap_or(t.0), group.unwrap_or(t.1)));
            if wanted.is_none() || wanted != there {
                let (u, g) = (user.map(rustix::fs::Uid::from_raw), group.map(rustix::fs::Gid::from_raw));
                self.owned(rustix::fs::fchown(f, u, g).map_err(Into::into));
            }
        }
        let keep = self.keep();
        if let Some(all) = x.attributes.as_ref().filter(|_| keep.has(Keep::ACLS.with(Keep::ATTRIBUTES)))
            && let Err(e) = replace_attributes(f, &self.attributes_here(x, all), |n| keep.takes(n))
            && !(all.is_empty() && e.raw_os_error() == Some(libc::EOPNOTSUPP))
        {
            self.attributes_lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Extra {
    /// As a listing tells it: attributes by their hash.
    #[must_use]
    pub(crate) fn told(&self) -> Extra {
        let some = self.attributes.as_deref().filter(|a| !a.is_empty());
        let digest = some.map(digest).or(self.digest);
        Extra { digest, attributes: None, accounts: Vec::new(), ..self.clone() }
    }
    /// The hash of the attributes, with other numbers in access control lists for the users and groups that have names.
    pub(crate) fn digest_with(&self, number: impl Fn(Sort, u32) -> Option<u32>) -> Option<Digest> {
        let all = self.attributes.as_deref().filter(|a| !a.is_empty())?;
        let here = |sort, id| number(sort, id).unwrap_or(id);
        let list = |(name, value): &Attribute| match acl::is_list(name) {
            true if !self.accounts.is_empty() => (name.clone(), acl::renumbered(value, here)),
            _ => (name.clone(), value.clone()),
        };
        Some(digest(&all.iter().map(list).collect::<Vec<_>>()))
    }
}

fn digest(all: &[Attribute]) -> Digest {
    let mut h = blake3::Hasher::new();
    for part in all.iter().flat_map(|(n, v)| [n, v]) {
        h.update(&(part.len() as u64).to_le_bytes());
        h.update(part);
    }
    *h.finalize().as_bytes()
}

/// The number of a user or group that is named, or given by its number in digits.
fn number_of(accounts: &Accounts, sort: Sort, name: &[u8]) -> Option<u32> {
    if name.iter().all(u8::is_ascii_digit) {
        // The largest number stands for none in the system's calls.
        return std::str::from_utf8(name).ok()?.parse().ok().filter(|n| *n < u32::MAX);
    }
    accounts.number(sort, name)
}

impl Node {
    /// What is kept if this is.
    pub(crate) fn kind(self) -> Keep {
        let device = matches!(self.format, 0o020_000 | 0o060_000);
        if device { Keep::DEVICES } else { Keep::PIPES }
    }
}
