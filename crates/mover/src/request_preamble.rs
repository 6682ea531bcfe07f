//! Records that a client sends before its request: selection, list of names, and change.

use crate::placement::Placement;
use crate::proto::{Change, Hello, Op};
use crate::select::{Names, Select};
use crate::server::ServeOptions;
use crate::session::{Control, Fatal};

/// The records that one session received before its request.
#[derive(Debug, Default)]
pub(crate) struct RequestPreamble {
    pub select: Select,
    selected: bool,
    names: Option<Names>,
    placement: Option<Box<Placement>>,
    change: Option<Change>,
}

impl RequestPreamble {
    /// Takes a record that comes in front of Hello.
    ///
    /// # Errors
    /// It comes twice, too late, or has too much in it.
    pub fn take(&mut self, c: Control, begun: bool) -> Result<(), Fatal> {
        if begun {
            return Err(Fatal::protocol("what is selected came behind the request"));
        }
        match c {
            Control::Select(s) if !self.selected => (self.select, self.selected) = (*s, true),
            Control::Placement(p) if self.placement.is_none() => self.placement = Some(p),
            Control::Change(c) if self.change.is_none() => self.change = Some(c),
            Control::Names(n) => self.names.get_or_insert_default().append(n).map_err(Fatal::Protocol)?,
            _ => return Err(Fatal::protocol("what is selected came twice")),
        }
        Ok(())
    }
    /// All that is selected.
    pub fn select(&mut self) -> Select {
        let placement = self.placement.take().map(|p| *p).unwrap_or_default();
        Select { names: self.names.take(), placement, ..self.select.clone() }
    }
    /// What is to be changed.
    ///
    /// # Errors
    /// The client has not said.
    pub fn change(&self) -> Result<Change, Fatal> {
        self.change.ok_or_else(|| Fatal::protocol("a change that does not say what"))
    }
    /// Whether something at the destination is to go.
    pub fn removes(&self) -> bool {
        self.select.delete.is_some() || self.change.is_some()
    }
    /// Whether something else than the destination is to be used.
    pub fn reaches_beyond(&self) -> bool {
        self.placement.as_ref().is_some_and(|p| !p.link_dest.is_empty() || p.partial_dir.is_some())
    }
    /// For the log.
    pub fn verb(&self) -> &'static str {
        match self.change {
            Some(Change::MakeFolder { .. }) => "mkdir",
            Some(Change::Remove { .. }) => "rm",
            Some(Change::Rename) => "mv",
            None => "change",
        }
    }
    /// Whether the server's settings allow it.
    ///
    /// # Errors
    /// In words with the way out.
    pub fn allowed(&self, h: &Hello, o: &ServeOptions) -> Result<(), Fatal> {
        let refuse = |t: &str| Err(Fatal::Refuse(t.into()));
        let (selected, placed) = (self.selected, self.placement.is_some());
        let fits = match h.op {
            Op::Get => self.change.is_none(),
            Op::Put => self.change.is_none() && self.names.is_none(),
            Op::List | Op::Invite | Op::Copy => {
                self.change.is_none() && self.names.is_none() && !selected && !placed
            }
            Op::Change => self.names.is_none() && !selected && !placed,
        };
        if !fits {
            return Err(Fatal::protocol("a selection that the request has no use for"));
        }
        let deletes = h.op == Op::Put && self.select.delete.is_some();
        let backs_up = h.op == Op::Put && self.select.backup.is_some();
        let changes = h.op == Op::Change;
        let links = h.op == Op::Put && self.placement.as_ref().is_some_and(|p| !p.link_dest.is_empty());
        match self.change {
            _ if changes && !o.allow_write => {
                refuse("the server is read-only; ask the one who runs it to serve it without --read-only")
            }
            _ if (changes || deletes) && !o.allow_read => refuse(
                "the server only takes files and does not say what it has, so nothing of it can be made, removed or renamed",
            ),
            _ if backs_up && !o.allow_read => refuse(
                "the server only takes files and does not say what it has, so --backup would tell; leave it out",
            ),
            _ if links && !o.allow_read => refuse(
                "the server only takes files and does not say what it has, so --link-dest would tell; leave it out",
            ),
            Some(Change::Remove { .. } | Change::Rename) if changes && !o.allow_delete => refuse(
                "the server lets nobody remove or rename; ask the one who runs it to serve with --allow-delete",
            ),
            _ if deletes && !o.allow_delete => refuse(
                "the server lets nobody remove; leave out --delete, or ask the one who runs it to serve with --allow-delete",
            ),
            Some(Change::Rename) if h.paths.len() != 2 => {
                Err(Fatal::protocol("a rename has an old and a new name"))
            }
            _ if changes && h.paths.is_empty() => Err(Fatal::protocol("a change names at least one path")),
            _ => Ok(()),
        }
    }
}
