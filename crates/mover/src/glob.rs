//! Patterns in the paths of a `get`: the server expands them, as a shell at its place would.

use crate::path::RelPath;
use crate::proto::{Kind, MAX_ROOTS};
use crate::select::{Filter, Rule};
use crate::tree::Tree;

/// Names that are looked at for one pattern.
const MAX_LOOKED_AT: usize = 1_000_000;

/// The paths that a path stands for, sorted: itself if it is there or is no pattern, or if nothing matches. `*`, `?` and `[...]`
/// match within a name; names that begin with a dot only where the pattern's does. One more than may be sent tells that there
/// are more. No link is followed.
pub(crate) fn expand(tree: &Tree, pattern: &RelPath) -> Vec<RelPath> {
    let wild = |c: &[u8]| c.iter().any(|b| b"*?[".contains(b));
    let itself = || vec![pattern.clone()];
    if !wild(pattern.as_bytes()) || tree.info(pattern).is_ok() {
        return itself();
    }
    let (mut found, mut left) = (vec![RelPath::root()], MAX_LOOKED_AT);
    let parts: Vec<&[u8]> = pattern.components().collect();
    for (n, part) in parts.iter().enumerate() {
        let (last, mut next) = (n + 1 == parts.len(), Vec::new());
        let rule = Rule { include: false, pattern: [b"/", *part].concat() };
        let filter = Filter::new(&[rule]);
        for folder in &found {
            let names = if wild(part) {
                names_in(tree, folder, part, &filter, &mut left)
            } else {
                vec![part.to_vec()]
            };
            for path in names.iter().filter_map(|n| folder.join(n).ok()) {
                let fits = tree.info(&path).is_ok_and(|i| last || i.kind == Kind::Dir);
                if fits && next.len() <= MAX_ROOTS {
                    next.push(path);
                }
            }
        }
        found = next;
    }
    if found.is_empty() { itself() } else { found }
}

/// The names in a folder that match one part of a pattern.
fn names_in(tree: &Tree, folder: &RelPath, part: &[u8], filter: &Filter, left: &mut usize) -> Vec<Vec<u8>> {
    let Ok(names) = tree.names(folder) else { return Vec::new() };
    let looked_at = names.sorted.len().min(*left);
    *left -= looked_at;
    let hidden = |n: &[u8]| n.starts_with(b".") && !part.starts_with(b".");
    let all = names.sorted.into_iter().take(looked_at);
    all.filter(|n| !hidden(n) && filter.excludes(n, false)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_expanded_within_the_tree_and_names_that_are_there_are_not() {
        let d = tempfile::tempdir().unwrap();
        for p in ["a1", "a2/deep", "b"] {
            std::fs::create_dir_all(d.path().join(p)).unwrap();
        }
        for p in
            ["a1/x.fits", "a1/y.fits", "a1/.h.fits", "a2/z.fits", "a2/deep/w.fits", "b/[x].fits", "b/x.fits"]
        {
            std::fs::write(d.path().join(p), "").unwrap();
        }
        std::os::unix::fs::symlink("a1", d.path().join("a3")).unwrap();
        let tree = Tree::open(d.path()).unwrap();
        let go = |p: &str| -> Vec<String> {
            expand(&tree, &RelPath::parse(p.as_bytes()).unwrap()).iter().map(ToString::to_string).collect()
        };
        assert_eq!(go("a*/*.fits"), ["a1/x.fits", "a1/y.fits", "a2/z.fits"]);
        assert_eq!(go("a1/.*.fits"), ["a1/.h.fits"]);
        assert_eq!(go("a?"), ["a1", "a2", "a3"]);
        assert_eq!(go("b/[x].fits"), ["b/[x].fits"]);
        assert_eq!(go("**/w.fits"), ["**/w.fits"], "a pattern matches within a name");
        assert_eq!(go("c*"), ["c*"]);
        assert_eq!(go("[a-b]?/deep"), ["a2/deep"]);
    }
}
