//! Topologies of laboratories: nodes and the links between them.

use std::path::PathBuf;

use netem::{LinkConfig, SpecError};
use serde::{Deserialize, Serialize};

use crate::plan::trace;

/// Most nodes of a topology: each is a network namespace with its devices.
pub const MAX_NODES: usize = 64;

/// One direction of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LinkSpec {
    /// In the language of [`LinkConfig::parse`]: `rate=1gbit delay=35ms loss=0.1% queue=1bdp`.
    Text(String),
    /// The same with the rate of a trace instead of a constant one.
    Traced {
        /// In the language of [`LinkConfig::parse`], without `rate`.
        link: String,
        /// A file in mahimahi's format: each line is a time in milliseconds at which 1500 bytes may be sent; it
        /// repeats at the end.
        trace: PathBuf,
    },
}

/// Nodes and links. Every node reaches every other over IPv4 and IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum TopologySpec {
    /// Nodes `a` and `b` with a link each way. Links: `forward` (from `a`), `reverse`.
    Path {
        /// From `a` to `b`.
        forward: LinkSpec,
        /// From `b` to `a`; like `forward` when left out.
        reverse: Option<LinkSpec>,
    },
    /// Senders `s1`, `s2`, ... and receivers `r1`, `r2`, ... with one bottleneck between them. Links: `bottleneck`,
    /// `reverse`, and where `access` is described `s1-up`, `s1-down` between a sender and the bottleneck.
    Dumbbell {
        /// How many pairs.
        pairs: usize,
        /// From the senders to the receivers.
        bottleneck: LinkSpec,
        /// From the receivers to the senders; like `bottleneck` when left out.
        reverse: Option<LinkSpec>,
        /// Between each sender and the bottleneck, equal in both directions, used in turn for the pairs; perfect
        /// links if empty. Unequal round trips are configured here.
        #[serde(default)]
        access: Vec<LinkSpec>,
    },
    /// Nodes `n1`, `n2`, ... around one switch. Links: `n1-down`, the egress port of the switch, whose queue all
    /// senders to that node share, and `n1-up` to the switch where it is described.
    Star {
        /// How many nodes.
        nodes: usize,
        /// From each node to the switch; a perfect link when left out.
        up: Option<LinkSpec>,
        /// From the switch to each node.
        down: LinkSpec,
    },
    /// Nodes `a` and `b` with two disjoint paths: each node has a device and an address for each. Links:
    /// `first-forward`, `first-reverse`, `second-forward`, `second-reverse`.
    TwoPaths {
        /// The first path, from `a` to `b`, and back the same.
        first: LinkSpec,
        /// The second.
        second: LinkSpec,
    },
}

/// Why a topology cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A link's description cannot be read.
    #[error("link `{link}`: {source}")]
    Link {
        /// The link.
        link: String,
        /// What is wrong with it.
        source: SpecError,
    },
    /// Too few or too many nodes.
    #[error("a topology needs 2 to {MAX_NODES} nodes and this one has {0}; change `nodes` or `pairs`")]
    Nodes(usize),
    /// A trace cannot be used.
    #[error("trace {}: {reason}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and what to do.
        reason: String,
    },
}

impl LinkSpec {
    /// The text of the description.
    pub fn text(&self) -> &str {
        match self {
            LinkSpec::Text(text) | LinkSpec::Traced { link: text, .. } => text,
        }
    }
}

impl From<&str> for LinkSpec {
    fn from(text: &str) -> LinkSpec {
        LinkSpec::Text(text.to_owned())
    }
}

fn each_to_each(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count).flat_map(move |from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to)
}

impl TopologySpec {
    /// The topology with absolute paths of traces, for a process in another folder.
    pub(crate) fn absolute(&self) -> std::io::Result<TopologySpec> {
        let mut topology = self.clone();
        let links: Vec<&mut LinkSpec> = match &mut topology {
            TopologySpec::Path { forward, reverse } => std::iter::once(forward).chain(reverse).collect(),
            TopologySpec::Dumbbell { bottleneck, reverse, access, .. } => {
                std::iter::once(bottleneck).chain(reverse).chain(access).collect()
            }
            TopologySpec::Star { up, down, .. } => std::iter::once(down).chain(up).collect(),
            TopologySpec::TwoPaths { first, second } => vec![first, second],
        };
        for link in links {
            if let LinkSpec::Traced { trace, .. } = link {
                *trace = std::path::absolute(&trace)?;
            }
        }
        Ok(topology)
    }

    /// Nodes `a` and `b` with the same link in both directions.
    pub fn path(link: &str) -> TopologySpec {
        TopologySpec::Path { forward: link.into(), reverse: None }
    }

    /// The names of the nodes, in order.
    pub fn nodes(&self) -> Vec<String> {
        let many = |prefix: &str, count: usize| -> Vec<String> {
            (1..=count.min(MAX_NODES)).map(|n| format!("{prefix}{n}")).collect()
        };
        match *self {
            TopologySpec::Path { .. } | TopologySpec::TwoPaths { .. } => vec!["a".to_owned(), "b".to_owned()],
            TopologySpec::Dumbbell { pairs, .. } => [many("s", pairs), many("r", pairs)].concat(),
            TopologySpec::Star { nodes, .. } => many("n", nodes),
        }
    }

