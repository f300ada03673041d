//! Scanning a cluster of one list (`shrink_folio_list`), or of LRU's victims on both (module
//! `order`): isolate, check, write back, evict, put back.
//!
//! Pages are isolated under the lruvec's lock, and everything else happens without it. The clean
//! ones are evicted together, so that the heavy barrier of retracting is paid once; the others go
//! to the heads of their lists; frames are freed last. Only then are dirty ones written, which the
//! thread still has in hand, and evicted in the same way: no frame of a clean page waits for the
//! storage of others.

use super::control::{Actor, ScanControl};
use super::lists::{LruList, PageType, Placement, Side};
use super::order::ScanNotes;
use super::policy::{EvictedBy, Fate, Look};
use super::round::{Round, Scan, Scratch, Step};
use super::stats::{pages_item, signed};
use super::{LruvecRef, Reclaim};
use crate::cache::{EvictBatch, Evicted, Kept, PageFlag, Referenced, WriteBackError, WrittenBack};
use crate::units::{Pages, Pfn};

/// One list's part of a step.
pub(super) struct Cluster<'a> {
    lruvec: &'a LruvecRef,
    page_type: PageType,
    from: ScanFrom,
    /// Pages to look at, and the most frames that those may hold which are taken.
    count: u64,
    frames: u64,
    round: &'a Round,
}

/// The pages that are scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanFrom {
    /// Those at the tail of a list.
    List(Side),
    /// Those with the oldest known accesses, on both lists: LRU's victims.
    Oldest,
}

impl Cluster<'_> {
    /// Returns whether the last priority is reached, at which accesses are ignored.
    fn is_last_resort(&self) -> bool {
        self.round.level.priority == 0
    }
}

/// The decision for an isolated page.
enum Sorted {
    Stays(Placement),
    /// To be evicted.
    Clean,
    /// To be written back, and evicted.
    Dirty,
}

impl Reclaim {
    /// Scans a cluster of each list of one group; returns the number of pages scanned.
    pub(super) fn shrink_step(&self, round: &Round, step: &Step, scan: &mut Scan<'_>) -> u64 {
        let (before, mut looked) = (scan.outcome.nr_reclaimed, 0);
        let mut cluster = Cluster {
            lruvec: &step.lruvec,
            page_type: PageType::Anon,
            from: ScanFrom::Oldest,
            count: 0,
            frames: u64::MAX,
            round,
        };
        for page_type in PageType::ALL {
            cluster.page_type = page_type;
            for (from, count) in self.turns(&cluster, step, scan.control) {
                let exposed = step.exposed - (scan.outcome.nr_reclaimed - before);
                (cluster.from, cluster.count, cluster.frames) = (from, count, u64::MAX);
                looked += if self.ages() && from == ScanFrom::List(Side::Active) {
                    self.age_list(&cluster, scan)
                } else {
                    (cluster.count, cluster.frames) = (count.min(exposed), exposed);
                    self.shrink_list(&cluster, scan)
                };
            }
        }
        debug_assert!(
            scan.outcome.nr_reclaimed - before <= step.exposed,
            "a group has given protected pages"
        );
        if step.trims_anon && step.counts.of(LruList::ActiveAnon) == 0 {
            cluster.page_type = PageType::Anon;
            cluster.from = ScanFrom::List(Side::Active);
            (cluster.count, cluster.frames) = (self.cluster(scan.control.actor), u64::MAX);
            self.age_list(&cluster, scan);
        }
        looked
    }

    /// Returns what a step scans of a type, in order, with the counts.
    fn turns(
        &self,
        of: &Cluster<'_>,
        step: &Step,
        control: &ScanControl<'_>,
    ) -> [(ScanFrom, u64); 2] {
        let count = |side| step.counts.of(of.page_type.list(side));
        if self.ages() {
            return [Side::Inactive, Side::Active].map(|side| (ScanFrom::List(side), count(side)));
        }
        // A type's count is that of its inactive list.
        let count = count(Side::Inactive);
        let victims = match count {
            0 => EvictedBy::Policy,
            _ => self.review(of.lruvec, of.page_type, control),
        };
        let state = of.lruvec.policy_state(of.page_type);
        let next = || {
            self.policy
                .next(state, of.lruvec.sizes().lens(of.page_type))
        };
        // At the last priority, which ignores accesses, both lists are scanned, so that held pages
        // on one do not hide evictable pages on the other.
        if of.is_last_resort() {
            let side = next();
            return [side, side.other()].map(|side| (ScanFrom::List(side), count));
        }
        let from = match victims {
            EvictedBy::Lru => ScanFrom::Oldest,
            EvictedBy::Policy => ScanFrom::List(next()),
        };
        [(from, count), (from, 0)]
    }

