//! The pool of one query.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use datafusion_common::Result;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion_execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use highwater::group::{ChildError, Limits};
use highwater::{Bytes, Charge, ChargeFailed, Group, Manager, Victim};

use crate::admission;
use crate::consumers::{ConsumerUse, Consumers};
use crate::fairness::{Request, floor_of};
use crate::refusal::{Reason, Stopped, size};
use crate::reserve::Reserve;
use crate::slot::Slot;
use crate::stop::{Asking, OfQuery, Stop, StopOutcome, stop_query};
use crate::strays::Strays;
use crate::tenant::{OnFull, Options, QueryBuilder, Shared, Tenant};

/// The memory pool of one query: a group below its tenant's, exact to the byte.
///
/// # Cost
///
/// Where the CPU holds tokens of the group, a call writes no memory that other CPUs write. For a
/// consumer that can spill, it also changes a count on a line of that consumer: by a load and a
/// store on the thread that took what the consumer first held, by an atomic addition on others. A
/// consumer that takes its first byte, or returns its last, is counted by two atomic operations
/// more.
///
/// With [`Fairness::ActiveShare`](crate::Fairness::ActiveShare), `try_grow` of a consumer that can
/// spill and holds more than 1 MiB in that reservation (or [`Options::floor`]) also reads the
/// maxima of all groups up to the root; above the floor also the tenant's usage: four loads. Where
/// the interval of that does not decide, it takes the tree's lock for reading, which other CPUs
/// write, and at least two loads for each CPU that charged to each query. A refusal visits these,
/// and the consumers of all queries of the tenant: to count those that hold memory, and to name the
/// largest.
pub struct HighwaterPool {
    tenant: Tenant,
    name: String,
    limits: Limits,
    /// Made at the first charge.
    group: OnceLock<Result<Group, ChildError>>,
    /// Set while the query waits for its admission, with a group or without.
    is_waiting: bool,
    /// Whether the query is counted.
    /// Written by: its admission, or else its first charge. Read by: its end. Publishes: nothing.
    has_begun: AtomicBool,
    /// The count of a query that was admitted with a reserve.
    reserve: Option<Reserve>,
    consumers: Arc<Consumers>,
    /// A reservation that can spill and holds no more is never refused for fairness.
    floor: u64,
    /// As in the tenant's options.
    tracks_all: bool,
    stop: Arc<Stop>,
    strays: Strays,
    /// The most bytes that one refused call asked for.
    /// Written by: calls that are refused. Read by: `run` after the attempt. Publishes: nothing.
    most_refused: AtomicU64,
}

/// Capacity that no machine has.
const UNLIMITED: Bytes = Bytes(1 << 47);

impl HighwaterPool {
    pub(crate) fn of_query(query: QueryBuilder<'_>) -> Self {
        let tenant = query.tenant.clone();
        let nr = tenant.shared.number();
        Self {
            name: format!("{}-{nr}", query.name),
            limits: query.limits,
            tenant,
            group: OnceLock::new(),
            is_waiting: false,
            has_begun: AtomicBool::new(false),
            reserve: None,
            consumers: Arc::default(),
            floor: floor_of(&query.tenant.shared.options),
            tracks_all: query.tenant.shared.options.tracks_all,
            stop: Arc::default(),
            strays: Strays::default(),
            most_refused: AtomicU64::new(0),
        }
    }

    /// Returns the pool of an attempt of a query that is to be admitted. All attempts stop as one.
    pub(crate) fn that_waits(query: QueryBuilder<'_>, stop: &Arc<Stop>) -> Self {
        let mut pool = Self::of_query(query);
        pool.is_waiting = true;
        pool.stop = Arc::clone(stop);
        pool
    }

