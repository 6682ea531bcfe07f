/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * opencc.h: congestion-control algorithms written once, for Longhaul (WebAssembly) and for the kernel's TCP (eBPF).
 *
 * A program is one C file. It says what it is called and which parameters it has, keeps a small state, and turns signals
 * into a decision:
 *
 *     #include "opencc.h"
 *
 *     OC_PROGRAM("half", "sends at half of what was delivered", OC_NEEDS_NOTHING)
 *     OC_COUNT(initial_window, "packets", 2, 10000, 10, "what may be in flight at the start")
 *
 *     struct half { u64 window; };
 *
 *     OC_INLINE void start(struct half *h, const struct oc_signals *s, struct oc_decision *d) { ... }
 *     OC_INLINE void feedback(struct half *h, const struct oc_signals *s, struct oc_decision *d) { ... }
 *     OC_INLINE void event(struct half *h, const struct oc_signals *s, u64 what, struct oc_decision *d) { ... }
 *     OC_ALGORITHM(struct half, start, feedback, event)
 *
 * The C is restricted so that it runs in both places:
 *   - whole numbers only: no float, no double; divide by oc_div, oc_mul_div and oc_sdiv, which cannot trap;
 *   - no globals that change, no recursion, no loops without a constant bound; functions are OC_INLINE;
 *   - state of at most OC_STATE_BYTES: what the kernel keeps for a TCP connection's congestion control;
 *   - no system headers and no library: this file is all there is.
 * Every callback writes the whole decision. A program that traps, runs too long, decides nonsense or does not answer is
 * replaced by another algorithm for the rest of the flow.
 */
#ifndef OPENCC_H
#define OPENCC_H

/* Version of this interface. A program built against another one is refused, never guessed at. */
#define OC_ABI 1
#define OC_ABI_TEXT "1"

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define OC_INLINE static inline __attribute__((always_inline, unused))

/* A time that is not known; no bound. */
#define OC_NONE (~0ull)
/* Bytes of private state: 13 words of 64 bits (the kernel's ICSK_CA_PRIV_SIZE). */
#define OC_STATE_BYTES 104
/* Most parameters of a program, and most hops that telemetry names. */
#define OC_MAX_PARAMS 16
#define OC_MAX_HOPS 8

/* ---- what a program is told ------------------------------------------------------------------------------------- */

/* Times and spans are in nanoseconds, amounts in bytes on the wire, rates in bytes per second, flags 0 or 1. */
struct oc_signals {
	/* Always there. */
	u64 now;            /* when this is; the clock's epoch means nothing */
	u64 packet;         /* bytes of a full packet, headers included; at least 1 */
	u64 srtt;           /* smoothed round trip (RFC 6298); 333 ms before any is known; never 0 */
	u64 min_rtt;        /* lowest round trip of the path; 0 when not known */
	u64 timeouts;       /* probe time-outs in a row without feedback */
	u64 inflight;       /* in flight now */
	u64 prior_inflight; /* in flight before this feedback */
	u64 delivered;      /* delivered so far in all */
	u64 round;          /* round trips so far */
	u64 app_limited;    /* the application, not the decision, is the limit now */

	/* Feedback. */
	u64 acked;             /* newly acknowledged */
	u64 acked_packets;
	u64 lost;              /* newly found lost */
	u64 lost_packets;
	u64 spurious;          /* had been found lost, and arrived after all; not in acked */
	u64 latest_lost_sent;  /* when the last-sent of those lost here was sent; OC_NONE without a loss */
	u64 newest_acked_sent; /* when the newest acknowledged packet was sent; OC_NONE when none is */
	u64 rtt;               /* round trip of that packet; 0 when not measured */
	u64 queue_delay;       /* one-way delay above its lowest, from the receiver's clock; 0 when not known */
	u64 host_delay;        /* time that waited in the receiver's host; 0 when not known */
	s64 rtt_trend;         /* rise of the round trip with time, smoothed, in millionths; negative when it falls */
	s64 delay_trend;       /* the same of the one-way delay; 0 when not known (kernel TCP) */
	u64 ce_packets;        /* packets newly reported as marked Congestion Experienced */
	u64 ce_acked;          /* bytes in acked that were in such packets */
	u64 round_start;       /* the first packet sent after the last such mark is acknowledged: a round trip is over */