    /// Isolates pages; returns the number that was looked at.
    fn isolate(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>) -> u64 {
        let (lruvec, page_type) = (cluster.lruvec, cluster.page_type);
        let isolated = &mut scan.scratch.isolated;
        isolated.clear();
        // Counted before they are isolated: a thread that finds the lists empty knows that pages
        // may come back.
        lruvec.note_isolated(page_type, cluster.count);
        let most = (cluster.count, cluster.frames);
        let (looked, is_too_large) = match cluster.from {
            ScanFrom::List(side) => {
                let list = page_type.list(side);
                let is_too_large = self.lruvecs.isolate_tail(lruvec, list, most, isolated);
                (isolated.len() as u64, is_too_large)
            }
            ScanFrom::Oldest => {
                self.isolate_oldest(lruvec, page_type, most, scan.control, isolated)
            }
        };
        if isolated.is_empty() && is_too_large.0 {
            scan.pass.pass_over(lruvec);
        }
        debug_assert!(
            isolated.len() as u64 <= cluster.count,
            "no more than were counted"
        );
        looked
    }

    /// Records that this thread holds `count` pages of a cluster no more.
    fn note_settled(&self, cluster: &Cluster<'_>, count: u64) {
        cluster.lruvec.note_settled(cluster.page_type, count);
        self.note_hands_empty(cluster.lruvec);
    }

    /// Puts the remaining pages back.
    fn put_back_all(&self, cluster: &Cluster<'_>, scratch: &mut Scratch) {
        if scratch.putback.is_empty() {
            return;
        }
        let is_culled = |(_, to): &&(Pfn, Placement)| *to == Placement::Unevictable;
        let culled: Vec<Pfn> = scratch
            .putback
            .iter()
            .filter(is_culled)
            .map(|it| it.0)
            .collect();
        self.lruvecs
            .add_all(&self.cache, cluster.lruvec, scratch.putback.drain(..));
        // Another thread may have unlocked them since the check, and not found them on that list.
        culled.into_iter().for_each(|pfn| self.rescue_unlocked(pfn));
    }

    /// Scans a cluster of a list: evicts pages, or puts them back.
    fn shrink_list(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>) -> u64 {
        let (lruvec, page_type) = (cluster.lruvec, cluster.page_type);
        if cluster.count == 0
            || self.waits_for_isolated(page_type, scan) && !cluster.is_last_resort()
        {
            return 0;
        }
        let scanned = self.isolate(cluster, scan);
        if scanned == 0 {
            self.note_settled(cluster, cluster.count);
            return 0;
        }
        scan.outcome.nr_scanned += scanned;
        self.stats
            .count_scanned(lruvec.group(), scan.control.account(), page_type, scanned);
        let before = scan.outcome.nr_evicted;
        self.sort_isolated(cluster, scan);
        let nr_dirty = scan.scratch.dirty.len() as u64;
        self.evict_and_settle(cluster, scan, cluster.count - nr_dirty);
        let mut nr_written = 0;
        if nr_dirty > 0 {
            nr_written = self.write_dirty(cluster, scan);
            self.evict_and_settle(cluster, scan, nr_dirty);
        }
        let scratch = &mut scan.scratch;
        self.lruvecs
            .note_seen(&self.cache, lruvec, page_type, &scratch.seen);
        scratch.seen.clear();
        scratch.evict.woken.wake();
        let evicted = scan.outcome.nr_evicted - before;
        lruvec.note_cost(page_type, nr_written, scanned - evicted);
        scanned
    }