    /// Counts the query, once.
    fn begin(&self) {
        // Relaxed: statistics.
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            self.shared().begin_query();
        }
    }

    pub(crate) fn note_refused(&self, bytes: u64) {
        // Relaxed: see the field.
        self.most_refused.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn most_refused(&self) -> u64 {
        // Relaxed: see the field.
        self.most_refused.load(Ordering::Relaxed)
    }

    /// Makes a pool of its own, with no tenant: in place of a `GreedyMemoryPool` of this size.
    ///
    /// # Panics
    ///
    /// When the system grants no memory for the books, about 100 KiB.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool};
    /// use highwater_datafusion::HighwaterPool;
    ///
    /// let pool: Arc<dyn MemoryPool> = Arc::new(HighwaterPool::standalone(1000));
    /// let join = MemoryConsumer::new("join").register(&pool);
    /// join.try_grow(600)?;
    /// assert!(join.try_grow(401).is_err());
    /// join.grow(401); // cannot fail: a debt
    /// assert_eq!(pool.reserved(), 1001);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn standalone(limit: usize) -> Self {
        let limit = Bytes(limit as u64);
        let hw = Manager::builder()
            .capacity(limit.clamp(Bytes::kib(4), UNLIMITED))
            .frames(Bytes::ZERO)
            .build()
            .expect("memory for the books");
        let group = hw.root().child("pool", Limits::max(limit));
        let group = group.expect("the name is free");
        let options = Options {
            fairness: crate::Fairness::None,
            ..Options::default()
        };
        Self::of_query(Tenant::new(group, options).query())
    }

    /// Returns the query's tenant.
    #[must_use]
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns the query's group, which this makes if the query has charged nothing yet.
    ///
    /// If the program removes it while the query runs, `try_grow` is refused, and `grow` charges to
    /// a group above it; [`reserved`](MemoryPool::reserved) then lacks that, unless the query was
    /// admitted with a reserve.
    ///
    /// # Errors
    ///
    /// When it cannot be made: the tenant's group was removed, or is too deep in its tree.
    pub fn group(&self) -> Result<&Group, &ChildError> {
        self.group.get_or_init(|| self.make_group()).as_ref()
    }

    /// Returns the consumers of the query that can spill, and with
    /// [`Options::tracks_all`] all, those that use most first.
    #[must_use]
    pub fn consumers(&self) -> Vec<ConsumerUse> {
        self.consumers.uses()
    }

    /// Stops the query, whichever of its attempts this pool is of: all its calls are refused from
    /// now on, and [`Tenant::execute`] ends with [`Stopped`], also while it waits to run again. Its
    /// memory is free when its streams are dropped.
    pub fn stop(&self) {
        self.stop.stop();
    }

    /// Returns whether the query was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Stops the query that is a victim, unless it is the one that asks for memory, which is
    /// refused instead; returns whether the victim is a query of this crate: for a handler of
    /// [`Group::on_exhausted`]. The groups of tenants with [`OnFull::Victim`] have one.
    ///
    /// # Examples
    ///
    /// ```
    /// # let hw = highwater::Manager::builder().build()?;
    /// hw.root().on_exhausted(|victim| {
    ///     if !highwater_datafusion::HighwaterPool::stop_victim(victim) {
    ///         // a group of another part of the program
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop_victim(victim: &Victim) -> bool {
        let group = victim.group();
        let outcome = stop_query(group);
        if outcome == StopOutcome::Spared {
            // Nothing is to wait for it to end.
            group.exit_oom_victim();
        }
        outcome != StopOutcome::Other
    }

    /// Charges the reserve of a query that is being admitted.
    pub(crate) fn admit(&mut self, reserve: Bytes) -> Result<(), Reason> {
        debug_assert!(self.reserve.is_none(), "a query is admitted once");
        if reserve > Bytes::ZERO {
            let group = self.group().map_err(no_group)?;
            group.try_charge_disowned(reserve).map_err(Reason::Room)?;
            self.reserve = Some(Reserve::new(reserve.0));
        }
        self.is_waiting = false;
        self.begin();
        Ok(())
    }

    /// Ends an attempt of a query that runs again. What it uses stays charged until it is returned;
    /// the rest of its reserve is free, also if the program keeps the pool.
    pub(crate) fn end_attempt(&self) {
        if let Some(group) = self.made() {
            group.data().into_iter().for_each(OfQuery::end);
            self.end_reserve(group);
        }
        admission::note_end();
    }

    fn end_reserve(&self, group: &Group) {
        let uncharge = |bytes| group.uncharge(Bytes(bytes));
        self.reserve.iter().for_each(|it| it.end(uncharge));
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.tenant.shared
    }

    pub(crate) fn stop_of(&self) -> &Arc<Stop> {
        &self.stop
    }

    /// Returns the error of a query that was stopped.
    pub(crate) fn stopped(&self) -> Stopped {
        Stopped {
            query: self.path(),
            usage: Bytes(self.used()),
        }
    }

    fn make_group(&self) -> Result<Group, ChildError> {
        let tenant = self.tenant.group();
        let number = self.name.rsplit('-').next().unwrap_or_default();
        let (mut name, mut nth) = (self.name.clone(), 0_u64);
        let group = loop {
            match tenant.child(&name, self.limits) {
                Err(ChildError::InvalidName) => name = format!("query-{number}"),
                // Of another `Tenant` of the group, or of the program.
                Err(ChildError::DuplicateName { .. }) => {
                    nth += 1;
                    name = format!("query-{number}-{nth}");
                }
                made => break made?,
            }
        };
        let is_new = group.set_data(OfQuery::new(&self.stop, &self.consumers, &self.tenant));
        debug_assert!(is_new.is_ok(), "the group was made here");
        if !self.is_waiting {
            self.begin();
        }
        Ok(group)
    }

    fn made(&self) -> Option<&Group> {
        self.group.get().and_then(|group| group.as_ref().ok())
    }

    pub(crate) fn path(&self) -> String {
        match self.made() {
            Some(group) => group.path().to_string(),
            None => format!("{}/{}", self.tenant.group().path(), self.name),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        match (&self.reserve, self.made()) {
            (Some(reserve), _) => reserve.used(),
            (None, Some(group)) => group.usage_precise().0,
            (None, None) => self.strays.bytes(),
        }
    }

    pub(crate) fn limit(&self) -> Bytes {
        match self.made() {
            Some(group) => group.effective_max(),
            None => self.tenant.group().effective_max().min(self.limits.max),
        }
    }

    #[inline]
    fn tracks(&self, consumer: &MemoryConsumer) -> bool {
        consumer.can_spill() || self.tracks_all
    }

    /// Returns the slot of a consumer whose bytes are counted.
    #[inline]
    fn slot(&self, consumer: &MemoryConsumer) -> Option<&Slot> {
        match self.tracks(consumer) {
            true => self.consumers.find(consumer),
            false => None,
        }
    }

    /// Adds the change of the number of active consumers that a change of this one's bytes made.
    #[inline]
    fn count_active(&self, consumer: &MemoryConsumer, change: i64) {
        if change != 0 && consumer.can_spill() {
            self.shared().active.add(change);
            let of_query = self.reserve.iter().map(|reserve| &reserve.active);
            of_query.for_each(|active| active.add(change));
        }
    }

    /// Charges if there is room, except for what the reserve has.
    #[inline]
    fn try_take(&self, group: &Group, bytes: u64) -> Result<(), ChargeFailed> {
        match &self.reserve {
            None => group.try_charge_disowned(Bytes(bytes)),
            Some(_) => self.take(group, bytes, Group::try_charge_disowned),
        }
    }

    /// Charges by `charge`, except for what the reserve has.
    #[inline(never)]
    fn take(
        &self,
        group: &Group,
        bytes: u64,
        charge: impl Fn(&Group, Bytes) -> Result<(), ChargeFailed>,
    ) -> Result<(), ChargeFailed> {
        let charge = |bytes| charge(group, Bytes(bytes));
        match &self.reserve {
            None => charge(bytes),
            Some(reserve) => reserve.grow(bytes, charge, |bytes| self.uncharge(group, bytes)),
        }
    }

    #[inline]
    fn grant(&self, reservation: &MemoryReservation, bytes: u64) -> Result<(), Reason> {
        if self.stop.is_stopped() {
            return Err(Reason::Stopped(self.stopped()));
        }
        let group = self.group().map_err(no_group)?;
        let consumer = reservation.consumer();
        let slot = self.slot(consumer);
        // Of all reservations of the consumer: no less than this one holds, and near.
        if let Some(slot) = slot
            && slot.bytes() > self.floor
            && consumer.can_spill()
        {
            self.may_have(slot, reservation, bytes)?;
        }
        if let Err(refusal) = self.try_take(group, bytes) {
            // The query fails where this is refused.
            let is_urgent = !consumer.can_spill() || slot.is_some_and(|slot| slot.bytes() == 0);
            match is_urgent {
                true => self.charge_urgently(group, bytes, refusal)?,
                false => return Err(Reason::Room(refusal)),
            }
        }
        if let Some(slot) = slot {
            self.count_active(consumer, slot.add(bytes));
        }
        Ok(())
    }

    /// Checks whether a consumer that can spill may have `bytes` more by this reservation.
    #[cold]
    #[inline(never)]
    fn may_have(
        &self,
        slot: &Slot,
        reservation: &MemoryReservation,
        bytes: u64,
    ) -> Result<(), Reason> {
        let held = reservation.size() as u64;
        if held <= self.floor {
            return Ok(());
        }
        self.shared().may_have(&Request {
            of_consumer: slot.bytes(),
            held,
            bytes,
            reserve: self.reserve.as_ref(),
            consumers: &self.consumers,
        })
    }

    /// Charges what was refused, if others can be made to give way.
    #[cold]
    fn charge_urgently(
        &self,
        group: &Group,
        bytes: u64,
        refusal: ChargeFailed,
    ) -> Result<(), Reason> {
        match self.shared().options.on_full {
            OnFull::Victim if self.fits_alone(group, bytes) => {
                let _asking = Asking::begin(&self.stop, group);
                self.take(group, bytes, |group, bytes| group.charge(bytes).map(disown))
            }
            _ => Err(refusal),
        }
        .map_err(Reason::Room)
    }

    /// Returns whether the query could have so much more if all others gave way.
    fn fits_alone(&self, group: &Group, bytes: u64) -> bool {
        let needed = Bytes(self.used().saturating_add(bytes));
        needed <= self.limit() && self.tenant.has_room_for_one(group, needed)
    }

    /// Charges what cannot be refused.
    pub(crate) fn force(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let Ok(group) = self.group() else {
            return self.charge_unchecked(self.tenant.group(), Bytes(bytes));
        };
        if self.try_take(group, bytes).is_ok() {
            return;
        }
        let forced = self.take(group, bytes, |group, bytes| {
            self.charge_unchecked(group, bytes);
            Ok(())
        });
        debug_assert!(forced.is_ok(), "a forced charge is not refused");
    }

    /// Counts and charges bytes that no maximum stops: to a group above, if this one was removed.
    fn charge_unchecked(&self, group: &Group, bytes: Bytes) {
        // Relaxed: a statistic.
        self.shared().forced.fetch_add(bytes.0, Ordering::Relaxed);
        self.strays.keep(group.force_charge(bytes));
    }

    /// Uncharges, except for what the reserve keeps.
    #[inline]
    pub(crate) fn give_back(&self, bytes: u64) {
        // Without a group, only strays were taken.
        let group = self.made().unwrap_or(self.tenant.group());
        match &self.reserve {
            None => self.uncharge(group, bytes),
            Some(reserve) => reserve.shrink(bytes, |bytes| self.uncharge(group, bytes)),
        }
    }

    /// Uncharges: strays first.
    #[inline]
    fn uncharge(&self, group: &Group, bytes: u64) {
        let rest = match self.strays.are_none() {
            true => bytes,
            false => self.strays.give_back(bytes),
        };
        if rest > 0 {
            group.uncharge(Bytes(rest));
        }
        admission::note_room();
    }
}

