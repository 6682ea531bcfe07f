use super::*;
use proptest::prelude::*;

const PACKET: u64 = 1_500;

fn answer(rate: u64, cwnd: u64) -> Answer {
    Answer { rate, cwnd, quantum: 0, state: 0 }
}

#[test]
fn absurd_answers_are_faults() {
    let good = answer(1_000_000, 100_000);
    assert_eq!(check_answer(&Answer { rate: 0, ..good }, PACKET), Err(Fault::Rate(0)));
    assert_eq!(check_answer(&Answer { rate: 1 << 63, ..good }, PACKET), Err(Fault::Rate(1 << 63)));
    assert_eq!(check_answer(&Answer { cwnd: 0, ..good }, PACKET), Err(Fault::Cwnd(0)));
    assert_eq!(check_answer(&Answer { cwnd: u64::MAX, ..good }, PACKET), Err(Fault::Cwnd(u64::MAX)));
    let rate = Rate::from_bytes_per_sec(1_000_000);
    let quantum = pacer::quantum(rate, PACKET);
    assert_eq!(check_answer(&good, PACKET), Ok(Decision { rate, cwnd: 100_000, quantum }));
}

proptest! {
    /// Any answer is either refused or gives a decision that the conformance kit accepts.
    #[test]
    fn accepted_answers_are_valid_decisions(
        rate in any::<u64>(),
        cwnd in any::<u64>(),
        quantum in any::<u64>(),
        packet in 1u64..70_000,
        shifts in (0u32..64, 0u32..64, 0u32..64),
    ) {
        let answer =
            Answer { rate: rate >> shifts.0, cwnd: cwnd >> shifts.1, quantum: quantum >> shifts.2, state: 0 };
        if let Ok(d) = check_answer(&answer, packet) {
            prop_assert!(d.rate >= MIN_RATE && d.rate <= MAX_RATE);
            prop_assert!(d.cwnd >= MIN_PACKETS * packet && d.cwnd <= MAX_CWND);
            prop_assert!(d.quantum >= packet && d.quantum <= pacer::quantum(d.rate, packet).max(packet));
        }
    }
}