	/* Delivery-rate sample (draft-cheng-iccrg-delivery-rate-estimation); all 0 unless sample is 1. */
	u64 sample;                 /* there is one */
	u64 sample_rate;            /* delivered over the interval */
	u64 sample_interval;
	u64 sample_delivered;       /* delivered in the interval */
	u64 sample_prior_delivered; /* delivered in all when the sampled packet was sent */
	u64 sample_inflight;        /* in flight just after it was sent */
	u64 sample_lost;            /* lost between then and now */
	u64 sample_forgone;         /* permitted in the interval, but the host came too late to send it; 0 on kernel TCP */
	u64 sample_app_limited;     /* the application was the limit when it was sent */
	u64 dispersion;             /* rate at which trains arrive that were sent faster; 0 when not measured */

	/* The path: at the start. */
	u64 ecn;             /* marks are carried from end to end, as far as is known */
	u64 handshake_rtt;   /* round trip of the handshake; 0 when not known */
	u64 known_rate;      /* rate that was guaranteed or configured; 0 when none */
	u64 remembered_rate; /* what an earlier connection found here (RFC 9959); 0 when none */
	u64 remembered_rtt;

	/* Of one callback. */
	u64 idle_since;   /* OC_EVENT_RESTART: when the last packet before the pause was sent */
	u64 sent;         /* sent callback: bytes of the train that left */
	u64 sent_packets; /* and its packets */
	u64 hops;         /* how many oc_hop(i) there are: telemetry of the newest acknowledged packet; 0 on kernel TCP */
};

/* What one hop wrote into a packet as it left there (in-band telemetry). */
struct oc_hop {
	u64 id;    /* which hop */
	u64 at;    /* when, by the hop's clock */
	u64 queue; /* bytes that waited there */
	u64 sent;  /* bytes that left by this port so far; wraps */
	u64 rate;  /* what the port carries */
};

/* Rare events. After a change of the path the state is zeroed and the start callback runs again instead. */
#define OC_EVENT_TIMEOUT 1    /* no feedback for the probe time-out; timeouts says how many in a row */
#define OC_EVENT_PERSISTENT 2 /* nothing arrived for very long (RFC 9002, section 7.6): begin with the least */
#define OC_EVENT_RESTART 3    /* the flow sends again after having been idle since idle_since */
#define OC_EVENT_PACKET 4     /* the packet size changed; packet is the new one */

/* ---- what a program decides ------------------------------------------------------------------------------------- */

struct oc_decision {
	u64 rate;     /* pacing rate: OC_MIN_RATE to OC_MAX_RATE */
	u64 bound;    /* most bytes in flight (kernel TCP: snd_cwnd): two packets to OC_MAX_BOUND */
	u64 quantum;  /* most bytes that may leave back to back; 0: as much as suits the rate, which is never exceeded */
	u64 ssthresh; /* below it the flow is in slow start, OC_NONE: no such; kernel TCP grows its caches by it */
	u64 state;    /* what to show: an index into OC_STATES */
};

/* 24 kbit/s, so that a probe can always leave; an eighth of what 64 bits hold; a pebibyte. */
#define OC_MIN_RATE 3000ull
#define OC_MAX_RATE (OC_NONE / 8)
#define OC_MAX_BOUND (1ull << 50)

/* ---- arithmetic that neither traps nor overflows ---------------------------------------------------------------- */

#define OC_SECOND 1000000000ull
#define OC_MS 1000000ull
#define OC_US 1000ull

OC_INLINE u64 oc_min(u64 a, u64 b) { return a < b ? a : b; }
OC_INLINE u64 oc_max(u64 a, u64 b) { return a > b ? a : b; }
OC_INLINE u64 oc_clamp(u64 x, u64 low, u64 high) { return oc_max(low, oc_min(x, high)); }
/* Sum and difference that stay within 0 to OC_NONE. */
OC_INLINE u64 oc_add(u64 a, u64 b) { return a + b < a ? OC_NONE : a + b; }
OC_INLINE u64 oc_sub(u64 a, u64 b) { return a > b ? a - b : 0; }
/* Quotient, rounded down; OC_NONE when the divisor is 0. */
OC_INLINE u64 oc_div(u64 a, u64 b) { return b == 0 ? OC_NONE : a / b; }
/* The same of a signed dividend, rounded towards zero (BPF has no signed division). */
OC_INLINE s64 oc_sdiv(s64 a, u64 b)
{
	u64 q = oc_div(a < 0 ? 0 - (u64)a : (u64)a, b) & (OC_NONE >> 1);
	return a < 0 ? -(s64)q : (s64)q;
}

