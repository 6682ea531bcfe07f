//! The receiving end of a put, as a server's settings have it.

use super::{Client, ServerApp};
use crate::error::{Cause, FileError};
use crate::keep::Keep;
use crate::limits::Limits;
use crate::proto::{Hello, Kind};
use crate::session::{Fatal, Role};
use crate::sink::write_only::{self, WriteOnly};
use crate::sink::{Sink, SinkOptions};

impl ServerApp {
    /// Makes the session a sink.
    pub(super) fn receive(&self, c: &mut Client, h: &Hello, limits: Limits) -> Result<(), Fatal> {
        let mut flags = h.flags;
        flags.overwrite &= self.options.allow_overwrite;
        let write_only = self.write_only().then(|| WriteOnly::new(c.identity.as_ref()));
        // What is the same cannot be left out by a client that is not told what is there.
        flags.skip_same &= write_only.is_none();
        flags.checksum &= write_only.is_none();
        let dest = h.paths.first().cloned().unwrap_or_default();
        // Following it could lead outside; replacing it would take away what is behind it, perhaps a folder.
        if self.tree.info(&dest).is_ok_and(|i| i.kind == Kind::Link) {
            let text = "it is a symbolic link, and none is followed here; name the path it points to";
            let e = FileError::new(dest.as_bytes(), Cause::Link, text);
            let (_, text) = write_only::told(&e, write_only.as_ref());
            return Err(Fatal::Refuse(format!("cannot write to {dest}: {text}")));
        }
        let (into, durable) = (h.into, self.options.durable);
        let mut denied =
            if self.options.allow_privileged { Keep::default() } else { h.keep.and(Keep::NEEDS_LEAVE) };
        // A further name of a file that was not sent would tell that it is there.
        if write_only.is_some() {
            denied = denied.with(h.keep.and(Keep::HARD_LINKS));
        }
        let keep = (h.keep.without(denied).possible(), denied);
        let asked = !h.keep.is_empty();
        let options = SinkOptions {
            dest,
            into,
            flags,
            durable,
            one_file: false,
            write_only,
            keep,
            asked,
            anywhere: false,
        };
        let (pool, wake) = (self.pool.clone(), self.wake.clone());
        let sink = Sink::new(pool, wake, self.tree.clone(), options, c.progress.clone());
        let sink = sink.within(limits).selecting(&c.asked.select(), false)?;
        c.session.role = Role::Sink(Box::new(sink));
        Ok(())
    }
}
