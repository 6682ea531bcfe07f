/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * gradient: AIMD that answers the delay's gradient. Each round trip the least delay of the round is compared with that of
 * the round before: while it rises, a queue is growing, and the window shrinks by a share; while it does not, the window
 * grows by some packets. A queue that merely stands has no gradient, so that above a limit it counts as a rise too. Losses
 * and marks are answered as a rise, at once.
 */
#include "opencc_window.h"

OC_PROGRAM("gradient", "AIMD on the gradient of the delay", OC_NEEDS_NOTHING)
OC_STATES("slow_start,avoidance")
OC_INITIAL_WINDOW
OC_COUNT(gain, "packets", 1, 1000, 4, "growth of the window in a round trip without a rise")
OC_SHARE(cut, 1000, 90000, 12500, "what is taken off the window when the delay rises, or a packet is lost")
OC_SHARE(rise, 100, 100000, 3000, "rise of the delay between two round trips that counts, as a share of it")
OC_SPAN(limit, 100000, 1000000000, 15000000, "a queue of as much delay is answered although it does not rise")

struct gradient {
	struct oc_window window;
	u64 now;    /* the least round trip of this round; OC_NONE before a sample */
	u64 before; /* that of the round before */
};

OC_INLINE void start(struct gradient *g, const struct oc_signals *s, struct oc_decision *d)
{
	oc_window_start(&g->window, s, OC_PARAM(initial_window));
	g->now = OC_NONE;
	g->before = OC_NONE;
	oc_decide(&g->window, s, d);
}

OC_INLINE void cut(struct gradient *g, const struct oc_signals *s)
{
	oc_reduce(&g->window, s, 100000 - OC_PARAM(cut), 100000);
}

/* Whether the delay rose, in the round trip that is over. A millisecond is what timers and trains make by themselves. */
OC_INLINE int rises(const struct gradient *g, const struct oc_signals *s)
{
	u64 least;
	if (g->now == OC_NONE || g->before == OC_NONE)
		return 0;
	least = oc_max(oc_mul_div(g->before, OC_PARAM(rise), 100000), OC_MS);
	return g->now > oc_add(g->before, least) || g->now > oc_add(s->min_rtt, OC_PARAM(limit));
}

OC_INLINE void on_round(struct gradient *g, const struct oc_signals *s)
{
	struct oc_window *w = &g->window;
	if (rises(g, s))
		cut(g, s);
	else if (!oc_in_slow_start(w) && oc_is_used(w, s))
		w->cwnd = oc_add(w->cwnd, oc_mul(OC_PARAM(gain), s->packet));
	g->before = g->now;
	g->now = OC_NONE;
}

OC_INLINE void feedback(struct gradient *g, const struct oc_signals *s, struct oc_decision *d)
{
	struct oc_window *w = &g->window;
	if (s->rtt)
		g->now = oc_min(g->now, s->rtt);
	if (oc_is_new_episode(w, s))
		cut(g, s);
	else if (s->round_start)
		on_round(g, s);
	if (oc_in_slow_start(w) && oc_is_used(w, s))
		w->cwnd = oc_add(w->cwnd, s->acked);
	oc_decide(w, s, d);
}

OC_INLINE void event(struct gradient *g, const struct oc_signals *s, u64 what, struct oc_decision *d)
{
	if (what == OC_EVENT_PERSISTENT)
		oc_collapse(&g->window, s);
	if (what == OC_EVENT_PERSISTENT || what == OC_EVENT_RESTART) {
		g->now = OC_NONE;
		g->before = OC_NONE;
	}
	oc_decide(&g->window, s, d);
}

OC_ALGORITHM(struct gradient, start, feedback, event)
