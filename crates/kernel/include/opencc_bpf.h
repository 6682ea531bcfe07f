/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * opencc_bpf.h: a program against opencc.h as congestion control of the kernel's TCP (a tcp_congestion_ops by BPF struct_ops).
 *
 * It fills oc_signals from TCP's state, calls the program, and carries its decision out: snd_cwnd, snd_ssthresh and the pacing
 * rate. What stands here about the kernel is of net/ipv4/tcp_input.c, tcp_rate.c, tcp_recovery.c and include/net/tcp.h
 * (Linux 6.18); fields are found by their names when the program is loaded (CO-RE), so the object fits other kernels too.
 *
 *   program's     kernel's
 *   start         init, or the first acknowledgement when there was no memory at init
 *   feedback      cong_control, at each acknowledgement; set_state(Loss) when the retransmission timer declares all lost
 *   sent          just before feedback, for what left since the last one: TCP does not tell of each train
 *   event         RESTART: cwnd_event(TX_START). PERSISTENT: set_state(Loss): TCP's time-out means begin with one segment
 *                 (RFC 5681, section 3.1). PACKET: seen at an acknowledgement. TIMEOUT: never; the kernel's tail loss probe
 *                 is silent
 *
 * The program's state is the connection's icsk_ca_priv, all 104 bytes. What this file itself keeps for a connection is in
 * storage of its socket.
 */
#ifndef OPENCC_BPF_H
#define OPENCC_BPF_H

#define OC_SEC(name) __attribute__((section(name), used))
#define OC_KERNEL __attribute__((preserve_access_index))

/* ---- the kernel's types: what is used of them, in any order; the loader finds each field's place by its name ---------- */

struct sock_common {
	unsigned short skc_family;
	unsigned short skc_dport;
	unsigned short skc_num;
} OC_KERNEL;
struct sock {
	struct sock_common __sk_common;
	unsigned long sk_pacing_rate;
	unsigned long sk_max_pacing_rate;
	u32 sk_pacing_status;
} OC_KERNEL;
struct inet_sock {
	struct sock sk;
} OC_KERNEL;
struct oc_kernel_acks {
	u8 pending;
} OC_KERNEL;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	u8 icsk_retransmits;
	struct {
		u8 pending;
	} icsk_ack;
	u64 icsk_ca_priv[OC_STATE_BYTES / 8];
} OC_KERNEL;
struct minmax_sample {
	u32 v;
} OC_KERNEL;
struct minmax {
	struct minmax_sample s[3];
} OC_KERNEL;
struct tcp_rack {
	u64 mstamp;
} OC_KERNEL;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u64 tcp_mstamp;
	u64 tcp_wstamp_ns;
	struct minmax rtt_min;
	struct tcp_rack rack;
	unsigned short tcp_header_len;
	u8 ecn_flags;
	u32 mss_cache;
	u32 srtt_us;
	u32 snd_cwnd;
	u32 snd_cwnd_clamp;
	u32 snd_ssthresh;
	u32 prior_cwnd;
	u32 packets_out;
	u32 sacked_out;
	u32 lost_out;
	u32 retrans_out;
	u32 max_packets_out;
	u32 app_limited;
	u32 delivered;
	u32 lost;
	u32 data_segs_out;
	u32 rcv_nxt;
} OC_KERNEL;
struct rate_sample {
	u32 prior_delivered;
	int delivered;
	int delivered_ce;
	long interval_us;
	long rtt_us;
	u32 acked_sacked;
	u32 prior_in_flight;
	unsigned char is_app_limited; /* a bool */
} OC_KERNEL;
struct tcp_congestion_ops {
	void (*init)(struct sock *);
	u32 (*ssthresh)(struct sock *);
	u32 (*undo_cwnd)(struct sock *);
	void (*cong_control)(struct sock *, u32, int, const struct rate_sample *);
	void (*set_state)(struct sock *, u8);
	void (*cwnd_event)(struct sock *, int);
	char name[16];
	u32 flags;
};

/* Helpers by their numbers (include/uapi/linux/bpf.h). */
static void *(*const oc_storage)(void *map, void *sk, void *init, u64 flags) = (void *)107;
static long (*const oc_send_ack)(void *tp, u32 rcv_nxt) = (void *)116;
#define OC_STORAGE_CREATE 1

