//! Sources of programs that misbehave.

/// Reno that executes `bad` in each feedback after the first `after`.
pub fn misbehaving(name: &str, after: u32, bad: &str) -> String {
    format!(
        r#"
#include "opencc_window.h"
OC_PROGRAM("{name}", "misbehaves", OC_NEEDS_NOTHING)
OC_INITIAL_WINDOW
struct state {{ struct oc_window window; u64 feedbacks; }};
OC_INLINE void start(struct state *t, const struct oc_signals *s, struct oc_decision *d)
{{
	oc_window_start(&t->window, s, OC_PARAM(initial_window));
	oc_decide(&t->window, s, d);
}}
static __attribute__((noinline, unused)) u64 deep(volatile u64 n) {{ volatile u64 m = n; return m ? deep(m + 1) + 1 : 0; }}
OC_INLINE void feedback(struct state *t, const struct oc_signals *s, struct oc_decision *d)
{{
	volatile u64 zero = 0;
	(void)zero;
	t->feedbacks += 1;
	if (t->feedbacks > {after}) {{
		{bad}
	}}
	if (oc_is_new_episode(&t->window, s))
		oc_reduce(&t->window, s, 1, 2);
	oc_grow_as_reno(&t->window, s);
	oc_decide(&t->window, s, d);
}}
OC_INLINE void event(struct state *t, const struct oc_signals *s, u64 what, struct oc_decision *d)
{{
	(void)what;
	oc_decide(&t->window, s, d);
}}
OC_ALGORITHM(struct state, start, feedback, event)
"#
    )
}

/// Kinds of misbehaviour: a name and the statement in C.
pub const BAD: [(&str, &str); 9] = [
    ("loop", "for (;;) zero += 1;"),
    ("bounds", "*(volatile u64 *)0xfffffff0ul = 1;"),
    ("division", "d->rate = s->now / zero; d->bound = d->rate; return;"),
    ("rate-0", "oc_decide(&t->window, s, d); d->rate = 0; return;"),
    ("rate-2-63", "oc_decide(&t->window, s, d); d->rate = 1ull << 63; return;"),
    ("bound-0", "oc_decide(&t->window, s, d); d->bound = 0; return;"),
    ("hog", "while (__builtin_wasm_memory_grow(0, 64) == ~0ul) zero += 1;"),
    ("deep", "zero = deep(1); d->bound = zero; return;"),
    ("silent", "return;"),
];
