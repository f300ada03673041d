//! One reclaim pass: scan a target's lists until enough pages are free.

use super::cursor::Visit;
use super::lists::PageType;
use super::lruvec::Lruvec;
use super::pass::{Pass, Verdict};
use super::rmap::{Level, RmapQuirks};
use super::shadow::Shadow;
use super::stats::pages_item;
use super::{LruvecRef, Placement, Reclaim};
use crate::cache::{EvictBatch, Evicted, Kept, Referenced, WriteBackError, WrittenBack};
use crate::group::GroupNode;
use crate::units::{Pages, Pfn};

/// Who reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The background thread (kswapd).
    Background = 0,
    /// The thread that needs the memory.
    Direct = 1,
}

impl Actor {
    pub(super) const COUNT: usize = 2;
}

/// What a pass is to achieve.
#[derive(Clone, Debug)]
pub struct ScanControl<'a> {
    /// Pages to free.
    pub nr_to_reclaim: Pages,
    /// The group that is short: it and its descendants pay.
    pub target: &'a GroupNode,
    /// Who reclaims.
    pub actor: Actor,
    /// Lists are scanned from this fraction on: the shift at the first priority. `None` scales it
    /// to the pool; 0 looks at everything and ignores young marks.
    pub first_priority: Option<u32>,
    /// Whether pages go that a group's `min` or `low` would keep.
    pub ignores_protection: bool,
}

/// What a pass achieved.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Pages examined on inactive lists.
    pub nr_scanned: u64,
    /// Pages freed.
    pub nr_reclaimed: u64,
    /// Pages that stayed because somebody read them or held their latch.
    pub nr_borrowed: u64,
    /// Pages that other reclaimers held when this pass ended without having freed any.
    pub nr_isolated: u64,
    /// Pages that were being read in for the target when this pass ended without having freed any.
    pub nr_filling: u64,
    /// Pages that could not be written back, and why the last one could not.
    pub nr_write_failed: u64,
    /// The last write-back error.
    pub write_error: Option<WriteBackError>,
}

/// The work of one step: a cluster of one group's pages.
struct Chunk<'a> {
    lruvec: &'a LruvecRef,
    page_type: PageType,
    count: u64,
    priority: u32,
    control: &'a ScanControl<'a>,
}

/// Buffers of one pass.
#[derive(Default)]
struct Scratch {
    isolated: Vec<Pfn>,
    candidates: Vec<Pfn>,
    putback: Vec<(Pfn, Placement)>,
    evict: EvictBatch,
}

impl Reclaim {
    /// Scans the lists of a target and its descendants, at growing priority, until `nr_to_reclaim`
    /// pages are free or everything was looked at that is not protected. What is protected by `low`
    /// alone is looked at if that has freed nothing.
    ///
    /// # Cost
    ///
    /// Bounded: at priority `p` it scans at most 1/2^p of the target's pages, down to `p` = 0. Writes
    /// dirty pages back (I/O). Allocates its buffers, a few hundred bytes, outside all locks. Where any
    /// group has a `min` or a `low`, also [`GroupNode::protection_below`] for each group that it comes to.
    pub fn shrink(&self, control: &ScanControl<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut scratch = Scratch::default();
        let mut pass = Pass::new(control, &self.groups);
        self.batches.drain(|batch| self.spill(batch));
        self.scan_lists(control, &mut pass, &mut scratch, &mut outcome);
        let finds_none =
            |outcome: &Outcome| outcome.nr_reclaimed == 0 && control.nr_to_reclaim > Pages::ZERO;
        if finds_none(&outcome) && self.drain_batches() > 0 {
            self.scan_lists(control, &mut pass, &mut scratch, &mut outcome);
        }
        if finds_none(&outcome) && pass.deepen() {
            self.scan_lists(control, &mut pass, &mut scratch, &mut outcome);
        }
        if outcome.nr_reclaimed == 0 {
            let in_target = |lruvec: &Lruvec| lruvec.is_in_subtree_of(control.target);
            outcome.nr_isolated = self.lruvecs.isolated_of(in_target);
            outcome.nr_filling = self.lruvecs.filling_of(in_target);
        }
        outcome
    }

    /// Once through the lists that the pass accepts.
    fn scan_lists(
        &self,
        control: &ScanControl<'_>,
        pass: &mut Pass<'_>,
        scratch: &mut Scratch,
        outcome: &mut Outcome,
    ) {
        let first = control
            .first_priority
            .unwrap_or_else(|| self.first_priority());
        for priority in (0..=first).rev() {
            // At the last priority twice: the first round may only take marks away.
            let rounds = if priority == 0 { 2 } else { 1 };
            let mut budget = (self.pages_for(pass).0 >> priority) * rounds;
            budget = budget.max(self.cluster());
            while budget > 0 && outcome.nr_reclaimed < control.nr_to_reclaim.0 {
                let Some((lruvec, count)) = self.next_chunk(control.target, pass, priority) else {
                    break;
                };
                let sizes = lruvec.sizes();
                let types = PageType::ALL.into_iter();
                let looked: u64 = types
                    .filter(|&page_type| sizes.of_type(page_type) > Pages::ZERO)
                    .map(|page_type| {
                        let chunk = Chunk {
                            lruvec: &lruvec,
                            page_type,
                            count,
                            priority,
                            control,
                        };
                        self.shrink_chunk(&chunk, scratch, outcome)
                    })
                    .sum();
                budget = budget.saturating_sub(looked.max(1));
            }
        }
    }

