//! Time, CPU time and randomness from the operating system.

use base::{Span, Time};
use std::io;

/// A monotonic clock. Read it once per turn of a driver loop and pass the reading on.
///
/// The epoch is the machine's own (`CLOCK_MONOTONIC`, usually its start), so that readings of several clocks
/// in one machine, even in different processes, can be compared. It does not jump when the wall clock is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(());

impl Clock {
    /// A clock. All clocks share one epoch.
    pub const fn new() -> Clock {
        Clock(())
    }

    /// The present, in nanoseconds since the machine's epoch.
    pub fn now(&self) -> Time {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Time::from_nanos(nanos(t.tv_sec, t.tv_nsec))
    }
}

/// A point in calendar time: for X.509 validity, file times and logs, never for protocol timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// Whole seconds since 1970-01-01 00:00:00 UTC; negative before.
    pub secs: i64,
    /// Nanoseconds within the second, 0 to 999,999,999.
    pub nanos: u32,
}

impl WallTime {
    /// The present by the system's calendar clock (`CLOCK_REALTIME`), which may jump.
    pub fn now() -> WallTime {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        // tv_nsec is below 10^9 by the kernel's contract, so the cast keeps it.
        WallTime { secs: t.tv_sec, nanos: t.tv_nsec as u32 }
    }

    /// Seconds since 1970, zero for earlier times: what X.509 libraries take.
    pub fn unix_secs(self) -> u64 {
        u64::try_from(self.secs).unwrap_or(0)
    }
}

/// CPU time spent: the cost side of every throughput figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In user space.
    pub user: Span,
    /// In the kernel on our behalf.
    pub system: Span,
}

impl CpuTime {
    /// Spent by all threads of this process so far (`getrusage(RUSAGE_SELF)`).
    pub fn of_process() -> CpuTime {
        usage(libc::RUSAGE_SELF)
    }

    /// Spent by the calling thread so far (`getrusage(RUSAGE_THREAD)`).
    pub fn of_thread() -> CpuTime {
        usage(libc::RUSAGE_THREAD)
    }

    /// Spent so far by processes that this one started and waited for, and by theirs (`getrusage(RUSAGE_CHILDREN)`).
    pub fn of_children() -> CpuTime {
        usage(libc::RUSAGE_CHILDREN)
    }

    /// User and system together.
    pub fn total(self) -> Span {
        self.user + self.system
    }

    /// The CPU time spent after `earlier` was read.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime { user: self.user - earlier.user, system: self.system - earlier.system }
    }
}

/// A moment as the clock on the wall of this machine shows it (`TZ`, or the system's time zone).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Year of the Gregorian calendar.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
    /// Hour, 0 to 23.
    pub hour: u8,
    /// Minute, 0 to 59.
    pub minute: u8,
    /// Second, 0 to 60.
    pub second: u8,
    /// Day of the week, 0 (Sunday) to 6.
    pub weekday: u8,
}

impl LocalTime {
    /// The moment `secs` seconds after the start of 1970 in UTC; `None` of one whose year has no number.
    pub fn of(secs: i64) -> Option<LocalTime> {
        // SAFETY: all bits zero is a value of the struct: integers, and a pointer that nothing here reads.
        let mut tm: libc::tm = unsafe { core::mem::zeroed() };
        // SAFETY: both point to values that live until it returns; it keeps neither.
        let done = unsafe { libc::localtime_r(&secs, &mut tm) };
        let small = |n: i32| u8::try_from(n).ok();
        if done.is_null() {
            return None;
        }
        Some(LocalTime {
            year: i64::from(tm.tm_year) + 1900,
            month: small(tm.tm_mon + 1)?,
            day: small(tm.tm_mday)?,
            hour: small(tm.tm_hour)?,
            minute: small(tm.tm_min)?,
            second: small(tm.tm_sec)?,
            weekday: small(tm.tm_wday)?,
        })
    }
}

/// 32 bytes from the system's generator (`getrandom(2)`), to seed [`base::Rng`].
///
/// # Errors
/// Only on kernels before 3.17, or where a sandbox forbids the call.
pub fn seed() -> io::Result<[u8; 32]> {
    let mut out = [0; 32];
    fill_random(&mut out)?;
    Ok(out)
}

/// Fills `out` from the system's generator. Blocks only while the machine has just started and has no entropy.
///
/// # Errors
/// As [`seed`].
pub fn fill_random(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: the pointer and length describe `rest`, which is ours to write for the call's duration.
        let n = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(n) {
            Ok(n) => done += n,
            Err(_) => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

fn nanos(secs: i64, nanos: i64) -> u64 {
    // Both are non-negative for a monotonic clock; 64 bits hold 584 years of nanoseconds.
    (secs.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(nanos.max(0) as u64)
}

fn usage(who: i32) -> CpuTime {
    // SAFETY: `rusage` is a plain structure of integers, for which all zeroes is a value.
    let mut u: libc::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: `u` is valid for the write. `who` is one of the kernel's constants, so the call cannot fail.
    unsafe { libc::getrusage(who, &mut u) };
    let span = |t: libc::timeval| Span::from_nanos(nanos(t.tv_sec, t.tv_usec.saturating_mul(1_000)));
    CpuTime { user: span(u.ru_utime), system: span(u.ru_stime) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance_and_share_an_epoch() {
        let a = Clock::new().now();
        let b = Clock::new().now();
        assert!(b >= a && a > Time::ZERO);
        assert!(WallTime::now().unix_secs() > 1_600_000_000);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(seed().unwrap(), seed().unwrap());
        let mut long = vec![0u8; 1 << 20];
        fill_random(&mut long).unwrap();
        assert!(long.chunks(64).all(|c| c.iter().any(|b| *b != 0)));
    }

    #[test]
    fn work_is_counted_as_cpu_time() {
        let before = CpuTime::of_process();
        let mut x = 1u64;
        // Until the kernel's accounting has noticed, however coarse it is; bounded by the test's own time.
        while CpuTime::of_process().since(before).total() < Span::from_millis(2) {
            for i in 0..10_000u64 {
                x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
            }
        }
        assert!(x != 0 && CpuTime::of_thread().total() > Span::ZERO);
    }

    #[test]
    fn local_times_are_at_most_a_day_from_utc_and_advance_by_minutes() {
        let t = LocalTime::of(1_764_331_200).unwrap(); // 2025-11-28 12:00 in UTC
        assert!(t.year == 2025 && t.month == 11 && (27..=29).contains(&t.day), "{t:?}");
        let later = LocalTime::of(1_764_331_260).unwrap();
        assert_eq!((t.minute + 1) % 60, later.minute);
        assert_eq!(LocalTime::of(i64::MAX), None);
    }
}