    /// Evicts the candidates, puts back what is to stay, and frees frames: of the pages that the
    /// thread has counted as isolated, it holds `count` no more.
    fn evict_and_settle(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>, count: u64) {
        let nr_in_hand = scan.scratch.candidates.len() + scan.scratch.putback.len();
        self.evict_candidates(cluster, scan);
        let (lruvec, scratch) = (cluster.lruvec, &mut scan.scratch);
        debug_assert_eq!(
            scratch.putback.len() + scratch.evict.evicted.len(),
            nr_in_hand,
            "each page in hand is put back or evicted"
        );
        debug_assert!(
            nr_in_hand as u64 <= count,
            "more pages are settled than this thread has counted"
        );
        let count_moved = |place: Placement, from| {
            let is_moved =
                |(pfn, to): &&(Pfn, Placement)| *to == place && self.side_of(*pfn) == from;
            scratch.putback.iter().filter(is_moved).count() as u64
        };
        let activated = count_moved(Placement::Active, Side::Inactive);
        let deactivated = count_moved(Placement::Inactive, Side::Active);
        let account = scan.control.account();
        self.stats.count_activated(lruvec.group(), activated);
        self.stats
            .count_aged(lruvec.group(), account, 0, deactivated);
        lruvec.age(activated);
        if cluster.from == ScanFrom::Oldest {
            let stays = scratch.putback.iter().map(|(pfn, _)| *pfn);
            scratch.seen.held.extend(stays);
        }
        self.put_back_all(cluster, scratch);
        let evicted = scratch.evict.evicted.len() as u64;
        let freed = self.free_evicted(&mut scratch.evict);
        self.note_settled(cluster, count);
        scan.outcome.nr_evicted += evicted;
        scan.outcome.nr_reclaimed += freed.0;
        self.stats
            .count_freed(lruvec.group(), account, cluster.page_type, evicted);
    }

    /// Moves pages from an active list to the inactive one, except those that are rotated.
    fn age_list(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>) -> u64 {
        let (lruvec, page_type) = (cluster.lruvec, cluster.page_type);
        if cluster.count == 0 {
            return 0;
        }
        let looked_at = self.isolate(cluster, scan);
        let scratch = &mut scan.scratch;
        for &pfn in &scratch.isolated {
            let to = match self.judge(pfn, cluster, scan.control, &mut scratch.seen).0 {
                Fate::Cull => Placement::Unevictable,
                Fate::Stay { to, credit } => {
                    self.cache.replace_credit(pfn, credit);
                    match cluster.is_last_resort() {
                        true => Placement::Inactive,
                        false => to.into(),
                    }
                }
                Fate::Evict | Fate::EvictClean => Placement::Inactive,
            };
            if to == Placement::Inactive {
                self.cache.set_flag(pfn, PageFlag::Workingset);
            }
            scratch.putback.push((pfn, to));
        }
        debug_assert_eq!(
            scratch.putback.len(),
            scratch.isolated.len(),
            "each isolated page is put back"
        );
        let count = |place| {
            scratch
                .putback
                .iter()
                .filter(|(_, to)| *to == place)
                .count() as u64
        };
        scratch.seen.clear();
        let (deactivated, rotated) = (count(Placement::Inactive), count(Placement::Active));
        self.put_back_all(cluster, scratch);
        self.note_settled(cluster, cluster.count);
        lruvec.note_cost(page_type, 0, rotated);
        self.stats.count_aged(
            lruvec.group(),
            scan.control.account(),
            looked_at,
            deactivated,
        );
        looked_at
    }

    /// Decides for each isolated page: to evict it, to write it back before, or its placement.
    fn sort_isolated(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>) {
        scan.scratch.candidates.clear();
        scan.scratch.dirty.clear();
        for nth in 0..scan.scratch.isolated.len() {
            let pfn = scan.scratch.isolated[nth];
            match self.sort(pfn, cluster, scan) {
                Sorted::Stays(place) => scan.scratch.putback.push((pfn, place)),
                Sorted::Clean => self.make_candidate(pfn, cluster, scan),
                Sorted::Dirty => scan.scratch.dirty.push(pfn),
            }
        }
        let Scratch {
            isolated,
            candidates,
            putback,
            dirty,
            ..
        } = &scan.scratch;
        debug_assert_eq!(
            putback.len() + candidates.len() + dirty.len(),
            isolated.len(),
            "each isolated page is put back, a candidate, or written back"
        );
    }

