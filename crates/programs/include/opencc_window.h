/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * opencc_window.h: what window-based programs share: the window, recovery periods, the window as a rate. The arithmetic is
 * that of Longhaul's built-in algorithms (crates/cc/src/algorithms/window.rs), step by step.
 */
#ifndef OPENCC_WINDOW_H
#define OPENCC_WINDOW_H

#include "opencc.h"

/* With fewer packets in flight a lost one is only noticed by time-out. */
#define OC_MIN_PACKETS 2ull
/* Pacing gains in thousandths: so that pacing does not hold the window down (RFC 9002, section 7.7), and while it doubles. */
#define OC_PACING 1250ull
#define OC_SLOW_START_PACING 2000ull
/* Most halvings of the rate while time-outs repeat. */
#define OC_MAX_BACKOFF 10ull

/* The parameter for the initial window (RFC 9002, section 7.2 recommends ten packets). */
#define OC_INITIAL_WINDOW OC_COUNT(initial_window, "packets", 2, 10000, 10, "what may be in flight at the start")

struct oc_window {
	u64 cwnd;     /* bytes */
	u64 ssthresh; /* below it, slow start */
	u64 recovery; /* when the last reduction was made; OC_NONE when there was none */
	u64 earned;   /* bytes acknowledged in congestion avoidance that have not yet earned a packet */
};

OC_INLINE u64 oc_least(const struct oc_signals *s) { return oc_mul(s->packet, OC_MIN_PACKETS); }

OC_INLINE void oc_window_start(struct oc_window *w, const struct oc_signals *s, u64 packets)
{
	u64 initial = oc_mul(packets, s->packet), known = 0;
	/* A known rate is trusted for the first window, and slow start ends there (RFC 9959). */
	if (s->known_rate && s->handshake_rtt)
		known = oc_bytes_in(s->known_rate, s->handshake_rtt);
	w->cwnd = oc_max(known, initial);
	w->ssthresh = known > initial ? known : OC_NONE;
	w->recovery = OC_NONE;
	w->earned = 0;
}

OC_INLINE int oc_in_slow_start(const struct oc_window *w) { return w->cwnd < w->ssthresh; }

/* Whether a packet sent then belongs to the episode that the last reduction answered (RFC 9002, section 7.3.2). */
OC_INLINE int oc_in_recovery(const struct oc_window *w, u64 sent)
{
	return w->recovery != OC_NONE && sent != OC_NONE && sent <= w->recovery;
}

/* A loss, or a mark, of a packet sent after the last reduction (RFC 9002, sections 7.1 and 7.3.2). */
OC_INLINE int oc_is_new_loss(const struct oc_window *w, const struct oc_signals *s)
{
	return s->lost && !oc_in_recovery(w, s->latest_lost_sent);
}
OC_INLINE int oc_is_new_mark(const struct oc_window *w, const struct oc_signals *s)
{
	return s->ce_packets && !oc_in_recovery(w, s->newest_acked_sent);
}
OC_INLINE int oc_is_new_episode(const struct oc_window *w, const struct oc_signals *s)
{
	return oc_is_new_loss(w, s) || oc_is_new_mark(w, s);
}

/* Reduces the window to so many bytes and begins a recovery period. */
OC_INLINE void oc_reduce_to(struct oc_window *w, const struct oc_signals *s, u64 bytes)
{
	w->ssthresh = oc_max(bytes, oc_least(s));
	w->cwnd = w->ssthresh;
	w->earned = 0;
	w->recovery = s->now;
}
/* The same to num / den of itself. */
OC_INLINE void oc_reduce(struct oc_window *w, const struct oc_signals *s, u64 num, u64 den)
{
	oc_reduce_to(w, s, oc_mul_div(w->cwnd, num, den));
}

/*
 * Whether the window was in use, so that it may grow (RFC 9002, section 7.8). Between feedbacks part of it drains, and slow
 * start doubles it under a pacer that is just twice as fast.
 */
OC_INLINE int oc_is_used(const struct oc_window *w, const struct oc_signals *s)
{
	u64 slack = oc_in_slow_start(w) ? w->cwnd / 2 : w->cwnd / 4;
	return !s->app_limited && oc_add(s->prior_inflight, slack) >= w->cwnd;
}

/*
 * Reno's growth (RFC 9002, sections 7.3.1 and 7.3.3): what is acknowledged in slow start, later a packet for each window;
 * nothing in a recovery period or where the window is not used.
 */
OC_INLINE void oc_grow_as_reno(struct oc_window *w, const struct oc_signals *s)
{
	u64 windows;
	if (oc_in_recovery(w, s->newest_acked_sent) || !oc_is_used(w, s))
		return;
	if (oc_in_slow_start(w)) {
		w->cwnd = oc_add(w->cwnd, s->acked);
		return;
	}
	w->earned = oc_add(w->earned, s->acked);
	windows = oc_div(w->earned, w->cwnd);
	w->earned -= windows * w->cwnd;
	w->cwnd = oc_add(w->cwnd, oc_mul(windows, s->packet));
}

/* Nothing arrives any more (RFC 9002, section 7.6.2). */
OC_INLINE void oc_collapse(struct oc_window *w, const struct oc_signals *s)
{
	w->cwnd = oc_least(s);
	w->earned = 0;
	w->recovery = OC_NONE;
}

/* The window spread over a round trip at gain thousandths; halved with each time-out after the first. */
OC_INLINE u64 oc_window_rate(const struct oc_window *w, const struct oc_signals *s, u64 gain, u64 rtt)
{
	u64 backoff = oc_min(oc_sub(s->timeouts, 1), OC_MAX_BACKOFF);
	return oc_clamp(oc_mul_div(oc_rate(w->cwnd, rtt), gain, 1000ull << backoff), OC_MIN_RATE, OC_MAX_RATE);
}

OC_INLINE void oc_decide(const struct oc_window *w, const struct oc_signals *s, struct oc_decision *d)
{
	d->rate = oc_window_rate(w, s, oc_in_slow_start(w) ? OC_SLOW_START_PACING : OC_PACING, s->srtt);
	d->bound = oc_max(w->cwnd, oc_least(s));
	d->quantum = 0;
	d->ssthresh = w->ssthresh;
	d->state = !oc_in_slow_start(w);
}

/*
 * The window spread evenly over a round trip. The bound leaves room for what is delivered between two feedbacks (gap), so
 * that the rate governs and not the bound: what reads queues of a few packets would otherwise read the bursts that each
 * feedback lets go.
 */
OC_INLINE void oc_spread(const struct oc_window *w, const struct oc_signals *s, u64 gain, u64 gap, struct oc_decision *d)
{
	d->rate = oc_window_rate(w, s, gain, oc_max(s->srtt, OC_US));
	d->bound = oc_max(oc_add(w->cwnd, oc_bytes_in(d->rate, gap)), oc_least(s));
	d->quantum = 0;
	d->ssthresh = w->ssthresh;
	d->state = !oc_in_slow_start(w);
}

#endif /* OPENCC_WINDOW_H */
