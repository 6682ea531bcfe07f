//! What the compiler is told of branches.
//!
//! Between two messages the system's own code pushes ours out of the processor's first cache. What is rarely done is put elsewhere by
//! these, so that less is fetched again: a tenth of the lines of a short message, of whose time that is a small part
//! (docs/performance.md, "What the code between costs").

use core::hint::cold_path;

/// `b`, which is rarely true.
#[inline(always)]
pub const fn unlikely(b: bool) -> bool {
    if b {
        cold_path();
        true
    } else {
        false
    }
}

/// `b`, which is rarely false.
#[inline(always)]
pub const fn likely(b: bool) -> bool {
    !unlikely(!b)
}

/// `value`, which is rarely `None`: without a name for it, errors and ends of iterations would lie between what is usually run.
#[inline(always)]
pub fn usual<T>(value: Option<T>) -> Option<T> {
    if value.is_none() {
        cold_path();
    }
    value
}

/// `error`, as something that rarely comes about.
#[inline(always)]
pub fn rare<E>(error: E) -> E {
    cold_path();
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_what_they_are() {
        for b in [false, true] {
            assert_eq!((likely(b), unlikely(b)), (b, b));
        }
        assert_eq!((usual(Some(1)), usual(None::<u8>), rare(2)), (Some(1), None, 2));
    }
}