    /// Clears the entries of a page that is to be evicted, or puts it back if that cannot be.
    fn make_candidate(&self, pfn: Pfn, cluster: &Cluster<'_>, scan: &mut Scan<'_>) {
        match self.unmap(pfn, cluster.round.level, scan.control) {
            true => scan.scratch.candidates.push(pfn),
            false => scan.scratch.putback.push((pfn, self.side_of(pfn).into())),
        }
    }

    fn sort(&self, pfn: Pfn, cluster: &Cluster<'_>, scan: &mut Scan<'_>) -> Sorted {
        if self.cache.has_flag(pfn, PageFlag::Unevictable) {
            return Sorted::Stays(Placement::Unevictable);
        }
        // Before its accesses are checked: it cannot be evicted now, and the accesses count the
        // next time.
        if self.awaits_writeback(pfn, scan) {
            return Sorted::Stays(Placement::Active);
        }
        match self.judge(pfn, cluster, scan.control, &mut scan.scratch.seen) {
            (Fate::Cull, _) => Sorted::Stays(Placement::Unevictable),
            // At the last priority, the request for memory outweighs recent accesses.
            (_, entries) if cluster.is_last_resort() && entries != Referenced::Contended => {
                self.sort_evictable(pfn, cluster, scan)
            }
            (Fate::Stay { to, credit }, _) => {
                self.cache.replace_credit(pfn, credit);
                Sorted::Stays(to.into())
            }
            (Fate::EvictClean, _) if self.cache.is_dirty(pfn) => {
                Sorted::Stays(self.side_of(pfn).into())
            }
            (Fate::Evict | Fate::EvictClean, _) => self.sort_evictable(pfn, cluster, scan),
        }
    }

    /// Decides whether a page that is to be evicted has to be written back before. It stays if the
    /// pass takes clean pages alone, or clean pages of files first.
    fn sort_evictable(&self, pfn: Pfn, cluster: &Cluster<'_>, scan: &mut Scan<'_>) -> Sorted {
        if !self.cache.is_dirty(pfn) {
            return Sorted::Clean;
        }
        let is_spared = !scan.writes_dirty && cluster.page_type == PageType::File;
        if is_spared || scan.control.actor == Actor::Clean {
            scan.has_spared_dirty |= is_spared;
            return Sorted::Stays(self.side_of(pfn).into());
        }
        Sorted::Dirty
    }

    /// Returns the decision for an isolated page, the policy's or LRU's, and the state of its
    /// entries; clears its marks. Accesses count as far as they are by the group that is short.
    fn judge(
        &self,
        pfn: Pfn,
        cluster: &Cluster<'_>,
        control: &ScanControl<'_>,
        seen: &mut ScanNotes,
    ) -> (Fate, Referenced) {
        let page_type = cluster.page_type;
        let entries = self.look(pfn, cluster.round.level, control.within());
        let copies = self.cache.take_copies(pfn);
        let young = match entries {
            Referenced::Seen { young, .. } => young,
            Referenced::Contended => 0,
        };
        if young + copies > 0 {
            seen.touched.push(pfn);
        }
        let look = Look {
            entries,
            credit: self.cache.replace_credit(pfn, 0) + copies,
            page_type,
        };
        let side = self.side_of(pfn);
        let fate = match (cluster.from, entries) {
            (ScanFrom::Oldest, Referenced::Seen { locked: false, .. }) => match young + copies {
                0 => Fate::Evict,
                _ => Fate::Stay {
                    to: side,
                    credit: (look.credit + young).min(self.policy.accesses_max()),
                },
            },
            _ => {
                let state = cluster.lruvec.policy_state(page_type);
                let lens = cluster.lruvec.sizes().lens(page_type);
                self.policy.judge(state, lens, side, look)
            }
        };
        (fate, entries)
    }

    /// Returns whether an isolated page is under write-back: it is then activated until its writer
    /// has [rotated](Self::rotate) it.
    fn awaits_writeback(&self, pfn: Pfn, scan: &mut Scan<'_>) -> bool {
        let Some(was_awaited) = self.cache.await_writeback(pfn) else {
            return false;
        };
        // The thread has gone through both lists before the storage has taken the page.
        if was_awaited && scan.control.actor == Actor::Background {
            self.stats.nr_vmscan_immediate.add(1);
        }
        // Its latch is held: count it as held for requests that find nothing else.
        scan.outcome.nr_borrowed += 1;
        true
    }