/* enum tcp_ca_event, enum tcp_ca_state, and flags of TCP. */
#define OC_TX_START 0
#define OC_ECN_NO_CE 4
#define OC_ECN_IS_CE 5
#define OC_CA_RECOVERY 3
#define OC_CA_LOSS 4
#define OC_ECN_OK 1
#define OC_DEMAND_CWR 4
#define OC_ACK_TIMER 2
#define OC_ACK_NOW 16
#define OC_PACING_NEEDED 1
#define OC_NEEDS_ECN 2
#define OC_AF_INET6 10
#define OC_INFINITE_SSTHRESH 0x7fffffffu

/* ---- what is kept for a connection ------------------------------------------------------------------------------------ */

/* A call of the program, written down for whoever traces it: all of its input and output. */
#define OC_CALL_START 0
#define OC_CALL_FEEDBACK 1
#define OC_CALL_EVENT 2
#define OC_CALL_SENT 3
struct oc_record {
	u64 flow; /* local port, and the peer's times 65,536 */
	u64 call;
	u64 event;
	struct oc_signals signals;
	struct oc_decision decision;
};

struct oc_flow {
	u64 delivered;  /* bytes in all */
	u64 packet;     /* bytes of a full packet, as the program was told */
	u64 undone;     /* bytes whose loss turned out to be none, not yet told */
	u64 episode;    /* when the packets of the present recovery's first loss were sent */
	u64 acked_sent; /* when the newest acknowledged packet was sent */
	u64 round;
	u64 trend_at;   /* time and round trip of the last measurement, and the trend so far */
	u64 trend_rtt;
	s64 trend;
	u64 lost_at_round[2]; /* packets lost in all, when this round and the one before began */
	u32 started;
	u32 next_round;      /* the round ends with a packet sent when so many were delivered */
	u32 lost;            /* packets lost in all */
	u32 lost_at_episode; /* the same when the present recovery began */
	u32 segments;        /* sent in all */
	u32 state;           /* enum tcp_ca_state */
	u32 in_episode;      /* the present recovery's first loss was told */
	u32 echoed;          /* DCTCP's receiver: whether the last segment was marked, and where it ended */
	u32 rcv_nxt;
	u32 spare;
#ifdef OPENCC_TRACE
	struct oc_record record;
#endif
};

struct {
	int (*type)[24]; /* BPF_MAP_TYPE_SK_STORAGE */
	int (*map_flags)[1];
	int *key;
	struct oc_flow *value;
} oc_flows OC_SEC(".maps");

#ifdef OPENCC_TRACE
struct {
	int (*type)[22]; /* BPF_MAP_TYPE_QUEUE */
	int (*max_entries)[16384];
	struct oc_record *value;
} oc_trace OC_SEC(".maps");
static long (*const oc_push)(void *map, const void *value, u64 flags) = (void *)87;

OC_INLINE void oc_write_down(struct tcp_sock *tp, struct oc_flow *f, u64 call, u64 event, const struct oc_signals *s,
			     const struct oc_decision *d)
{
	struct sock_common *c = &tp->inet_conn.icsk_inet.sk.__sk_common;
	f->record.flow = (u64)c->skc_num | (u64)__builtin_bswap16(c->skc_dport) << 16;
	f->record.call = call;
	f->record.event = event;
	f->record.signals = *s;
	f->record.decision = *d;
	oc_push(&oc_trace, &f->record, 0);
}
#else
#define oc_write_down(tp, f, call, event, s, d) ((void)0)
#endif

/* ---- the program, defined by OC_ALGORITHM ------------------------------------------------------------------------------ */

OC_INLINE void oc_do_start(void *state, const struct oc_signals *s, struct oc_decision *d);
OC_INLINE void oc_do_feedback(void *state, const struct oc_signals *s, struct oc_decision *d);
OC_INLINE void oc_do_event(void *state, const struct oc_signals *s, u64 what, struct oc_decision *d);
OC_INLINE void oc_do_sent(void *state, const struct oc_signals *s, struct oc_decision *d);
/* Whether the program steers by marks, and so needs ECN and DCTCP's exact echo; whether it has a `sent`. */
OC_INLINE int oc_wants_marks(void);
OC_INLINE int oc_wants_sent(void);

