/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * CUBIC (RFC 9438) with HyStart++ (RFC 9406): the built-in "cubic" as a program. That one reckons in floating point, this one
 * in whole bytes and nanoseconds: its windows agree with the other's to a thousandth over modelled bottlenecks (crates/programs/tests/twins.rs). Two
 * things differ, for want of room in the state: a reduction that is undone (section 4.9) begins the curve anew at the window
 * restored, where the built-in one goes on with the old curve; and a change of the packet size leaves K as it was.
 */
#include "opencc_window.h"

OC_PROGRAM("cubic-c", "CUBIC (RFC 9438) with HyStart++ as a program; decides as cubic does, but for rounding", OC_NEEDS_NOTHING)
OC_STATES("slow_start,avoidance,conservative_slow_start")
OC_INITIAL_WINDOW
OC_SWITCH(fast_convergence, 1, "give way to new flows by aiming below the last maximum (RFC 9438, section 4.7)")
OC_SWITCH(hystart, 1, "leave slow start when the round trip rises (RFC 9406)")

/* Units of K in a second: fine enough for its cube root, and coarse enough for its cube. */
#define K_UNITS 10000ull
#define K_NS (OC_SECOND / K_UNITS)
/* Parts of a byte in which growth is reckoned. */
#define PARTS 1024ull
/* HyStart++ (RFC 9406, section 4.3); four samples, as feedback comes eight times a round trip. */
#define MIN_RISE (4 * OC_MS)
#define MAX_RISE (16 * OC_MS)
#define SAMPLES 4
#define CSS_ROUNDS 5

struct cubic {
	struct oc_window window; /* earned: growth that is not yet a byte, in PARTS */
	u64 w_max;               /* bytes */
	u64 prior;               /* the window before the last reduction */
	u64 unused;              /* since when the window has not been used: no time of the curve; OC_NONE when it is */
	u64 undo_lost;           /* bytes lost in the episode that have not turned out to be there */
	u64 undo_ssthresh;
	union {
		struct {
			u64 last_min; /* least round trip of the last round and of this one; OC_NONE before a sample */
			u64 current_min;
			u64 baseline; /* that at the beginning of conservative slow start */
		} slow;
		struct {
			u64 epoch; /* when this epoch of congestion avoidance began; OC_NONE when it has not */
			u64 k;     /* ns */
			u64 w_est; /* Reno's window, in PARTS */
		} curve;
	} u;
	u8 samples;
	u8 rounds;  /* of conservative slow start */
	u8 css;     /* in conservative slow start */
	u8 curved;  /* u is the curve */
	u8 undoable;
};

OC_INLINE void decide(const struct cubic *c, const struct oc_signals *s, struct oc_decision *d)
{
	oc_decide(&c->window, s, d);
	d->state = !oc_in_slow_start(&c->window) ? 1 : c->css ? 2 : 0;
}

OC_INLINE void slow_start_anew(struct cubic *c)
{
	c->u.slow.last_min = OC_NONE;
	c->u.slow.current_min = OC_NONE;
	c->u.slow.baseline = OC_NONE;
	c->samples = 0;
	c->rounds = 0;
	c->css = 0;
	c->curved = 0;
	c->w_max = 0;
	c->prior = 0;
	c->undoable = 0;
}

OC_INLINE void start(struct cubic *c, const struct oc_signals *s, struct oc_decision *d)
{
	oc_window_start(&c->window, s, OC_PARAM(initial_window));
	slow_start_anew(c);
	c->unused = OC_NONE;
	decide(c, s, d);
}

/* Takes in a feedback; whether slow start is over. */
OC_INLINE int hystart(struct cubic *c, const struct oc_signals *s)
{
	if (s->round_start) {
		c->u.slow.last_min = c->u.slow.current_min;
		c->u.slow.current_min = OC_NONE;
		c->samples = 0;
		if (c->css && ++c->rounds >= CSS_ROUNDS)
			return 1;
	}
	if (!s->rtt)
		return 0;
	c->u.slow.current_min = oc_min(c->u.slow.current_min, s->rtt);
	c->samples = c->samples < SAMPLES ? c->samples + 1 : SAMPLES;
	if (c->samples < SAMPLES || c->u.slow.last_min == OC_NONE)
		return 0;
	if (!c->css) {
		u64 rise = oc_clamp(c->u.slow.last_min / 8, MIN_RISE, MAX_RISE);
		if (c->u.slow.current_min >= oc_add(c->u.slow.last_min, rise)) {
			c->css = 1;
			c->rounds = 0;
			c->u.slow.baseline = c->u.slow.current_min;
		}
	} else if (c->u.slow.current_min < c->u.slow.baseline) {
		/* The rise was not lasting. */
		c->css = 0;
	}
	return 0;
}

/* The curve begins: no epoch yet. */
OC_INLINE void begin_curve(struct cubic *c)
{
	c->u.curve.epoch = OC_NONE;
	c->u.curve.k = 0;
	c->u.curve.w_est = 0;
	c->curved = 1;
}

OC_INLINE void on_congestion(struct cubic *c, const struct oc_signals *s)
{
	struct oc_window *w = &c->window;
	/* Marks are never spurious, so there is nothing to undo once one has been seen. */
	c->undoable = s->ce_packets == 0;
	c->undo_ssthresh = w->ssthresh;
	c->undo_lost = 0;
	c->prior = w->cwnd;
	/* Section 4.7: (1 + beta) / 2 of it. */
	c->w_max = OC_PARAM(fast_convergence) && w->cwnd < c->w_max ? oc_mul_div(w->cwnd, 17, 20) : w->cwnd;
	begin_curve(c);
	oc_reduce(w, s, 7, 10);
}

