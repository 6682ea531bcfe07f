/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* NewReno as QUIC has it (RFC 9002, section 7), its window turned into a rate: the built-in "reno" as a program. */
#include "opencc_window.h"

OC_PROGRAM("reno-c", "NewReno (RFC 9002) as a program; decides as reno does", OC_NEEDS_NOTHING)
OC_STATES("slow_start,avoidance")
OC_INITIAL_WINDOW

struct reno {
	struct oc_window window;
};

OC_INLINE void start(struct reno *r, const struct oc_signals *s, struct oc_decision *d)
{
	oc_window_start(&r->window, s, OC_PARAM(initial_window));
	oc_decide(&r->window, s, d);
}

OC_INLINE void feedback(struct reno *r, const struct oc_signals *s, struct oc_decision *d)
{
	if (oc_is_new_episode(&r->window, s))
		oc_reduce(&r->window, s, 1, 2);
	oc_grow_as_reno(&r->window, s);
	oc_decide(&r->window, s, d);
}

OC_INLINE void event(struct reno *r, const struct oc_signals *s, u64 what, struct oc_decision *d)
{
	if (what == OC_EVENT_PERSISTENT)
		oc_collapse(&r->window, s);
	oc_decide(&r->window, s, d);
}

OC_ALGORITHM(struct reno, start, feedback, event)
