//! Which setting a flow's rate cap comes from.

/// Which setting a flow's rate cap comes from. The smallest of all caps applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapSource {
    /// The limit that its connection was made with (`--limit`), of this end or as the peer asked.
    Limit,
    /// Its own, which an administrator has set.
    Own,
    /// That of the policy's rule, which has this name; empty: of the policy's default.
    Rule(String),
    /// That of the policy's class of this name.
    Class(String),
    /// The policy's for the whole process.
    Process,
}

impl core::fmt::Display for CapSource {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CapSource::Limit => f.write_str("the connection's limit"),
            CapSource::Own => f.write_str("its own cap"),
            CapSource::Rule(name) if name.is_empty() => f.write_str("the policy's default"),
            CapSource::Rule(name) => write!(f, "the policy's rule \"{name}\""),
            CapSource::Class(name) => write!(f, "the policy's class \"{name}\""),
            CapSource::Process => f.write_str("the policy's cap of the process"),
        }
    }
}