    /// Number of devices, and addresses, of each node.
    pub fn devices_per_node(&self) -> usize {
        if matches!(self, TopologySpec::TwoPaths { .. }) { 2 } else { 1 }
    }

    /// The names and descriptions of the links, in the order of the records.
    ///
    /// # Errors
    /// When the number of nodes is out of range or a description cannot be read.
    pub fn links(&self) -> Result<Vec<(String, LinkConfig)>, TopologyError> {
        let count = match *self {
            TopologySpec::Dumbbell { pairs, .. } => pairs.saturating_mul(2),
            TopologySpec::Star { nodes, .. } => nodes,
            TopologySpec::Path { .. } | TopologySpec::TwoPaths { .. } => 2,
        };
        if !(2..=MAX_NODES).contains(&count) {
            return Err(TopologyError::Nodes(count));
        }
        self.named_links().into_iter().map(|(name, spec)| Ok((name.clone(), config(name, spec)?))).collect()
    }

    /// The lines of the links' traces, in the order of the links.
    ///
    /// # Errors
    /// When a trace cannot be read or is not one.
    pub(crate) fn traces(&self) -> Result<Vec<Option<Vec<u64>>>, TopologyError> {
        let load = |spec: &LinkSpec| match spec {
            LinkSpec::Text(_) => Ok(None),
            LinkSpec::Traced { trace, .. } => {
                let failed = |reason: String| TopologyError::Trace { path: trace.clone(), reason };
                let text = std::fs::read_to_string(trace).map_err(|error| failed(error.to_string()))?;
                trace::parse(&text).map(Some).map_err(|error| failed(error.to_string()))
            }
        };
        self.named_links().into_iter().map(|(_, spec)| load(spec)).collect()
    }

    /// The routes through the network: source and destination device (numbered by node and, within a node, by path),
    /// and the links in order, as indices into [`TopologySpec::links`]. A switch forwards without delay.
    pub(crate) fn routes(&self) -> Vec<(usize, usize, Vec<usize>)> {
        match *self {
            TopologySpec::Path { .. } => vec![(0, 1, vec![0]), (1, 0, vec![1])],
            // Devices: a on the first path, a on the second, b on the first, b on the second.
            TopologySpec::TwoPaths { .. } => {
                vec![(0, 2, vec![0]), (2, 0, vec![1]), (1, 3, vec![2]), (3, 1, vec![3])]
            }
            TopologySpec::Dumbbell { pairs, ref access, .. } => {
                let (up, down) = (|pair| 2 + 2 * pair, |pair| 3 + 2 * pair);
                let way = |from: usize, to: usize| {
                    let first = (from < pairs).then(|| up(from)).filter(|_| !access.is_empty());
                    let last = (to < pairs).then(|| down(to)).filter(|_| !access.is_empty());
                    let middle = match (from < pairs, to < pairs) {
                        (true, false) => Some(0),
                        (false, true) => Some(1),
                        _ => None,
                    };
                    first.into_iter().chain(middle).chain(last).collect()
                };
                each_to_each(2 * pairs).map(|(from, to)| (from, to, way(from, to))).collect()
            }
            TopologySpec::Star { nodes, ref up, .. } => {
                let way = |from, to| up.iter().map(|_| nodes + from).chain([to]).collect();
                each_to_each(nodes).map(|(from, to)| (from, to, way(from, to))).collect()
            }
        }
    }

    fn named_links(&self) -> Vec<(String, &LinkSpec)> {
        match self {
            TopologySpec::Path { forward, reverse } => vec![
                ("forward".to_owned(), forward),
                ("reverse".to_owned(), reverse.as_ref().unwrap_or(forward)),
            ],
            TopologySpec::Dumbbell { pairs, bottleneck, reverse, access } => {
                let mut links = vec![
                    ("bottleneck".to_owned(), bottleneck),
                    ("reverse".to_owned(), reverse.as_ref().unwrap_or(bottleneck)),
                ];
                for (pair, access) in access.iter().cycle().take(*pairs).enumerate() {
                    links.push((format!("s{}-up", pair + 1), access));
                    links.push((format!("s{}-down", pair + 1), access));
                }
                links
            }
            TopologySpec::Star { nodes, up, down } => {
                let numbered = |spec, end| (1..=*nodes).map(move |n| (format!("n{n}-{end}"), spec));
                numbered(down, "down").chain(up.iter().flat_map(|up| numbered(up, "up"))).collect()
            }
            TopologySpec::TwoPaths { first, second } => [
                ("first-forward", first),
                ("first-reverse", first),
                ("second-forward", second),
                ("second-reverse", second),
            ]
            .map(|(name, spec)| (name.to_owned(), spec))
            .into(),
        }
    }
}

fn config(link: String, spec: &LinkSpec) -> Result<LinkConfig, TopologyError> {
    LinkConfig::parse(spec.text()).map_err(|source| TopologyError::Link { link, source })
}