fn no_group(error: &ChildError) -> Reason {
    Reason::NoGroup(error.to_string())
}

/// Leaves the bytes of a charge to the counts of the pool.
fn disown(charge: Charge) {
    let _counted = charge.disown();
}

impl MemoryPool for HighwaterPool {
    fn name(&self) -> &str {
        "highwater"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if self.tracks(consumer) {
            self.consumers.register(consumer);
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if self.tracks(consumer) {
            self.count_active(consumer, self.consumers.unregister(consumer));
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let bytes = additional as u64;
        if bytes == 0 {
            return;
        }
        self.force(bytes);
        let consumer = reservation.consumer();
        if let Some(slot) = self.slot(consumer) {
            self.count_active(consumer, slot.add(bytes));
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let bytes = shrink as u64;
        if bytes == 0 {
            return;
        }
        let consumer = reservation.consumer();
        if let Some(slot) = self.slot(consumer) {
            self.count_active(consumer, slot.sub(bytes));
        }
        self.give_back(bytes);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if additional == 0 {
            return Ok(());
        }
        self.grant(reservation, additional as u64)
            .map_err(|reason| self.refused(reservation, additional, &reason))
    }

    fn reserved(&self) -> usize {
        usize::try_from(self.used()).unwrap_or(usize::MAX)
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(usize::try_from(self.limit().0).unwrap_or(usize::MAX))
    }
}

impl Drop for HighwaterPool {
    fn drop(&mut self) {
        if let Some(group) = self.made() {
            let used = self.reserve.as_ref().map_or(0, Reserve::used);
            debug_assert_eq!(used, 0, "reservations end before their pool");
            self.end_reserve(group);
            // The engine may have made groups below.
            group.remove_when_unused();
        }
        if *self.has_begun.get_mut() {
            self.shared().end_query();
        }
        admission::note_end();
    }
}

impl fmt::Display for HighwaterPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, limit) = (size(Bytes(self.used())), size(self.limit()));
        write!(
            f,
            "highwater({}, used: {used}, limit: {limit})",
            self.path()
        )
    }
}

impl fmt::Debug for HighwaterPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HighwaterPool")
            .field("path", &self.path())
            .field("used", &self.used())
            .finish_non_exhaustive()
    }
}

/// Returns a runtime environment that differs from `base` in its pool alone: caches, object stores
/// and the disk manager are shared.
///
/// # Errors
///
/// As [`RuntimeEnvBuilder::build`].
pub fn runtime_for(base: &RuntimeEnv, pool: Arc<HighwaterPool>) -> Result<Arc<RuntimeEnv>> {
    RuntimeEnvBuilder::from_runtime_env(base)
        .with_memory_pool(pool)
        .build_arc()
}
