//! The protocol of charges: tokens on the CPU, reservations on the ancestors, proof of a refusal.
//!
//! Each file uses those above it: a charge reserves, steals when there is no room, and is refused
//! only with a proof; forced, moved and waiting charges are variations of that.

mod outcome;
mod line;
mod stocked;
mod live;
mod reserve;
mod steal;
mod proof;
mod usage;
mod steps;
mod escrow;
mod debt;
mod transfer;
mod wait;
mod held;

pub(crate) use held::{Held, Keeper, SlotRef};
pub use outcome::Refilled;
pub(super) use outcome::{Attempts, Refusal};
pub(super) use reserve::Way;
pub use usage::Account;
