/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* NewReno as QUIC has it (RFC 9002, section 7), its window turned into a rate: the built-in "reno" as a program. */
#include "opencc_window.h"

OC_PROGRAM("reno-c", "NewReno (RFC 9002) as a program; decides as reno does", OC_NEEDS_NOTHING)
OC_STATES("slow_start,avoidance")
OC_INITIAL_WINDOW

struct reno {
	struct oc_window window;
	u64 acked; /* bytes acknowledged in congestion avoidance that have not yet earned a packet */
};

OC_INLINE void decide(const struct reno *r, const struct oc_signals *s, struct oc_decision *d)
{
	oc_decide(&r->window, s, d);
	d->state = !oc_in_slow_start(&r->window);
}

OC_INLINE void start(struct reno *r, const struct oc_signals *s, struct oc_decision *d)
{
	oc_window_start(&r->window, s, OC_PARAM(initial_window));
	r->acked = 0;
	decide(r, s, d);
}

/* Growth (RFC 9002, sections 7.3.1 and 7.3.3). */
OC_INLINE void grow(struct reno *r, const struct oc_signals *s)
{
	struct oc_window *w = &r->window;
	u64 windows;
	if (oc_in_recovery(w, s->newest_acked_sent) || !oc_is_used(w, s))
		return;
	if (oc_in_slow_start(w)) {
		w->cwnd = oc_add(w->cwnd, s->acked);
		return;
	}
	r->acked = oc_add(r->acked, s->acked);
	windows = oc_div(r->acked, w->cwnd);
	r->acked -= windows * w->cwnd;
	w->cwnd = oc_add(w->cwnd, oc_mul(windows, s->packet));
}

OC_INLINE void feedback(struct reno *r, const struct oc_signals *s, struct oc_decision *d)
{
	if (oc_is_new_episode(&r->window, s)) {
		oc_reduce(&r->window, s, 1, 2);
		r->acked = 0;
	}
	grow(r, s);
	decide(r, s, d);
}

OC_INLINE void event(struct reno *r, const struct oc_signals *s, u64 what, struct oc_decision *d)
{
	if (what == OC_EVENT_PERSISTENT) {
		oc_collapse(&r->window, s);
		r->acked = 0;
	}
	decide(r, s, d);
}

OC_ALGORITHM(struct reno, start, feedback, event)
