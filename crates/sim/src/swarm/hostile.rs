//! Injects datagrams as from an attacker or a faulty network.

use crate::pair::addr;
use crate::world::{NodeId, World};
use base::Span;
use netem::flip_bits;
use std::rc::Rc;

/// Most hostile datagrams in one simulation.
const MAX_INJECTED: u64 = 2_000;

/// Injects hostile datagrams at the nodes of each pair, one in `gap` on average.
pub fn start(world: &mut World, pairs: Vec<[NodeId; 2]>, gap: Span) {
    for n in pairs.iter().flatten() {
        world.capture(*n, 4, 32);
    }
    schedule(world, pairs.into(), gap);
}

fn schedule(world: &mut World, pairs: Rc<[[NodeId; 2]]>, gap: Span) {
    let wait = Span::from_nanos(1 + world.rng().below(gap.as_nanos() * 2));
    let at = world.now() + wait;
    world.at(at, move |w| {
        let k = w.rng().below(pairs.len() as u64) as usize;
        inject_one(w, pairs[k]);
        if w.totals().injected < MAX_INJECTED {
            schedule(w, pairs, gap);
        }
    });
}

fn inject_one(w: &mut World, nodes: [NodeId; 2]) {
    let i = w.rng().below(2) as usize;
    let (to, other) = (nodes[i], nodes[1 - i]);
    let stranger = addr(1_000 + w.rng().below(100) as u32);
    let source = if w.rng().chance(0.7) { w.addr(other) } else { stranger };
    let captured = w.captured(to);
    let pick = w.rng().below(captured.len().max(1) as u64) as usize;
    let old = captured.get(pick).map(|(_, d)| d.clone()).unwrap_or_default();
    let kind = w.rng().below(8);
    let mut data = old;
    match kind {
        0 => {
            let n = w.rng().below(1_500) as usize;
            data = vec![0; n];
            w.rng().fill(&mut data);
        }
        1 | 2 => flip_bits(&mut data, w.rng()),
        3 => {
            let n = w.rng().below(data.len() as u64 + 1) as usize;
            data.truncate(n);
        }
        // An unmodified replay.
        4 => {}
        // Sent back to its source.
        5 => return w.inject(other, w.addr(to), data),
        6 => {
            // An unknown version.
            data = vec![0; 1_200];
            w.rng().fill(&mut data);
            data[0] |= 0x80;
        }
        _ => {
            // A stateless reset with an invented token, for an existing connection.
            let head = data.len().min(5);
            let mut reset = data[..head].to_vec();
            reset.resize(48, 0);
            w.rng().fill(&mut reset[head..]);
            data = reset;
        }
    }
    w.inject(to, source, data);
}
