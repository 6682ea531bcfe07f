/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * TCP Vegas (L. Brakmo and L. Peterson, IEEE JSAC 13(8), 1995): keeps a few packets queued at the bottleneck, by the round
 * trip alone. The built-in "vegas" as a program; what it settles beyond the paper is told there.
 */
#include "opencc_window.h"

OC_PROGRAM("vegas-c", "TCP Vegas (Brakmo and Peterson, 1995) as a program; decides as vegas does", OC_NEEDS_NOTHING)
OC_STATES("slow_start,avoidance,slow_start:hold")
OC_INITIAL_WINDOW
OC_COUNT(alpha, "packets", 1, 1000, 2, "fewer of the flow's packets in the queue let the window grow")
OC_COUNT(beta, "packets", 1, 1000, 4, "more of the flow's packets in the queue let the window shrink; at least alpha")
OC_COUNT(gamma, "packets", 1, 1000, 1, "more of the flow's packets in the queue end slow start")

/* Pacing gains in thousandths: a window that doubles evenly over a round trip (ln 2 / (1 - 1/2)), and one that stands. */
#define DOUBLING 1386
#define EVEN 1000
/* Delay that trains and hosts make by themselves. */
#define TRAIN_TIME OC_MS
/* Samples that a round needs to be judged; and the latest ones, by whose least slow start is. */
#define MIN_SAMPLES 3
#define RECENT 4

struct vegas {
	struct oc_window window;
	u64 base;      /* BaseRTT: the least round trip of all; OC_NONE when not known */
	u64 round_min; /* the least since the last round that was judged */
	u64 recent[RECENT];
	u64 last;      /* when the last feedback came; OC_NONE after a pause */
	u64 gap;       /* the longest time between two of late */
	u32 samples;   /* in round_min */
	u32 growing;   /* slow start grows in this round, or holds for a valid comparison (section III.C) */
};

OC_INLINE void decide(const struct vegas *v, const struct oc_signals *s, struct oc_decision *d)
{
	int slow = oc_in_slow_start(&v->window);
	oc_spread(&v->window, s, slow && v->growing ? DOUBLING : EVEN, v->gap, d);
	d->state = !slow ? 1 : v->growing ? 0 : 2;
}

OC_INLINE void forget_base(struct vegas *v)
{
	v->base = OC_NONE;
	v->round_min = OC_NONE;
	v->samples = 0;
	for (int i = 0; i < RECENT; i++)
		v->recent[i] = 0;
}

OC_INLINE void start(struct vegas *v, const struct oc_signals *s, struct oc_decision *d)
{
	oc_window_start(&v->window, s, OC_PARAM(initial_window));
	forget_base(v);
	v->last = OC_NONE;
	v->gap = 0;
	v->growing = 0;
	decide(v, s, d);
}

OC_INLINE void take_gap(struct vegas *v, const struct oc_signals *s)
{
	if (!s->acked)
		return;
	if (v->last != OC_NONE) {
		u64 gap = oc_min(oc_sub(s->now, v->last), oc_max(s->srtt, OC_MS) / 2);
		v->gap = oc_max(gap, v->gap - v->gap / 16);
	}
	v->last = s->now;
}

OC_INLINE void take_sample(struct vegas *v, const struct oc_signals *s)
{
	if (!s->rtt)
		return;
	v->base = oc_min(v->base, s->rtt);
	v->round_min = oc_min(v->round_min, s->rtt);
	v->samples = v->samples < MIN_SAMPLES ? v->samples + 1 : MIN_SAMPLES;
	for (int i = RECENT - 1; i > 0; i--)
		v->recent[i] = v->recent[i - 1];
	v->recent[0] = s->rtt;
}

/* Diff of the paper, in bytes: of those in flight, what waits when the round trip is rtt; below TRAIN_TIME nothing does. */
OC_INLINE u64 queued(u64 bytes, u64 base, u64 rtt)
{
	u64 counted = oc_sub(rtt, TRAIN_TIME);
	return counted > base ? oc_mul_div(bytes, counted - base, counted) : 0;
}

/* Congestion avoidance, once a round trip (section III.B). */
OC_INLINE void on_round(struct vegas *v, const struct oc_signals *s)
{
	struct oc_window *w = &v->window;
	u64 alpha = OC_PARAM(alpha), beta = oc_max(OC_PARAM(beta), alpha), diff;
	if (v->base == OC_NONE || v->samples < MIN_SAMPLES)
		return;
	diff = queued(w->cwnd, v->base, v->round_min);
	v->round_min = OC_NONE;
	v->samples = 0;
	if (diff > oc_mul(beta, s->packet)) {
		w->cwnd = oc_max(oc_sub(w->cwnd, s->packet), oc_least(s));
		w->ssthresh = oc_min(w->ssthresh, w->cwnd);
	} else if (diff < oc_mul(alpha, s->packet) && oc_is_used(w, s)) {
		w->cwnd = oc_add(w->cwnd, s->packet);
	}
}

/* Slow start (section III.C): doubles every other round trip, until Diff exceeds gamma. */
OC_INLINE void slow_start(struct vegas *v, const struct oc_signals *s)
{
	struct oc_window *w = &v->window;
	if (v->base != OC_NONE) {
		u64 rtt = oc_min(oc_min(v->recent[0], v->recent[1]), oc_min(v->recent[2], v->recent[3]));
		/* The window that the sampled packet was part of. */
		u64 sent = s->sample ? oc_min(s->sample_inflight, w->cwnd) : w->cwnd;
		u64 diff = queued(sent, v->base, rtt);
		if (diff > oc_mul(OC_PARAM(gamma), s->packet)) {
			w->cwnd = oc_max(oc_add(sent - diff, s->packet), oc_least(s));
			w->ssthresh = w->cwnd;
			return;
		}
	}
	if (v->growing && oc_is_used(w, s))
		w->cwnd = oc_add(w->cwnd, s->acked);
}

OC_INLINE void feedback(struct vegas *v, const struct oc_signals *s, struct oc_decision *d)
{
	struct oc_window *w = &v->window;
	take_gap(v, s);
	take_sample(v, s);
	/* A loss takes a quarter off the window, once for each window sent. */
	if (oc_is_new_episode(w, s))
		oc_reduce(w, s, 3, 4);
	if (s->acked && !oc_in_recovery(w, s->newest_acked_sent)) {
		if (oc_in_slow_start(w)) {
			v->growing ^= (u32)s->round_start;
			slow_start(v, s);
		} else if (s->round_start) {
			on_round(v, s);
		}
	}
	decide(v, s, d);
}

OC_INLINE void event(struct vegas *v, const struct oc_signals *s, u64 what, struct oc_decision *d)
{
	if (what == OC_EVENT_PERSISTENT) {
		oc_collapse(&v->window, s);
		v->growing = 0;
		forget_base(v);
	} else if (what == OC_EVENT_RESTART) {
		v->last = OC_NONE;
		forget_base(v);
	}
	decide(v, s, d);
}

OC_ALGORITHM(struct vegas, start, feedback, event)