#ifndef OC_HELPER
/* How longer helpers that are seldom needed are compiled. */
#define OC_HELPER static __attribute__((noinline, unused))
#endif

/* Leading zero bits; 63 of 0. (Not the compiler's builtin: clang 14 fails on it for BPF.) */
OC_INLINE u64 oc_leading_zeros(u64 x)
{
	u64 n = 0;
	if (!(x >> 32)) { n += 32; x <<= 32; }
	if (!(x >> 48)) { n += 16; x <<= 16; }
	if (!(x >> 56)) { n += 8; x <<= 8; }
	if (!(x >> 60)) { n += 4; x <<= 4; }
	if (!(x >> 62)) { n += 2; x <<= 2; }
	return n + !(x >> 63);
}

/*
 * The high word times 2^64 and the low word, over c: Knuth's algorithm D with digits of 32 bits (The Art of Computer
 * Programming, volume 2, 4.3.1), for high < c. Each estimated digit is at most two too large.
 */
OC_HELPER u64 oc_div_wide(u64 high, u64 low, u64 c)
{
	u64 shift = oc_leading_zeros(c);
	u64 v = c << shift, v1 = v >> 32, v0 = v & 0xffffffffull;
	u64 top = shift == 0 ? high : high << shift | low >> (64 - shift);
	u64 rest = low << shift, u1 = rest >> 32, u0 = rest & 0xffffffffull;
	u64 q1, q0, r;
	if (v1 == 0)
		return OC_NONE;
	q1 = top / v1;
	r = top - q1 * v1;
	if (q1 >> 32 || q1 * v0 > (r << 32 | u1)) {
		q1 -= 1;
		r += v1;
		if (r >> 32 == 0 && (q1 >> 32 || q1 * v0 > (r << 32 | u1)))
			q1 -= 1;
	}
	top = (top << 32 | u1) - q1 * v;
	q0 = top / v1;
	r = top - q0 * v1;
	if (q0 >> 32 || q0 * v0 > (r << 32 | u0)) {
		q0 -= 1;
		r += v1;
		if (r >> 32 == 0 && (q0 >> 32 || q0 * v0 > (r << 32 | u0)))
			q0 -= 1;
	}
	return (q1 << 32) + q0;
}

/* a * b / c with the product in two words. */
OC_INLINE u64 oc_mul_div_wide(u64 a, u64 b, u64 c)
{
	u64 al = a & 0xffffffffull, ah = a >> 32, bl = b & 0xffffffffull, bh = b >> 32;
	u64 ll = al * bl, lh = al * bh, hl = ah * bl;
	u64 middle = (ll >> 32) + (lh & 0xffffffffull) + (hl & 0xffffffffull);
	u64 low = middle << 32 | (ll & 0xffffffffull);
	u64 high = ah * bh + (lh >> 32) + (hl >> 32) + (middle >> 32);
	if (high >= c)
		return OC_NONE;
	if (high == 0)
		return low / c;
	return oc_div_wide(high, low, c);
}

/*
 * Whether the product fits a word because both are below 2^32, as most are. In BPF that would be one more branch for the
 * verifier to follow, for an instruction or two.
 */
#if defined(__wasm__)
#define OC_NARROW(a, b) (!(((a) | (b)) >> 32))
#else
#define OC_NARROW(a, b) 0
#endif

/* a * b / c, rounded down, exact whatever the product; OC_NONE when it does not fit or c is 0. */
OC_INLINE u64 oc_mul_div(u64 a, u64 b, u64 c)
{
	if (OC_NARROW(a, b))
		return oc_div(a * b, c);
	return oc_mul_div_wide(a, b, c);
}
OC_INLINE u64 oc_mul(u64 a, u64 b) { return oc_mul_div(a, b, 1); }

