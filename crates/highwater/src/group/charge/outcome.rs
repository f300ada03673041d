//! How a charge ends: what it reserved, or why it was refused; and how often it tries.
//!
//! A refusal has one type, [`Refusal`], from the ledger that had no room to the handle, which
//! turns it into a [`ChargeError`], once.

use crate::group::error::ChargeError;
use crate::group::state::{Balance, Event, GroupKey, GroupPath, Groups, Meta};
use crate::sync::{Arc, thread};
use crate::units::{Bytes, GroupId};

/// Bytes that a charge reserved on its group and all ancestors, including tokens for later charges;
/// none if the charge was served from tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a group with a `high` is to be throttled by it"]
pub struct Refilled(pub Bytes);

impl Refilled {
    /// The charge was served from tokens.
    pub const NOTHING: Self = Self(Bytes::ZERO);
}

/// Why a charge, or one attempt at it, did not happen.
pub(in crate::group) enum Refusal {
    /// No room at that group, as an attempt looked: not proven, and not why a charge gives up.
    NoRoom(GroupId),
    /// No room at that group, at the moment of that balance: proven.
    Full {
        /// The group, which may be gone by the time the error is shown.
        meta: Arc<Meta>,
        balance: Balance,
        escrowed: u64,
    },
    /// Other charges wait for room at that group.
    Behind(GroupId),
    /// The group to charge is removed.
    Removed,
    /// An attempt was overtaken: another charge decides alone, or 4,095 operations are in flight in
    /// one word.
    Contended,
    /// All attempts of a charge were overtaken.
    Overtaken { attempts: u32 },
}

/// How often a charge that is overtaken tries again, and how it waits.
pub(in crate::group) struct Attempts {
    made: u32,
    limit: u32,
}

impl Attempts {
    /// Attempts beside other charges, before the charge decides alone. Chosen: the overtaking
    /// operation has usually ended by the next attempt, and deciding alone stops all other refills.
    #[cfg(not(loom))]
    const FREE: u32 = 8;
    /// All attempts of a charge that may pause. Chosen: with the waits below about a quarter of a
    /// second, many time slices of a thread that was preempted in flight.
    #[cfg(not(loom))]
    const LIMIT: u32 = 300;
    #[cfg(loom)]
    const FREE: u32 = 1;
    #[cfg(loom)]
    const LIMIT: u32 = 100;

    pub(in crate::group) const fn new() -> Self {
        Self {
            made: 0,
            limit: Self::LIMIT,
        }
    }

    /// Attempts of a charge that is polled: those that need no pause, and none alone.
    pub(super) const fn polled() -> Self {
        Self {
            made: 0,
            limit: Self::FREE,
        }
    }

    pub(super) fn made(&self) -> u32 {
        self.made
    }

    /// Whether the next attempt is the first.
    pub(super) fn is_fresh(&self) -> bool {
        self.made == 0
    }

    /// Whether the next attempt is made alone.
    pub(super) fn is_over(&self) -> bool {
        self.made >= Self::FREE
    }

    /// Waits before the next attempt; `false` when there is none.
    pub(in crate::group) fn wait(&mut self) -> bool {
        self.made += 1;
        #[cfg(loom)]
        thread::yield_now();
        #[cfg(not(loom))]
        match self.made {
            0..9 => {}
            9..40 => thread::yield_now(),
            _ => thread::sleep(std::time::Duration::from_millis(1)),
        }
        self.made < self.limit
    }
}

impl Groups {
    /// Counts a refusal and returns the error.
    #[cold]
    pub(in crate::group) fn refuse(
        &self,
        key: GroupKey,
        refusal: Refusal,
        bytes: u64,
    ) -> ChargeError {
        let requested = Bytes(bytes);
        match refusal {
            Refusal::Full {
                meta,
                balance,
                escrowed,
            } => {
                meta.record(Event::Max);
                ChargeError::OverMax {
                    group: GroupPath::of(&meta),
                    requested,
                    max: balance.ceiling(),
                    usage: Bytes(balance.reserved.saturating_sub(escrowed)),
                    escrowed: Bytes(escrowed),
                }
            }
            Refusal::Behind(group) => ChargeError::Behind {
                group: self.path_now(group),
                requested,
                nr_waiting: self.lines().len_at(group),
            },
            Refusal::Removed => ChargeError::Removed {
                group: self.path(key),
            },
            Refusal::Overtaken { attempts } => self.overtaken(key, requested, attempts),
            Refusal::NoRoom(_) | Refusal::Contended => self.overtaken(key, requested, 1),
        }
    }
    fn overtaken(&self, key: GroupKey, requested: Bytes, attempts: u32) -> ChargeError {
        ChargeError::Contended {
            group: self.path(key),
            requested,
            attempts,
        }
    }
}
