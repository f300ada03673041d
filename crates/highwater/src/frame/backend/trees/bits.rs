//! Arithmetic on words of bits in which aligned runs of set bits are blocks.

/// Returns the heads of the aligned runs of 2^`log` set bits: of each, the lowest bit.
pub(super) fn aligned_runs(bits: u64, log: u8) -> u64 {
    // After step s, a bit is set if the 2^(s + 1) bits from it on were.
    let runs = (0..log).fold(bits, |runs, step| runs & runs >> (1 << step));
    runs & HEADS[usize::from(log)]
}

/// Returns the runs of 2^`log` bits that begin at `heads`, which are aligned.
pub(super) fn widen(heads: u64, log: u8) -> u64 {
    (0..log).fold(heads, |runs, step| runs | runs << (1 << step))
}

/// Returns the `count` lowest set bits, or all of them.
pub(super) fn lowest(bits: u64, count: usize) -> u64 {
    if bits.count_ones() as usize <= count {
        return bits;
    }
    let above = (0..count).fold(bits, |rest, _| rest & (rest - 1));
    bits & !above
}

/// Returns the positions of the set bits, lowest first.
pub(super) fn ones(bits: u64) -> impl Iterator<Item = u32> {
    let mut rest = bits;
    std::iter::from_fn(move || {
        let at = rest.trailing_zeros();
        // No bits, no item; otherwise the lowest is removed.
        (rest != 0).then(|| {
            rest &= rest - 1;
            at
        })
    })
}

/// By logarithm: every multiple of the run's length.
const HEADS: [u64; 7] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_with_a_look_at_every_bit() {
        let mut rng = crate::seed::rng(6);
        for _ in 0..2000 {
            // Mostly set bits, so that there are long runs.
            let bits = rng.u64(..) | rng.u64(..) | rng.u64(..) | (u64::MAX << rng.u32(0..64));
            for log in 0..=6_u8 {
                let len = 1_u32 << log;
                let run = |at: u32| (u64::MAX >> (64 - len)) << at;
                let starts = (0..64).step_by(len as usize);
                let expected = starts.filter(|&at| bits & run(at) == run(at));
                let heads = aligned_runs(bits, log);
                assert_eq!(
                    ones(heads).collect::<Vec<_>>(),
                    expected.collect::<Vec<_>>()
                );
                let wide = ones(heads).fold(0, |wide, at| wide | run(at));
                assert_eq!(widen(heads, log), wide, "{bits:#x} {log}");
            }
        }
    }

    #[test]
    fn the_lowest_bits_are_taken_first() {
        assert_eq!(lowest(0b1011_0100, 2), 0b0001_0100);
        assert_eq!(lowest(0b1011_0100, 9), 0b1011_0100);
        assert_eq!(lowest(u64::MAX, 63), u64::MAX >> 1);
        assert_eq!(lowest(u64::MAX, 0), 0);
    }
}
