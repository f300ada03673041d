//! Errors shared by every layer: small enums, one for each kind of operation, that carry the
//! numbers. A message is lower-case, names the value, the allowed range and the remedy, and costs
//! nothing to build on the paths that return it often.

use thiserror::Error;

/// Text that does not parse as an amount of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not an amount of memory: write a whole number and a unit (B, KiB, MiB, GiB, TiB, or K, M, G, T; a small b would be bits), as in 64MiB"
)]
pub struct ParseBytesError {
    /// The text as given.
    pub text: String,
}
