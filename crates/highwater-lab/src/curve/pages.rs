//! The page accesses of a trace.

use crate::trace::Target;

/// Numbers of a key's pages after the first lie anywhere in 64 bits; this is odd, so that keys have
/// different ones.
const SPREAD: u64 = 0xd6e8_feb8_6659_fd93;

/// Moves the pages of key 0 away from the numbers of the first keys: digits of the golden ratio.
const SHIFT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Calls `visit` with each page of a target.
///
/// A key's first page has the key's number; the others follow a hash of it. Pages of two keys can
/// coincide by chance, one pair in 2^64.
///
/// # Errors
///
/// The first one that `visit` returns.
pub(super) fn each_page<E>(
    target: Target,
    mut visit: impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    match target {
        Target::Pages { first, count } => (first..first + count).try_for_each(visit),
        Target::Key { key, pages } => {
            visit(key)?;
            let spread = (key ^ (key >> 32)).wrapping_mul(SPREAD);
            let start = spread.wrapping_add(SHIFT);
            (1..pages).try_for_each(|page| visit(start.wrapping_add(page)))
        }
    }
}
