/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * DCTCP (RFC 8257): the window shrinks by as much as the share of marked packets calls for. The built-in "dctcp" as a
 * program; shares are reckoned in 2^20ths as there.
 */
#include "opencc_window.h"

OC_PROGRAM("dctcp-c", "DCTCP (RFC 8257) as a program; decides as dctcp does", OC_NEEDS_STEP)
OC_STATES("slow_start,avoidance")
OC_INITIAL_WINDOW
OC_SHARE(g, 100, 100000, 6250, "weight of a new round trip in the average share of marked bytes (RFC 8257, section 4.2)")
OC_SHARE(initial_alpha, 0, 100000, 100000, "share of marked bytes assumed at the start")

#define ONE (1ull << 20)
#define PERCENT_100 100000ull

struct dctcp {
	struct oc_window window;
	u64 alpha; /* DCTCP.Alpha in parts per ONE */
	u64 acked; /* in this observation window */
	u64 marked;
};

OC_INLINE void start(struct dctcp *t, const struct oc_signals *s, struct oc_decision *d)
{
	oc_window_start(&t->window, s, OC_PARAM(initial_window));
	t->alpha = OC_PARAM(initial_alpha) * ONE / PERCENT_100;
	oc_decide(&t->window, s, d);
}

/* Section 3.3: counts (steps 2 and 3); at the window's end (4) takes the share (5) into the average (6) and begins anew (8). */
OC_INLINE void observe(struct dctcp *t, const struct oc_signals *s)
{
	t->acked = oc_add(t->acked, s->acked);
	t->marked = oc_add(t->marked, oc_min(s->ce_acked, s->acked));
	if (!s->round_start)
		return;
	if (t->acked) {
		u64 g = OC_PARAM(g), share = oc_mul_div(t->marked, ONE, t->acked);
		t->alpha = (t->alpha * (PERCENT_100 - g) + share * g) / PERCENT_100;
	}
	t->acked = 0;
	t->marked = 0;
}

OC_INLINE void feedback(struct dctcp *t, const struct oc_signals *s, struct oc_decision *d)
{
	struct oc_window *w = &t->window;
	observe(t, s);
	if (oc_is_new_loss(w, s))
		/* Section 3.5: losses are answered as conventional TCP does. */
		oc_reduce(w, s, 1, 2);
	else if (oc_is_new_mark(w, s))
		/* Step 9: cwnd = cwnd * (1 - DCTCP.Alpha / 2), once a window. */
		oc_reduce(w, s, ONE - t->alpha / 2, ONE);
	oc_grow_as_reno(w, s);
	oc_decide(w, s, d);
}

OC_INLINE void event(struct dctcp *t, const struct oc_signals *s, u64 what, struct oc_decision *d)
{
	if (what == OC_EVENT_PERSISTENT)
		oc_collapse(&t->window, s);
	oc_decide(&t->window, s, d);
}

OC_ALGORITHM(struct dctcp, start, feedback, event)