    /// Where scanning starts: 1/2^p of the pool is about 700 pages, but at least a quarter of a
    /// small one is looked at at once.
    fn first_priority(&self) -> u32 {
        self.pool
            .managed()
            .0
            .max(1)
            .ilog2()
            .saturating_sub(9)
            .max(2)
    }

    /// Pages of the groups that a pass accepts.
    fn pages_for(&self, pass: &Pass<'_>) -> Pages {
        self.lruvecs
            .sizes_of(|lruvec| pass.accepts(lruvec))
            .evictable()
    }

    /// The lists that are scanned next for a target, and how many of their pages.
    ///
    /// Progress: a group that is protected is passed over once, and not accepted again.
    fn next_chunk(
        &self,
        target: &GroupNode,
        pass: &mut Pass<'_>,
        priority: u32,
    ) -> Option<(LruvecRef, u64)> {
        let home = self.lruvecs.of(target)?;
        loop {
            let (visit, lruvec) = self.peek(&home, pass)?;
            // Without the cursor: what a group is worth takes the lock of the tree.
            if let Verdict::Scan { size, exposed } = pass.judge(&lruvec) {
                let share = (size >> priority).max(1);
                let count = home.cursor.lock().take(visit, share, self.cluster());
                return Some((lruvec, count.min(exposed.max(1))));
            }
        }
    }

    /// Where the reclaimers of a target go on.
    fn peek(&self, home: &Lruvec, pass: &Pass<'_>) -> Option<(Visit, LruvecRef)> {
        let has_pages =
            |lruvec: &Lruvec| pass.accepts(lruvec) && lruvec.sizes().evictable() > Pages::ZERO;
        let cursor = home.cursor.lock();
        let (at, lruvec) = self.lruvecs.next_from(cursor.next_at(), has_pages)?;
        Some((cursor.visit(at), lruvec))
    }

    /// Scans one cluster of one group's lists; returns how many pages it looked at.
    fn shrink_chunk(&self, chunk: &Chunk<'_>, scratch: &mut Scratch, outcome: &mut Outcome) -> u64 {
        let &Chunk {
            lruvec,
            page_type,
            count,
            control,
            ..
        } = chunk;
        let mut looked = 0;
        if lruvec.sizes().inactive_is_low(page_type) {
            looked += self.age_active(chunk, scratch);
        }
        scratch.isolated.clear();
        // Counted before they are taken: who finds the lists empty knows that pages may come back.
        lruvec.note_isolated(count);
        self.lruvecs
            .isolate_tail(lruvec, page_type.inactive(), count, &mut scratch.isolated);
        let scanned = scratch.isolated.len() as u64;
        outcome.nr_scanned += scanned;
        let group = lruvec.group();
        self.stats.count_scanned(group, control.actor, scanned);

        self.sort_isolated(self.level(chunk), scratch, outcome);
        let activated = scratch
            .putback
            .iter()
            .filter(|(_, to)| *to == Placement::Active)
            .count() as u64;
        self.stats.count_activated(group, activated);
        lruvec.age(activated);
        let leave_shadows = |evicted: &[Evicted]| self.leave_shadows(lruvec, evicted);
        self.cache
            .evict_leaving(&scratch.candidates, &mut scratch.evict, leave_shadows);
        for &(pfn, kept) in &scratch.evict.kept {
            debug_assert!(
                kept != Kept::Busy,
                "{pfn}: an isolated page is nobody else's"
            );
            outcome.nr_borrowed += 1;
            self.stats.pgrotated.add(1);
            // In use. On the inactive list, enough of these would keep the active list from ever being aged,
            // and what nobody holds there from being found.
            scratch.putback.push((pfn, Placement::Active));
        }
        lruvec.age(scratch.evict.kept.len() as u64);
        if !scratch.putback.is_empty() {
            self.lruvecs
                .add_all(&self.cache, lruvec, scratch.putback.drain(..));
        }
        let freed = self.free_evicted(&mut scratch.evict);
        lruvec.note_settled(count);
        outcome.nr_reclaimed += freed;
        self.stats.count_freed(lruvec.group(), control.actor, freed);
        looked + scanned
    }