    /// Writes the dirty pages of a cluster back, and makes those candidates that are clean then;
    /// returns how many were written.
    fn write_dirty(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>) -> u64 {
        scan.scratch.candidates.clear();
        scan.scratch.nr_written = 0;
        for nth in 0..scan.scratch.dirty.len() {
            let pfn = scan.scratch.dirty[nth];
            match self.clean(pfn, scan) {
                Ok(()) => self.make_candidate(pfn, cluster, scan),
                Err(place) => scan.scratch.putback.push((pfn, place)),
            }
        }
        let Scratch {
            candidates,
            putback,
            dirty,
            nr_written,
            ..
        } = &scan.scratch;
        debug_assert_eq!(
            candidates.len() + putback.len(),
            dirty.len(),
            "each dirty page is put back or a candidate"
        );
        *nr_written
    }

    /// Writes a dirty page back; returns its placement if that fails.
    fn clean(&self, pfn: Pfn, scan: &mut Scan<'_>) -> Result<(), Placement> {
        let woken = &mut scan.scratch.evict.woken;
        match self.cache.try_write_back(pfn, woken) {
            // This thread has isolated it, so no other can await it.
            Ok(WrittenBack::Written | WrittenBack::Awaited(_)) => {
                self.stats.nr_vmscan_write.add(1);
                scan.scratch.nr_written += 1;
                debug_assert!(
                    scan.scratch.nr_written <= scan.scratch.isolated.len() as u64,
                    "{pfn}: more pages were written back than isolated"
                );
                Ok(())
            }
            // A page whose latch is held will not be evicted.
            Ok(WrittenBack::Clean | WrittenBack::Latched) => Ok(()),
            // Its log has to be asked first, by a thread that holds no page isolated.
            Ok(WrittenBack::HeldUp) => {
                scan.outcome.nr_wal_blocked += 1;
                Err(Placement::Active)
            }
            // No free swap slot: it stays.
            Ok(WrittenBack::NoSlot) => Err(Placement::Active),
            Err(error) => {
                self.note_write_failed(&error);
                scan.outcome.nr_write_failed += 1;
                scan.outcome.write_error = Some(error);
                // Activated: an immediate retry would most likely fail again.
                Err(Placement::Active)
            }
        }
    }

    /// Counts and reports a page that reclaim could not write back.
    pub fn note_write_failed(&self, error: &WriteBackError) {
        if let Some(times) = self.stats.nr_vmscan_write_failed.recur() {
            tracing::warn!(%error, times, "write-back failed in reclaim, the page stays dirty");
        }
    }

    /// Evicts the candidates, and puts back those that are pinned or latched.
    fn evict_candidates(&self, cluster: &Cluster<'_>, scan: &mut Scan<'_>) {
        let (scratch, outcome) = (&mut scan.scratch, &mut scan.outcome);
        let (lruvec, short) = (cluster.lruvec, &cluster.round.home);
        let leave = |evicted: &[Evicted]| self.leave_shadows(lruvec, short, evicted);
        self.cache
            .evict_leaving(&scratch.candidates, &mut scratch.evict, leave);
        for &(pfn, kept) in &scratch.evict.kept {
            debug_assert!(
                kept != Kept::Busy,
                "{pfn}: another thread has an isolated page"
            );
            outcome.nr_borrowed += 1;
            // In use. On the inactive list, enough of these would keep the active list from ever
            // being aged, and hide the evictable pages there.
            scratch.putback.push((pfn, Placement::Active));
        }
    }

    /// Uncharges and frees evicted pages; returns the number of frames. No lock is held.
    pub(super) fn free_evicted(&self, batch: &mut EvictBatch) -> Pages {
        let mut freed = Pages::ZERO;
        for evicted in batch.evicted.drain(..) {
            let item = pages_item(evicted.key.file().kind());
            let frames = evicted.frame.order().pages();
            self.groups.add_stat(evicted.group, item, -signed(frames.0));
            self.groups.uncharge(evicted.group, frames.bytes());
            self.pool.free_of_page(evicted.frame);
            freed += frames;
        }
        freed
    }
}