/* The rate at which bytes take span; no limit when it is 0. And the bytes that pass in span at rate. */
OC_INLINE u64 oc_rate(u64 bytes, u64 span) { return oc_mul_div(bytes, OC_SECOND, span); }
OC_INLINE u64 oc_bytes_in(u64 rate, u64 span) { return oc_mul_div(rate, span, OC_SECOND); }

/* Cube root, rounded down: a bit of the root in each of 22 steps (Warren, Hacker's Delight, 11-2). */
OC_HELPER u64 oc_cbrt(u64 x)
{
	u64 root = 0;
	for (int shift = 63; shift >= 0; shift -= 3) {
		u64 step, less;
		root <<= 1;
		step = 3 * root * (root + 1) + 1;
		/* Whether x >> shift < step, both below 2^63, without a branch: BPF's verifier would follow both ways of each. */
		less = ((x >> shift) - step) >> 63;
		__asm__("" : "+r"(less));
		x -= (step << shift) & (less - 1);
		root += 1 - less;
	}
	return root;
}

/* ---- what a program says of itself ------------------------------------------------------------------------------ */

/* Signals without which it does not work: where the path does not carry them, another algorithm takes its place. */
#define OC_NEEDS_NOTHING "nothing"     /* answers marks as losses, or not at all */
#define OC_NEEDS_STEP "step"           /* steers by the share of marked packets (DCTCP): ECT(0) */
#define OC_NEEDS_L4S "l4s"             /* L4S (RFC 9331): ECT(1) */
#define OC_NEEDS_TELEMETRY "telemetry" /* hops; not on kernel TCP */

/*
 * Records of text in a section of their own, read by whoever loads the program: fields end with a tab, records with a
 * new line. In WebAssembly the custom section "opencc", in BPF's object the section "opencc".
 */
#if defined(__wasm__)
#define OC_SECTION ".section .custom_section.opencc,\"\",@\n"
#define OC_SECTION_END ".section .text,\"\",@\n"
#else
#define OC_SECTION ".pushsection opencc,\"\",@progbits\n"
#define OC_SECTION_END ".popsection\n"
#endif
#define OC_RECORD(fields) __asm__(OC_SECTION fields ".ascii \"\\n\"\n" OC_SECTION_END);
#define OC_FIELD(text) ".ascii " text "\n.ascii \"\\t\"\n"
#define OC_WORD(word) OC_FIELD("\"" #word "\"")

/*
 * Name (lower-case letters, digits, - and _; 15 characters at most, which is what TCP_CONGESTION takes), what it is in a
 * line, and what it needs. Texts are plain string literals.
 */