    fn level(&self, chunk: &Chunk<'_>) -> Level {
        let first = chunk.control.first_priority;
        Level {
            priority: chunk.priority,
            first: first.unwrap_or_else(|| self.first_priority()),
        }
    }

    /// Whether an isolated page was accessed since reclaim last looked; clears the marks. `None` when that cannot be
    /// known now: the page then keeps what it had, unless the kernel is followed.
    fn is_young(&self, pfn: Pfn, level: Level) -> Option<bool> {
        let own = || self.cache.test_and_clear_young(pfn);
        let taken = (self.rmap_quirks() == RmapQuirks::KernelFaithful).then(own);
        match self.look(pfn, level) {
            Referenced::Contended => None,
            Referenced::Seen { young, .. } => Some(taken.unwrap_or_else(own) || young > 0),
        }
    }

    /// Moves pages from the active to the inactive list. Those that were read since go round once
    /// more, except at the last priority.
    fn age_active(&self, chunk: &Chunk<'_>, scratch: &mut Scratch) -> u64 {
        let lruvec = chunk.lruvec;
        let from = chunk.page_type.active();
        scratch.isolated.clear();
        lruvec.note_isolated(chunk.count);
        self.lruvecs
            .isolate_tail(lruvec, from, chunk.count, &mut scratch.isolated);
        let looked_at = scratch.isolated.len() as u64;
        let level = self.level(chunk);
        let is_faithful = self.rmap_quirks() == RmapQuirks::KernelFaithful;
        let placed = scratch.isolated.drain(..).map(|pfn| {
            let stays = match self.is_young(pfn, level) {
                Some(is_young) => is_young && chunk.priority > 0,
                None => !is_faithful,
            };
            let to = if stays {
                Placement::Active
            } else {
                Placement::Inactive
            };
            (pfn, to)
        });
        scratch.putback.extend(placed);
        let is_out = |(_, to): &&(Pfn, Placement)| *to == Placement::Inactive;
        let deactivated = scratch.putback.iter().filter(is_out).count() as u64;
        self.lruvecs
            .add_all(&self.cache, lruvec, scratch.putback.drain(..));
        lruvec.note_settled(chunk.count);
        self.stats
            .count_aged(lruvec.group(), looked_at, deactivated);
        looked_at
    }

    /// Decides about each isolated page: to be evicted, or where it goes back to.
    fn sort_isolated(&self, level: Level, scratch: &mut Scratch, outcome: &mut Outcome) {
        scratch.candidates.clear();
        for &pfn in &scratch.isolated {
            let place = match self.is_young(pfn, level) {
                None => Placement::Inactive,
                Some(true) if level.priority > 0 => Placement::Active,
                Some(_) => match self.clean(pfn, outcome) {
                    Err(place) => place,
                    Ok(()) if self.unmap(pfn, level) => {
                        scratch.candidates.push(pfn);
                        continue;
                    }
                    Ok(()) => Placement::Inactive,
                },
            };
            scratch.putback.push((pfn, place));
        }
    }

    /// Writes a page back if it is dirty; else says where it goes back to.
    fn clean(&self, pfn: Pfn, outcome: &mut Outcome) -> Result<(), Placement> {
        if !self.cache.is_dirty(pfn) {
            return Ok(());
        }
        match self.cache.try_write_back(pfn) {
            Ok(WrittenBack::Written) => {
                self.stats.nr_vmscan_write.add(1);
                Ok(())
            }
            // A page whose latch is held will not be evicted.
            Ok(WrittenBack::Clean | WrittenBack::Latched) => Ok(()),
            // Nor does it go while there is no swap for it.
            Ok(WrittenBack::NoSlot) => Err(Placement::Active),
            Err(error) => {
                tracing::warn!(%pfn, %error, "write-back failed in reclaim");
                self.stats.nr_vmscan_write_failed.add(1);
                outcome.nr_write_failed += 1;
                outcome.write_error = Some(error);
                // Out of the way: trying it again at once would most likely fail again.
                Err(Placement::Active)
            }
        }
    }

    /// Leaves shadows in the places of pages that are about to leave the cache.
    pub(super) fn leave_shadows(&self, lruvec: &Lruvec, evicted: &[Evicted]) {
        let ages = lruvec.evict(evicted.len() as u64) + 1..;
        for (age, evicted) in ages.zip(evicted) {
            let group = evicted.group;
            self.shadows.insert(evicted.key, Shadow { group, age });
        }
    }

    /// Uncharges and frees. No lock is held.
    pub(super) fn free_evicted(&self, batch: &mut EvictBatch) -> u64 {
        let freed = batch.evicted.len() as u64;
        for evicted in batch.evicted.drain(..) {
            let item = pages_item(evicted.key.file().kind());
            self.groups.add_stat(evicted.group, item, -1);
            self.groups.uncharge(evicted.group, Pages(1));
            self.pool.free(evicted.frame);
        }
        freed
    }
}