#define OC_TARGET_PROGRAM(called, wants) \
	OC_INLINE int oc_wants_marks(void) { return (wants)[0] == 's' || (wants)[0] == 'l'; } \
	char oc_license[] OC_SEC("license") = "Dual MIT/GPL"; \
	struct tcp_congestion_ops oc_ops OC_SEC(".struct_ops.link") = { \
		.init = (void *)oc_init, \
		.ssthresh = (void *)oc_ssthresh, \
		.undo_cwnd = (void *)oc_undo_cwnd, \
		.cong_control = (void *)oc_cong_control, \
		.set_state = (void *)oc_set_state, \
		.cwnd_event = (void *)oc_cwnd_event, \
		.name = called, \
		.flags = (wants)[0] == 's' || (wants)[0] == 'l' ? OC_NEEDS_ECN : 0, \
	};

/* Constants that the loader may change before the kernel sees them. */
#define OC_TARGET_PARAM(name, def) const volatile u64 oc_param_##name OC_SEC(".rodata") = (def);
#define OC_PARAM(name) (oc_param_##name)

/* TCP carries no telemetry. */
OC_INLINE const struct oc_hop *oc_hop(u64 i)
{
	static const struct oc_hop none;
	(void)i;
	return &none;
}

#define OC_ALGORITHM_SENT(type, start, feedback, handler, on_sent) \
	OC_ALGORITHM_OF(type, start, feedback, handler) \
	OC_INLINE int oc_wants_sent(void) { return 1; } \
	OC_INLINE void oc_do_sent(void *state, const struct oc_signals *s, struct oc_decision *d) { on_sent((type *)state, s, d); }
#define OC_ALGORITHM(type, start, feedback, handler) \
	OC_ALGORITHM_OF(type, start, feedback, handler) \
	OC_INLINE int oc_wants_sent(void) { return 0; } \
	OC_INLINE void oc_do_sent(void *state, const struct oc_signals *s, struct oc_decision *d) {}
#define OC_ALGORITHM_OF(type, start, feedback, handler) \
	_Static_assert(sizeof(type) <= OC_STATE_BYTES, "the state is larger than OC_STATE_BYTES"); \
	OC_INLINE void oc_do_start(void *state, const struct oc_signals *s, struct oc_decision *d) { start((type *)state, s, d); } \
	OC_INLINE void oc_do_feedback(void *state, const struct oc_signals *s, struct oc_decision *d) { feedback((type *)state, s, d); } \
	OC_INLINE void oc_do_event(void *state, const struct oc_signals *s, u64 what, struct oc_decision *d) { handler((type *)state, s, what, d); }

/* ---- signals ----------------------------------------------------------------------------------------------------------- */

/* Bytes of a full packet on the wire: payload, TCP's header with its options, IP's. */
OC_INLINE u64 oc_packet(const struct tcp_sock *tp)
{
	u64 ip = tp->inet_conn.icsk_inet.sk.__sk_common.skc_family == OC_AF_INET6 ? 40 : 20;
	return oc_max(tp->mss_cache, 1) + tp->tcp_header_len + ip;
}

/* tcp_packets_in_flight. */
OC_INLINE u64 oc_in_flight(const struct tcp_sock *tp)
{
	u64 out = (u64)tp->packets_out + tp->retrans_out;
	return oc_sub(out, (u64)tp->sacked_out + tp->lost_out);
}

/* What is always there. */
OC_INLINE void oc_fill(const struct tcp_sock *tp, const struct oc_flow *f, struct oc_signals *s)
{
	u64 lowest = tp->rtt_min.s[0].v;
	s->now = tp->tcp_mstamp * OC_US;
	s->packet = f->packet;
	/* Kept in eighths of a microsecond. */
	s->srtt = tp->srtt_us ? oc_max((u64)tp->srtt_us * OC_US >> 3, 1) : 333 * OC_MS;
	s->min_rtt = lowest == 0xffffffffu ? 0 : lowest * OC_US;
	s->timeouts = tp->inet_conn.icsk_retransmits;
	s->inflight = oc_in_flight(tp) * f->packet;
	s->prior_inflight = s->inflight;
	s->delivered = f->delivered;
	s->round = f->round;
	/* Nothing to send (tcp_rate_check_app_limited), or no room at the receiver: less than half of the window was used. */
	s->app_limited = tp->app_limited || tp->snd_cwnd / 2 > tp->max_packets_out;
	s->latest_lost_sent = OC_NONE;
	s->newest_acked_sent = OC_NONE;
	s->ecn = (tp->ecn_flags & OC_ECN_OK) != 0;
	s->handshake_rtt = s->min_rtt;
}

