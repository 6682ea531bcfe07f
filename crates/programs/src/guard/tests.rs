use super::*;
use proptest::prelude::*;

const PACKET: u64 = 1_500;

fn answer(rate: u64, bound: u64) -> Answer {
    Answer { rate, bound, quantum: 0, state: 0 }
}

#[test]
fn what_no_program_can_mean_is_a_fault() {
    let good = answer(1_000_000, 100_000);
    assert_eq!(check(&Answer { rate: 0, ..good }, PACKET), Err(Fault::Rate(0)));
    assert_eq!(check(&Answer { rate: 1 << 63, ..good }, PACKET), Err(Fault::Rate(1 << 63)));
    assert_eq!(check(&Answer { bound: 0, ..good }, PACKET), Err(Fault::Bound(0)));
    assert_eq!(check(&Answer { bound: u64::MAX, ..good }, PACKET), Err(Fault::Bound(u64::MAX)));
    let rate = Rate::from_bytes_per_sec(1_000_000);
    let quantum = pacer::quantum(rate, PACKET);
    assert_eq!(check(&good, PACKET), Ok(Decision { rate, bound: 100_000, quantum }));
}

proptest! {
    /// Whatever a program answers: it is refused, or it is a decision that the conformance kit would take.
    #[test]
    fn what_passes_can_be_obeyed(
        rate in any::<u64>(),
        bound in any::<u64>(),
        quantum in any::<u64>(),
        packet in 1u64..70_000,
        shifts in (0u32..64, 0u32..64, 0u32..64),
    ) {
        let answer =
            Answer { rate: rate >> shifts.0, bound: bound >> shifts.1, quantum: quantum >> shifts.2, state: 0 };
        if let Ok(d) = check(&answer, packet) {
            prop_assert!(d.rate >= MIN_RATE && d.rate <= MAX_RATE);
            prop_assert!(d.bound >= MIN_PACKETS * packet && d.bound <= MAX_BOUND);
            prop_assert!(d.quantum >= packet && d.quantum <= MAX_QUANTUM.max(2 * packet));
        }
    }
}
