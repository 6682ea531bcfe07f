/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The same program compiled for this machine: in the place of the kernel's glue, for records of what it decided there. */
#define OC_TARGET_PROGRAM(called, wants)
#define OC_TARGET_PARAM(name, def) static const u64 oc_param_##name = (def);
#define OC_PARAM(name) (oc_param_##name)
OC_INLINE const struct oc_hop *oc_hop(u64 i)
{
	static const struct oc_hop none;
	(void)i;
	return &none;
}

/* As in the kernel's glue. */
struct oc_record {
	u64 flow;
	u64 call;
	u64 event;
	struct oc_signals signals;
	struct oc_decision decision;
};

int printf(const char *, ...);
long read(int, void *, unsigned long);

#define MAX_FLOWS 64

/* Reads records from standard input; says how many there were, and how many decisions are others here. */
#define OC_ALGORITHM(type, start, feedback, handler) \
	int main(void) \
	{ \
		static struct { u64 flow; type state; } flows[MAX_FLOWS]; \
		struct oc_record r; \
		u64 records = 0, others = 0, losses = 0, used = 0; \
		while (read(0, &r, sizeof(r)) == sizeof(r)) { \
			const struct oc_signals *s = &r.signals; \
			struct oc_decision d = {}; \
			u64 i = 0; \
			while (i < used && flows[i].flow != r.flow) \
				i += 1; \
			if (i == MAX_FLOWS) \
				return 2; \
			if (i == used) \
				flows[used++].flow = r.flow; \
			if (r.call == 0) { \
				__builtin_memset(&flows[i].state, 0, sizeof(type)); \
				start(&flows[i].state, s, &d); \
			} else if (r.call == 1) { \
				feedback(&flows[i].state, s, &d); \
			} else { \
				handler(&flows[i].state, s, r.event, &d); \
			} \
			records += 1; \
			losses += s->lost > 0; \
			others += __builtin_memcmp(&d, &r.decision, sizeof(d)) != 0; \
		} \
		printf("%llu records, %llu with losses, %llu other decisions\n", records, losses, others); \
		return others > 0; \
	}