#define OC_PROGRAM(called, line, wants) \
	_Static_assert(sizeof(called) <= 16, "the name has at most 15 characters"); \
	OC_RECORD(OC_WORD(abi) OC_FIELD("\"" OC_ABI_TEXT "\"")) \
	OC_RECORD(OC_WORD(name) OC_FIELD(#called)) \
	OC_RECORD(OC_WORD(summary) OC_FIELD(#line)) \
	OC_RECORD(OC_WORD(needs) OC_FIELD("\"" wants "\"")) \
	OC_TARGET_PROGRAM(called, wants)

/* Names of the states that oc_decision.state counts, separated by commas: "slow_start,avoidance". */
#define OC_STATES(list) OC_RECORD(OC_WORD(states) OC_FIELD(#list))

/*
 * Parameters, OC_MAX_PARAMS at most; OC_PARAM(name) is the value. One line feeds reading, help and documentation. Numbers
 * are decimal literals. Rates (bytes per second) have no default: 0 stands for "auto". Shares are in parts per 100,000.
 */
#define OC_SWITCH(name, def, help) OC_DEFINE(switch, name, "", 0, 1, def, help)
#define OC_COUNT(name, unit, min, max, def, help) OC_DEFINE(count, name, unit, min, max, def, help)
#define OC_SHARE(name, min, max, def, help) OC_DEFINE(share, name, "", min, max, def, help)
#define OC_SPAN(name, min, max, def, help) OC_DEFINE(span, name, "", min, max, def, help)
#define OC_RATE(name, min, max, help) OC_DEFINE_ANY(rate, name, "", min, max, 0, help)
#define OC_DEFINE(kind, name, unit, min, max, def, help) \
	_Static_assert((min) <= (def) && (def) <= (max), "the default of " #name " is out of its range"); \
	OC_DEFINE_ANY(kind, name, unit, min, max, def, help)
#define OC_DEFINE_ANY(kind, name, unit, min, max, def, help) \
	OC_RECORD(OC_WORD(param) OC_WORD(kind) OC_WORD(name) OC_FIELD(#unit) OC_WORD(min) OC_WORD(max) OC_WORD(def) \
		  OC_FIELD(#help)) \
	OC_TARGET_PARAM(name, def)

/* ---- targets ---------------------------------------------------------------------------------------------------- */
/*
 * A target gives OC_TARGET_PROGRAM(name, needs), OC_TARGET_PARAM(name, def), OC_PARAM(name), OC_ALGORITHM(type, start, feedback,
 * event), OC_ALGORITHM_SENT(type, start, feedback, event, sent) and oc_hop(i). Callbacks are
 *     void start(type *, const struct oc_signals *, struct oc_decision *)          state zeroed before
 *     void feedback(type *, const struct oc_signals *, struct oc_decision *)
 *     void event(type *, const struct oc_signals *, u64 what, struct oc_decision *)
 *     void sent(type *, const struct oc_signals *, struct oc_decision *)           after each train; seldom needed
 */

#if defined(__bpf__)

/* Kernel TCP: crates/kernel. */
#include "opencc_bpf.h"

#elif defined(__wasm__)

/*
 * WebAssembly: oc_io() says where this lies in the exported memory. The host writes params once and signals before each
 * call, and reads the decision after it; before a feedback it writes OC_NONE to decision.rate to see whether it is answered.
 */
struct oc_io {
	struct oc_decision decision;
	u64 spare[2];
	u64 event; /* of oc_event */
	u64 params[OC_MAX_PARAMS];
	struct oc_signals signals;
	struct oc_hop hop[OC_MAX_HOPS];
};
_Static_assert(sizeof(struct oc_signals) == 44 * 8, "the layout is part of the ABI");
_Static_assert(sizeof(struct oc_io) == (8 + OC_MAX_PARAMS + 44 + 5 * OC_MAX_HOPS) * 8, "the layout is part of the ABI");

static struct oc_io oc_io_area;
enum { oc_params_before = __COUNTER__ };

#define OC_EXPORT(name) __attribute__((export_name(#name), used)) void name(void)
#define OC_TARGET_PROGRAM(name, needs)
#define OC_TARGET_PARAM(name, def) \
	enum { oc_index_##name = __COUNTER__ - oc_params_before - 1 }; \
	_Static_assert(oc_index_##name < OC_MAX_PARAMS, "too many parameters");
#define OC_PARAM(name) (oc_io_area.params[oc_index_##name])
OC_INLINE const struct oc_hop *oc_hop(u64 i) { return &oc_io_area.hop[i & (OC_MAX_HOPS - 1)]; }

#define OC_ALGORITHM(type, start, feedback, handler) \
	_Static_assert(sizeof(type) <= OC_STATE_BYTES, "the state is larger than OC_STATE_BYTES"); \
	static union { type t; u64 words[OC_STATE_BYTES / 8]; } oc_state; \
	__attribute__((export_name("oc_io"), used)) struct oc_io *oc_io(void) { return &oc_io_area; } \
	OC_EXPORT(oc_init) \
	{ \
		for (int i = 0; i < OC_STATE_BYTES / 8; i++) \
			oc_state.words[i] = 0; \
		start(&oc_state.t, &oc_io_area.signals, &oc_io_area.decision); \
	} \
	OC_EXPORT(oc_feedback) { feedback(&oc_state.t, &oc_io_area.signals, &oc_io_area.decision); } \
	OC_EXPORT(oc_event) { handler(&oc_state.t, &oc_io_area.signals, oc_io_area.event, &oc_io_area.decision); }
#define OC_ALGORITHM_SENT(type, start, feedback, handler, sent) \
	OC_ALGORITHM(type, start, feedback, handler) \
	OC_EXPORT(oc_sent) { sent(&oc_state.t, &oc_io_area.signals, &oc_io_area.decision); }

#else
#error "opencc.h is for --target=wasm32 and -target bpf: build with `longhaul cc build`"
#endif

#endif /* OPENCC_H */