/* Section 4.9. */
OC_INLINE void check_spurious(struct cubic *c, const struct oc_signals *s)
{
	struct oc_window *w = &c->window;
	if (!c->undoable)
		return;
	c->undo_lost = oc_sub(oc_add(c->undo_lost, s->lost), s->spurious);
	if (!s->spurious || c->undo_lost)
		return;
	w->cwnd = oc_max(w->cwnd, c->prior);
	w->ssthresh = oc_max(w->ssthresh, c->undo_ssthresh);
	w->recovery = OC_NONE;
	slow_start_anew(c);
}

/* W_cubic(t) (equation 1): 0.4 packets per second cubed. */
OC_INLINE u64 curve_at(const struct cubic *c, const struct oc_signals *s, u64 t)
{
	u64 k = c->u.curve.k, away = t > k ? t - k : k - t;
	u64 cubed = oc_mul_div(oc_mul_div(away, away, OC_SECOND), away, OC_SECOND);
	u64 bytes = oc_mul_div(cubed, 4 * s->packet, 10 * OC_SECOND);
	return t > k ? oc_add(c->w_max, bytes) : oc_sub(c->w_max, bytes);
}

OC_INLINE void begin_epoch(struct cubic *c, const struct oc_signals *s)
{
	u64 cwnd = c->window.cwnd;
	c->u.curve.epoch = s->now;
	c->u.curve.w_est = oc_mul(cwnd, PARTS);
	c->u.curve.k = 0;
	if (cwnd < c->w_max)
		/* Equation 2: the cube root of (w_max - cwnd) / C, in packets; C is 4/10. */
		c->u.curve.k = K_NS * oc_cbrt(oc_mul_div(c->w_max - cwnd, 10 * K_UNITS * K_UNITS * K_UNITS, 4 * s->packet));
	else
		c->w_max = cwnd;
}

/* Lets the window grow by so many PARTS of a byte. */
OC_INLINE void grow(struct oc_window *w, u64 parts)
{
	w->earned = oc_add(w->earned, parts);
	w->cwnd = oc_add(w->cwnd, w->earned / PARTS);
	w->earned %= PARTS;
}

/* Sections 4.3 to 4.5. */
OC_INLINE void avoid(struct cubic *c, const struct oc_signals *s)
{
	struct oc_window *w = &c->window;
	u64 t, cwnd = w->cwnd, est, target;
	if (c->u.curve.epoch == OC_NONE)
		begin_epoch(c, s);
	t = oc_sub(s->now, c->u.curve.epoch);
	/* Reno's growth: a packet a window once the window is back where it was, before that 3 (1 - beta) / (1 + beta) of one. */
	est = oc_mul_div(oc_mul(s->acked, PARTS), s->packet, cwnd);
	if (c->u.curve.w_est < oc_mul(c->prior, PARTS))
		est = oc_mul_div(est, 9, 17);
	c->u.curve.w_est = oc_add(c->u.curve.w_est, est);
	if (curve_at(c, s, t) < c->u.curve.w_est / PARTS) {
		u64 now = oc_add(oc_mul(cwnd, PARTS), w->earned);
		grow(w, oc_sub(c->u.curve.w_est, now));
		return;
	}
	target = oc_clamp(curve_at(c, s, oc_add(t, s->srtt)), cwnd, oc_add(cwnd, cwnd / 2));
	est = oc_mul(target - cwnd, PARTS);
	grow(w, oc_min(oc_mul_div(est, s->acked, cwnd), est));
}

OC_INLINE void on_acked(struct cubic *c, const struct oc_signals *s)
{
	struct oc_window *w = &c->window;
	if (!s->acked || oc_in_recovery(w, s->newest_acked_sent))
		return;
	if (!oc_is_used(w, s)) {
		if (c->unused == OC_NONE)
			c->unused = s->now;
		return;
	}
	if (c->unused != OC_NONE && c->curved && c->u.curve.epoch != OC_NONE)
		c->u.curve.epoch = oc_add(c->u.curve.epoch, oc_sub(s->now, c->unused));
	c->unused = OC_NONE;
	if (oc_in_slow_start(w)) {
		w->cwnd = oc_add(w->cwnd, c->css && OC_PARAM(hystart) ? s->acked / 4 : s->acked);
		return;
	}
	if (!c->curved)
		begin_curve(c);
	avoid(c, s);
}

OC_INLINE void feedback(struct cubic *c, const struct oc_signals *s, struct oc_decision *d)
{
	struct oc_window *w = &c->window;
	if (OC_PARAM(hystart) && oc_in_slow_start(w) && !c->curved && hystart(c, s))
		w->ssthresh = w->cwnd;
	if (oc_is_new_episode(w, s))
		on_congestion(c, s);
	check_spurious(c, s);
	on_acked(c, s);
	decide(c, s, d);
}

OC_INLINE void event(struct cubic *c, const struct oc_signals *s, u64 what, struct oc_decision *d)
{
	if (what == OC_EVENT_PERSISTENT) {
		oc_collapse(&c->window, s);
		slow_start_anew(c);
	}
	/* Time spent idle is no time of the curve (section 5.8). */
	if (what == OC_EVENT_RESTART && c->unused == OC_NONE)
		c->unused = oc_min(s->idle_since, s->now);
	decide(c, s, d);
}

OC_ALGORITHM(struct cubic, start, feedback, event)
