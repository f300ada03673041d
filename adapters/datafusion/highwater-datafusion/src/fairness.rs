//! Fairness between the consumers of a tenant that can spill.
//!
//! An operator that can spill takes what there is, and an operator that cannot, such as the build
//! side of a hash join, then fails. So those that can leave a part of the maximum to those that
//! cannot, and share the rest among the ones that hold any of it now. An operator that holds
//! little is never refused for fairness, however much it asks for: it has nothing to spill, so its
//! query would fail.

use highwater::Bytes;

use crate::consumers::Consumers;
use crate::refusal::Reason;
use crate::reserve::Reserve;
use crate::stop::count_active;
use crate::tenant::{Options, Shared};

/// How the consumers of a tenant that can spill share its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served.
    None,
    /// While the tenant uses more than half of what spilling operators may use, each of them has
    /// at most an equal part: one part for each that holds memory, not for each that is
    /// registered.
    #[default]
    ActiveShare,
}

/// Chosen: a 64th of what may be used is too little to be worth a spill, and so is a mebibyte.
const FLOOR_SHARE: u64 = 64;
const FLOOR_MIN: Bytes = Bytes::mib(1);

/// Returns `bytes` times `share`, which is between 0 and 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a number is such a number"
)]
pub(crate) fn share_of(bytes: Bytes, share: f64) -> Bytes {
    Bytes((bytes.0 as f64 * share.clamp(0.0, 1.0)) as u64)
}

/// Returns what a reservation holds at least before fairness looks at it.
pub(crate) fn floor_of(options: &Options) -> u64 {
    match options.fairness {
        Fairness::None => u64::MAX,
        Fairness::ActiveShare => options.floor.unwrap_or(FLOOR_MIN).0,
    }
}

/// Bytes that a consumer that can spill asks for.
pub(crate) struct Request<'p> {
    pub(crate) of_consumer: u64,
    /// What the reservation holds that is to grow.
    pub(crate) held: u64,
    pub(crate) bytes: u64,
    /// What the query was admitted with.
    pub(crate) reserve: Option<&'p Reserve>,
    /// Those of the query.
    pub(crate) consumers: &'p Consumers,
}

impl Shared {
    /// Checks whether a consumer may have what it asks for, room permitting, by a reservation that
    /// holds more than [`floor_of`]. What its query was admitted with is its own: the query's
    /// consumers share that as those of a tenant share its maximum.
    pub(crate) fn may_have(&self, request: &Request<'_>) -> Result<(), Reason> {
        let may_have = |of_query, of_tenant| match request.is_reserved(self, of_query) {
            true => Ok(()),
            false => self.may_have_more(request, of_tenant),
        };
        let of_query = request.reserve.map_or(0, |reserve| reserve.active.nr());
        let of_tenant = self.active.nr();
        match may_have(of_query, of_tenant) {
            // More consumers were counted than hold memory, perhaps: grants need no exact number.
            Err(_) if of_tenant > 1 => {
                may_have(request.consumers.count_active(), count_active(self))
            }
            verdict => verdict,
        }
    }

    /// Returns what consumers that can spill may use of so much.
    fn ceiling(&self, max: Bytes) -> u64 {
        share_of(max, 1.0 - self.options.unspillable_reserve).0
    }

    /// As [`may_have`](Self::may_have), of the tenant's memory, shared by `active` consumers.
    fn may_have_more(&self, request: &Request<'_>, active: u64) -> Result<(), Reason> {
        let ceiling = self.ceiling(self.group.effective_max());
        let floor = self
            .options
            .floor
            .map_or(ceiling / FLOOR_SHARE, |floor| floor.0);
        // The least floor was looked at before.
        if request.held <= floor {
            return Ok(());
        }
        let (bytes, active) = (request.bytes, active.max(1));
        let share = ceiling / active;
        let has_share = request.of_consumer.saturating_add(bytes) <= share;
        // The most that the tenant may use for this to be granted.
        let bound = if has_share { ceiling } else { ceiling / 2 };
        // Charged and not used.
        let unused = request.reserve.map_or(0, Reserve::unused);
        let is_within = |usage: Bytes| {
            let used = usage.0.saturating_sub(unused);
            used.saturating_add(bytes) <= bound
        };
        // The exact usage costs a visit to each CPU of each query: only where the ends of the
        // widest interval disagree. A bound may be missed by a 64th.
        let usage_within = |tolerance| self.group.usage_within(Bytes(tolerance));
        let widest = usage_within(u64::MAX);
        let is_granted = is_within(widest.high)
            || is_within(widest.low) && is_within(usage_within(ceiling / FLOOR_SHARE).high);
        match (is_granted, has_share) {
            (true, _) => Ok(()),
            (false, true) => Err(Reason::Ceiling {
                ceiling: Bytes(ceiling),
            }),
            (false, false) => Err(Reason::Share {
                share: Bytes(share),
                active,
            }),
        }
    }
}

impl Request<'_> {
    /// Returns whether the reserve of the query has room for it, shared by `active` consumers.
    fn is_reserved(&self, tenant: &Shared, active: u64) -> bool {
        self.reserve.is_some_and(|reserve| {
            let ceiling = tenant.ceiling(Bytes(reserve.bytes()));
            reserve.may_have(self.of_consumer, self.bytes, ceiling, active)
        })
    }
}
