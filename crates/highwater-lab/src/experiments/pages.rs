//! Signed numbers of pages in bytes.

use highwater::units::PAGE_BYTES;

/// Returns the bytes of a number of pages.
pub(super) const fn bytes(pages: i64) -> i64 {
    pages * PAGE_BYTES.cast_signed()
}

/// Returns the bytes of a mean number of pages.
pub(super) fn bytes_of_mean(pages: f64) -> f64 {
    /// A page is a power of two: exact.
    const PAGE: f64 = 4096.0;
    pages * PAGE
}

#[expect(
    clippy::cast_precision_loss,
    reason = "pages of one machine: below 2^53"
)]
pub(super) fn bytes_f64(pages: i64) -> f64 {
    bytes_of_mean(pages as f64)
}