/* Newly lost packets. One recovery of TCP's is one episode: further losses in it were, as far as the program is told, sent
 * when the first ones were. Packets are found lost by later ones that arrived (RACK, RFC 8985): the first ones were sent
 * before the newest acknowledged one, `sent`. */
OC_INLINE void oc_fill_losses(struct tcp_sock *tp, struct oc_flow *f, u64 sent, struct oc_signals *s)
{
	u32 lost = tp->lost - f->lost;
	if (!lost)
		return;
	if (f->state < OC_CA_RECOVERY || !f->in_episode) {
		f->episode = sent;
		f->lost_at_episode = f->lost;
		f->in_episode = f->state >= OC_CA_RECOVERY;
	}
	f->lost = tp->lost;
	s->lost_packets = lost;
	s->lost = lost * f->packet;
	s->latest_lost_sent = f->episode;
}

/* Slope of the round trip in millionths: that of two measurements, each weighing as much as the time between them is of a
 * round trip. */
OC_INLINE void oc_fill_trend(struct oc_flow *f, struct oc_signals *s)
{
	u64 apart = oc_sub(s->now, f->trend_at);
	if (!s->rtt || (f->trend_rtt && !apart)) {
		s->rtt_trend = f->trend;
		return;
	}
	if (f->trend_rtt) {
		s64 slope = oc_sdiv((s64)(s->rtt - f->trend_rtt) * 1000000, apart);
		u64 weight = oc_min(oc_div(apart * 1024, s->srtt), 1024);
		f->trend += oc_sdiv((slope - f->trend) * (s64)weight, 1024);
	}
	f->trend_at = s->now;
	f->trend_rtt = s->rtt;
	s->rtt_trend = f->trend;
}

/* What an acknowledgement told. */
OC_INLINE void oc_fill_feedback(struct tcp_sock *tp, struct oc_flow *f, const struct rate_sample *rs, struct oc_signals *s)
{
	u64 packet = f->packet, now_delivered = tp->delivered;
	long rtt = rs->rtt_us, interval = rs->interval_us;
	int delivered = rs->delivered, marked = rs->delivered_ce;
	u32 before = rs->prior_delivered;
	s->acked_packets = rs->acked_sacked;
	s->acked = s->acked_packets * packet;
	f->delivered += s->acked;
	s->delivered = f->delivered;
	s->prior_inflight = rs->prior_in_flight * packet;
	s->spurious = f->undone;
	f->undone = 0;
	if (s->acked_packets) {
		f->acked_sent = tp->rack.mstamp * OC_US;
		s->newest_acked_sent = f->acked_sent;
	}
	oc_fill_losses(tp, f, tp->rack.mstamp * OC_US, s);
	if (rtt > 0)
		s->rtt = (u64)rtt * OC_US;
	oc_fill_trend(f, s);
	if (marked > 0) {
		s->ce_packets = oc_min(marked, s->acked_packets);
		s->ce_acked = s->ce_packets * packet;
	}
	if (delivered > 0 && (int)(before - f->next_round) >= 0) {
		f->next_round = now_delivered;
		f->round += 1;
		f->lost_at_round[1] = f->lost_at_round[0];
		f->lost_at_round[0] = f->lost;
		s->round_start = 1;
		s->round = f->round;
	}
	if (delivered > 0 && interval > 0) {
		u64 since = (u32)((u32)now_delivered - before) * packet;
		s->sample = 1;
		s->sample_interval = (u64)interval * OC_US;
		s->sample_delivered = (u64)delivered * packet;
		s->sample_rate = oc_rate(s->sample_delivered, s->sample_interval);
		s->sample_prior_delivered = oc_sub(f->delivered, since);
		/* TCP does not keep these two for each packet: what arrived or was lost in the round trip was in flight. */
		s->sample_lost = (u32)(f->lost - (u32)f->lost_at_round[1]) * packet;
		s->sample_inflight = since + s->sample_lost;
		s->sample_app_limited = rs->is_app_limited != 0;
	}
}

/* ---- decisions --------------------------------------------------------------------------------------------------------- */

