//! The errors of this crate, each with a remedy.

use std::io;

/// Why a program could not be built, loaded or attached.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no compiler.
    #[error(
        "clang is not there: install it (Debian: `apt-get install clang`), or name one in LONGHAUL_CLANG"
    )]
    NoClang,
    /// The compiler said no.
    #[error("{file} does not compile for the kernel:\n{text}")]
    Compile {
        /// The source.
        file: String,
        /// What the compiler said.
        text: String,
    },
    /// The file is not an object that can be attached.
    #[error("the object cannot be used: {0}")]
    BadObject(String),
    /// The running kernel lacks what is needed.
    #[error("this kernel cannot run it: {0}")]
    Kernel(String),
    /// Not enough rights.
    #[error("{0} is not permitted: run it as root (or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)")]
    NotPermitted(&'static str),
    /// The kernel's verifier refused a program.
    #[error("the kernel's verifier refuses {program}{}:\n{log}", at.as_deref().unwrap_or(""))]
    Verifier {
        /// The callback.
        program: String,
        /// Where in the source, ` (FILE:LINE: text)`.
        at: Option<String>,
        /// The end of what it said.
        log: String,
    },
    /// The name cannot be one of a congestion control.
    #[error(
        "\"{0}\" cannot be the name of a congestion control in the kernel: letters, digits, _ and ., {MAX} bytes at most; \
         give another one by --name",
        MAX = crate::MAX_NAME
    )]
    BadName(String),
    /// A name with a dot, of a program that is to stay.
    #[error("\"{0}\" has a dot, which names of programs that stay cannot have: take _ instead")]
    Dotted(String),
    /// The kernel has one of this name.
    #[error(
        "the kernel has a congestion control \"{0}\" already: give another name by --name, or detach that one"
    )]
    NameTaken(String),
    /// The rules of a policy are more than a program can be.
    #[error("the policy is too long for the kernel: {0}; use fewer rules, or shorter lists")]
    TooManyRules(String),
    /// There is no hierarchy of cgroups that takes programs.
    #[error(
        "no cgroup hierarchy of version 2 is mounted: mount one (`mount -t cgroup2 none FOLDER`), or name a cgroup by --cgroup"
    )]
    NoGroups,
    /// No policy holds for this cgroup.
    #[error("no policy is attached to {0}; `longhaul cc status` shows those that are")]
    NoPolicy(String),
    /// Nothing of this name was attached by us.
    #[error("no program is attached as \"{0}\"; `longhaul cc list` shows those that are")]
    NotAttached(String),
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What came of it.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }

    /// The same, with the lack of rights told apart.
    pub(crate) fn call(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted(what),
            _ => Error::Io { what: what.into(), source },
        }
    }
}
