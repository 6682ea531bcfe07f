//! Options that select files to send, replace or delete, by rsync's names.

use super::{PlacementOptions, heading};
use crate::exit::{Failure, Outcome};
use crate::units;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use mover::path::RelPath;
use mover::select::{Backup, Delete, Names, Rule, Select, filter};
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Longest list that is read, in bytes.
const MAX_LIST: u64 = 1 << 30;

/// Filter options in the order of the command line, which matters.
#[derive(Clone, Debug, Default)]
pub struct Filters(Vec<(FilterKind, OsString)>);

#[derive(Clone, Copy, Debug)]
struct FilterKind {
    include: bool,
    /// The value names a file of rules.
    file: bool,
}

/// Name, name of the value, kind, and help of an option.
type Definition = (&'static str, &'static str, FilterKind, &'static str);
const FILTERS: [Definition; 4] = [
    (
        "exclude",
        "PATTERN",
        FilterKind { include: false, file: false },
        "Leave out what matches PATTERN, unless an earlier rule includes it (repeatable; default: none)",
    ),
    (
        "include",
        "PATTERN",
        FilterKind { include: true, file: false },
        "Do not leave out what matches PATTERN by a later rule (repeatable; default: none)",
    ),
    (
        "exclude-from",
        "FILE",
        FilterKind { include: false, file: true },
        "Read patterns as of --exclude from FILE, a line each, or from standard input with - (default: none)",
    ),
    (
        "include-from",
        "FILE",
        FilterKind { include: true, file: true },
        "Read patterns as of --include from FILE, a line each, or from standard input with - (default: none)",
    ),
];

impl Args for Filters {
    fn augment_args(mut c: clap::Command) -> clap::Command {
        for (name, value, _, help) in FILTERS {
            let a = Arg::new(name).long(name).value_name(value).action(ArgAction::Append).help(help);
            let a = a.value_parser(clap::value_parser!(OsString)).help_heading(heading::TRANSFER);
            c = c.arg(a.hide_short_help(name != "exclude").allow_hyphen_values(true));
        }
        c
    }
    fn augment_args_for_update(c: clap::Command) -> clap::Command {
        Filters::augment_args(c)
    }
}
impl FromArgMatches for Filters {
    fn from_arg_matches(m: &ArgMatches) -> Result<Filters, clap::Error> {
        let mut all = Vec::new();
        for (name, _, which, _) in FILTERS {
            let values = m.get_many::<OsString>(name).into_iter().flatten().cloned();
            all.extend(m.indices_of(name).into_iter().flatten().zip(values).map(|(i, v)| (i, which, v)));
        }
        all.sort_by_key(|a| a.0);
        Ok(Filters(all.into_iter().map(|(_, which, v)| (which, v)).collect()))
    }
    fn update_from_arg_matches(&mut self, m: &ArgMatches) -> Result<(), clap::Error> {
        *self = Filters::from_arg_matches(m)?;
        Ok(())
    }
}

/// What is sent, and what is replaced or removed at the destination.
#[derive(Args, Clone, Debug)]
pub struct SelectOptions {
    #[command(flatten)]
    pub filters: Filters,
    /// Send what .longhaulignore files name, too.
    ///
    /// Such a file names in the syntax of .gitignore what of its folder is not sent.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub no_ignore: bool,
    /// Send only the names in FILE, a line each, or of standard input with - (default: everything).
    ///
    /// They are relative to the one source, a folder with a slash at its end. A folder is sent without its contents, unless its name
    /// has a slash at its end.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["delete", "delete_excluded"], hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub files_from: Option<PathBuf>,
    /// End lines of --files-from, --exclude-from and --include-from by a NUL byte.
    #[arg(short = '0', long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub from0: bool,
    /// Do not enter folders where another file system is mounted.
    #[arg(short = 'x', long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub one_file_system: bool,
    /// Leave out files larger than SIZE (default: no limit).
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub max_size: Option<u64>,
    /// Leave out files smaller than SIZE (default: no limit).
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub min_size: Option<u64>,
    /// Delete what the destination has and the source has not, once everything is in place.
    ///
    /// Nothing is deleted after a failure, nor what filter rules leave out. With -n, what would be deleted is listed.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub delete: bool,
    /// Delete what filter rules leave out as well (implies --delete).
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub delete_excluded: bool,
    /// Delete no more than N files and folders, 0 to 2^63 (default: no limit).
    #[arg(long, value_name = "N", hide_short_help = true, help_heading = heading::TRANSFER)]
    pub max_delete: Option<u64>,
    /// Delete even if something could not be read or written.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub ignore_errors: bool,
    /// Keep files that are newer at the destination.
    #[arg(short, long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub update: bool,
    /// Make no files or folders that the destination has not.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub existing: bool,
    /// Keep files that the destination has.
    ///
    /// With --no-overwrite, one that differs is a failure; with this it is none.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub ignore_existing: bool,
    /// Keep files that are replaced or deleted under another name (--suffix, --backup-dir).
    #[arg(short, long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub backup: bool,
    /// What is appended to the names of backups (default: ~, or nothing with --backup-dir).
    #[arg(long, value_name = "SUFFIX", hide_short_help = true, help_heading = heading::TRANSFER)]
    pub suffix: Option<OsString>,
    /// Folder below the destination for backups (default: beside each file).
    #[arg(long, value_name = "DIR", hide_short_help = true, help_heading = heading::TRANSFER)]
    pub backup_dir: Option<PathBuf>,
    /// Skip files by size alone.
    #[arg(long, conflicts_with = "checksum", hide_short_help = true, help_heading = heading::TRANSFER)]
    pub size_only: bool,
    /// Treat modification times as equal up to this difference in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub modify_window: u32,
    #[command(flatten)]
    pub placement: PlacementOptions,
}

impl SelectOptions {
    /// Reads the files that the options name.
    pub fn select(&self) -> Outcome<Select> {
        let mut rules: Vec<Rule> = Vec::new();
        for (which, value) in &self.filters.0 {
            let shown = mover::path::show(value.as_bytes());
            if which.file {
                let text = read(Path::new(value))?;
                filter::add_file(&mut rules, which.include, &text, self.from0)
                    .map_err(|e| Failure::usage(format!("cannot use the rules of {shown}: {e}")))?;
            } else {
                filter::add(&mut rules, which.include, value.as_bytes())
                    .map_err(|e| Failure::usage(format!("cannot use the rule {shown}: {e}")))?;
            }
        }
        let deletes = self.delete || self.delete_excluded;
        let select = Select {
            rules,
            no_ignore: self.no_ignore,
            one_file_system: self.one_file_system,
            max_size: self.max_size,
            min_size: self.min_size,
            names: self.names()?,
            update: self.update,
            existing: self.existing,
            ignore_existing: self.ignore_existing,
            size_only: self.size_only,
            modify_window: u64::from(self.modify_window),
            delete: deletes.then_some(Delete {
                excluded: self.delete_excluded,
                ignore_errors: self.ignore_errors,
                max: self.max_delete,
            }),
            backup: self.kept()?,
            placement: self.placement.placement()?,
        };
        select.check().map_err(|e| Failure::usage(format!("cannot select so: {e}")))?;
        Ok(select)
    }

    fn names(&self) -> Outcome<Option<Names>> {
        let Some(file) = &self.files_from else { return Ok(None) };
        let (names, bad) = Names::parse(&read(file)?, self.from0);
        match bad.first() {
            Some(e) => Err(Failure::usage(format!("cannot use {}: {e}", file.display()))),
            None => Ok(Some(names)),
        }
    }

    fn kept(&self) -> Outcome<Option<Backup>> {
        if !self.backup && self.backup_dir.is_none() {
            return Ok(None);
        }
        let usage = |e: String| Failure::usage(format!("cannot keep backups: {e}"));
        let dir = self.backup_dir.as_ref().map(|d| {
            RelPath::parse_lenient(d.as_os_str().as_bytes()).map_err(|e| usage(format!("--backup-dir {e}")))
        });
        let dir = dir.transpose()?;
        let default = if dir.is_some() { "" } else { "~" };
        let suffix = self.suffix.clone().unwrap_or_else(|| default.into());
        Backup::new(suffix.as_bytes(), dir).map(Some).map_err(usage)
    }
}

/// A file, or standard input.
fn read(file: &Path) -> Outcome<Vec<u8>> {
    let fail = |e: std::io::Error| {
        Failure::usage(format!(
            "cannot read {}: {e}; try another file",
            mover::path::show(file.as_os_str().as_bytes())
        ))
    };
    let mut out = Vec::new();
    if file.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_LIST).read_to_end(&mut out).map_err(fail)?;
    } else {
        std::fs::File::open(file).map_err(fail)?.take(MAX_LIST).read_to_end(&mut out).map_err(fail)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    #[test]
    fn filter_rules_keep_the_order_of_the_command_line() {
        let line =
            "longhaul put --include a --exclude b --include c --exclude d/ s longhaul://h/ --exclude -x";
        let parsed = crate::args::Cli::try_parse_from(line.split(' ')).unwrap();
        let crate::args::Command::Put(p) = parsed.command else { panic!() };
        let rules = p.select_options.select().unwrap().rules;
        let got: Vec<_> = rules.iter().map(|r| (r.include, r.pattern.as_slice())).collect();
        assert_eq!(got, [(true, &b"a"[..]), (false, b"b"), (true, b"c"), (false, b"d/"), (false, b"-x")]);
    }

    #[test]
    fn unusable_filters_are_refused_with_a_reason() {
        let of = |flags: &str| {
            let line = format!("longhaul put s/ longhaul://h/ {flags}");
            let parsed = crate::args::Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?;
            let crate::args::Command::Put(p) = parsed.command else { panic!() };
            p.select_options.select().map_err(|f| f.text)
        };
        assert!(of("--delete -b --suffix .old --backup-dir old").is_ok());
        for (bad, said) in [
            ("--exclude=", "empty"),
            ("--backup-dir ../x", ".."),
            ("-b --suffix=", "empty suffix"),
            ("-b --suffix a/b", "slash"),
            ("--files-from /nonexistent/list", "cannot read"),
            ("--exclude-from /nonexistent/list", "cannot read"),
            ("--files-from x --delete", "cannot be used with"),
            ("--size-only --checksum", "cannot be used with"),
        ] {
            let e = of(bad).unwrap_err();
            assert!(e.contains(said), "{bad}: {e}");
        }
    }
}