/* The kernel paces payload; the program decided bytes on the wire. */
OC_INLINE void oc_obey(struct tcp_sock *tp, const struct oc_flow *f, const struct oc_decision *d)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	u64 rate = oc_clamp(d->rate, OC_MIN_RATE, OC_MAX_RATE), clamp = tp->snd_cwnd_clamp;
	u64 paced = rate < 1ull << 40 ? rate * oc_max(tp->mss_cache, 1) / oc_max(f->packet, 1) : rate;
	u64 window = oc_min(oc_clamp(d->bound, 0, OC_MAX_BOUND) / oc_max(f->packet, 1), clamp);
	tp->snd_cwnd = oc_max(window, 2);
	sk->sk_pacing_rate = oc_min(paced, sk->sk_max_pacing_rate);
	if (d->ssthresh == OC_NONE)
		tp->snd_ssthresh = OC_INFINITE_SSTHRESH;
	else
		tp->snd_ssthresh = oc_clamp(d->ssthresh / oc_max(f->packet, 1), 2, OC_INFINITE_SSTHRESH);
}

OC_INLINE void oc_begin(struct tcp_sock *tp, struct oc_flow *f)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;
	struct oc_signals s = {};
	struct oc_decision d = {};
	for (int i = 0; i < OC_STATE_BYTES / 8; i++)
		tp->inet_conn.icsk_ca_priv[i] = 0;
	f->started = 1;
	f->packet = oc_packet(tp);
	f->lost = f->lost_at_round[0] = f->lost_at_round[1] = tp->lost;
	f->next_round = tp->delivered;
	f->segments = tp->data_segs_out;
	f->rcv_nxt = tp->rcv_nxt;
	/* Pacing by TCP's own timer; the fq queueing discipline has set 2 if it does it. */
	if (sk->sk_pacing_status == 0)
		sk->sk_pacing_status = OC_PACING_NEEDED;
	oc_fill(tp, f, &s);
	oc_do_start(&tp->inet_conn.icsk_ca_priv, &s, &d);
	oc_write_down(tp, f, OC_CALL_START, 0, &s, &d);
	oc_obey(tp, f, &d);
}

OC_INLINE void oc_tell(struct tcp_sock *tp, struct oc_flow *f, const struct oc_signals *s, u64 what)
{
	struct oc_decision d = {};
	oc_do_event(&tp->inet_conn.icsk_ca_priv, s, what, &d);
	oc_write_down(tp, f, OC_CALL_EVENT, what, s, &d);
	oc_obey(tp, f, &d);
}

OC_INLINE void oc_digest(struct tcp_sock *tp, struct oc_flow *f, const struct oc_signals *s)
{
	struct oc_decision d = {};
	oc_do_feedback(&tp->inet_conn.icsk_ca_priv, s, &d);
	oc_write_down(tp, f, OC_CALL_FEEDBACK, 0, s, &d);
	oc_obey(tp, f, &d);
}

/* ---- the kernel's callbacks: arguments come as an array of words --------------------------------------------------------- */

OC_SEC("struct_ops/init") int oc_init(u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct oc_flow *f = oc_storage(&oc_flows, tp, 0, OC_STORAGE_CREATE);
	if (f) {
		f->state = 0;
		f->round = 0;
		f->undone = 0;
		f->in_episode = 0;
		f->trend = 0;
		f->trend_rtt = 0;
		oc_begin(tp, f);
	}
	return 0;
}

/* TCP asks before the acknowledgement's feedback is there; that decides. */
OC_SEC("struct_ops/ssthresh") unsigned oc_ssthresh(u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	return tp->snd_ssthresh;
}

/* The reduction was for nothing: the program hears of it with the next feedback, and decides anew. */
OC_SEC("struct_ops/undo_cwnd") unsigned oc_undo_cwnd(u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	struct oc_flow *f = oc_storage(&oc_flows, tp, 0, 0);
	if (f)
		f->undone = (u32)(f->lost - f->lost_at_episode) * f->packet;
	return oc_max(tp->snd_cwnd, tp->prior_cwnd);
}

