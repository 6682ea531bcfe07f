//! Expands a peer with words in braces into all combinations of their values.

use super::file::{Flow, Peer, Text};

/// Most peers that one entry expands to.
pub(super) const MAX_EXPANDED: usize = 256;

/// All combinations of a peer's values, the last word changing first. Names without words in braces are not changed.
pub(super) fn expand(peer: &Peer) -> Vec<Peer> {
    let mut out = vec![Peer { vary: Default::default(), ..peer.clone() }];
    for (word, values) in &peer.vary {
        out =
            out.iter().flat_map(|p| values.iter().map(|v| with(p, word, v))).take(MAX_EXPANDED + 1).collect();
    }
    out
}

fn with(peer: &Peer, word: &str, value: &str) -> Peer {
    let braces = format!("{{{word}}}");
    let put = |t: &mut String| *t = t.replace(&braces, value);
    let mut p = peer.clone();
    put(p.name.get_mut());
    for f in &mut p.flow {
        let Flow { name, cc, size, args, policy, .. } = f;
        let texts: [&mut Option<Text>; 3] = [cc, size, policy];
        texts.into_iter().flatten().for_each(|t| put(t.get_mut()));
        name.iter_mut().chain(args).for_each(put);
    }
    p
}