OC_INLINE void oc_acknowledged(struct tcp_sock *tp, const struct rate_sample *rs)
{
	struct oc_flow *f = oc_storage(&oc_flows, tp, 0, OC_STORAGE_CREATE);
	struct oc_signals s = {};
	if (!f)
		return;
	if (!f->started)
		oc_begin(tp, f);
	if (oc_packet(tp) != f->packet) {
		struct oc_signals changed = {};
		f->packet = oc_packet(tp);
		oc_fill(tp, f, &changed);
		oc_tell(tp, f, &changed, OC_EVENT_PACKET);
	}
	if (oc_wants_sent()) {
		struct oc_signals left = {};
		struct oc_decision d = {};
		u32 packets = tp->data_segs_out - f->segments;
		f->segments = tp->data_segs_out;
		if (packets) {
			oc_fill(tp, f, &left);
			left.sent_packets = packets;
			left.sent = packets * f->packet;
			oc_do_sent(&tp->inet_conn.icsk_ca_priv, &left, &d);
			oc_write_down(tp, f, OC_CALL_SENT, 0, &left, &d);
		}
	}
	oc_fill(tp, f, &s);
	oc_fill_feedback(tp, f, rs, &s);
	oc_digest(tp, f, &s);
}

OC_SEC("struct_ops/cong_control") int oc_cong_control(u64 *ctx)
{
	oc_acknowledged((struct tcp_sock *)ctx[0], (const struct rate_sample *)ctx[3]);
	return 0;
}
/* Before Linux 6.10: (sk, rs). The loader takes the one that fits. */
OC_SEC("struct_ops/cong_control") int oc_cong_control_2(u64 *ctx)
{
	oc_acknowledged((struct tcp_sock *)ctx[0], (const struct rate_sample *)ctx[1]);
	return 0;
}

/* The retransmission timer declares everything lost that is in flight; the last of it was sent when TCP last sent. */
OC_SEC("struct_ops/set_state") int oc_set_state(u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	u32 state = (u8)ctx[1];
	struct oc_flow *f = oc_storage(&oc_flows, tp, 0, 0);
	struct oc_signals s = {};
	if (!f || !f->started)
		return 0;
	if (state < OC_CA_RECOVERY)
		f->in_episode = 0;
	if (state != OC_CA_LOSS) {
		f->state = state;
		return 0;
	}
	oc_fill(tp, f, &s);
	s.timeouts += 1;
	if (f->state != OC_CA_LOSS) {
		struct oc_signals lost = s;
		f->state = state;
		oc_fill_losses(tp, f, tp->tcp_wstamp_ns, &lost);
		lost.prior_inflight = lost.inflight + lost.lost;
		oc_digest(tp, f, &lost);
	}
	oc_tell(tp, f, &s, OC_EVENT_PERSISTENT);
	return 0;
}

/*
 * DCTCP's receiver (RFC 8257, section 3.2): acknowledgements carry the mark of the segments that they are for. When it changes,
 * what was not acknowledged yet is acknowledged at once with the old one.
 */
OC_INLINE void oc_echo(struct tcp_sock *tp, struct oc_flow *f, u32 marked)
{
	u8 flags = tp->ecn_flags;
	if (f->echoed != marked) {
		u8 pending = tp->inet_conn.icsk_ack.pending;
		if (pending & OC_ACK_TIMER) {
			tp->ecn_flags = f->echoed ? flags | OC_DEMAND_CWR : flags & ~OC_DEMAND_CWR;
			oc_send_ack(tp, f->rcv_nxt);
		}
		tp->inet_conn.icsk_ack.pending = tp->inet_conn.icsk_ack.pending | OC_ACK_NOW;
	}
	f->rcv_nxt = tp->rcv_nxt;
	f->echoed = marked;
	tp->ecn_flags = marked ? flags | OC_DEMAND_CWR : flags & ~OC_DEMAND_CWR;
}

OC_SEC("struct_ops/cwnd_event") int oc_cwnd_event(u64 *ctx)
{
	struct tcp_sock *tp = (struct tcp_sock *)ctx[0];
	u32 what = ctx[1];
	struct oc_flow *f = oc_storage(&oc_flows, tp, 0, 0);
	if (!f || !f->started)
		return 0;
	if (what == OC_TX_START && f->acked_sent) {
		struct oc_signals s = {};
		oc_fill(tp, f, &s);
		s.idle_since = f->acked_sent;
		oc_tell(tp, f, &s, OC_EVENT_RESTART);
	} else if (oc_wants_marks() && (what == OC_ECN_IS_CE || what == OC_ECN_NO_CE)) {
		oc_echo(tp, f, what == OC_ECN_IS_CE);
	}
	return 0;
}

#endif /* OPENCC_BPF_H */
