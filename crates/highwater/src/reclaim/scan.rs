//! One reclaim pass: which lists are scanned, and how much of them, until enough pages are free.
//!
//! A pass goes through priorities: at priority `p` each group gives 1/2^p of its lists (module
//! `balance`), beginning where that is a few hundred pages of the pool. It ends when enough is
//! free. Direct reclaim for the whole pool takes the first round whole, where that is a small part
//! of the pool: the background thread is behind. The background thread goes on until the pool has
//! its high watermark, and stays at a priority while a round frees something and looks at as many
//! pages as that watermark has.
//!
//! A pass that has freed nothing begins anew, each once: with the pages of all add batches; with
//! active pages, if some were spared; with what is protected by `low`.
//!
//! Source: frames-and-reclaim specification, 9.5 to 9.7 and 15. Deviations: what is left of a
//! group's share when enough is free is left to whoever reclaims next, instead of being cut; so
//! small goals are shared in proportion too. The background thread ends in the middle of a round
//! when the watermark is reached. At the last priority, accesses are not heeded, and every list is
//! scanned twice, so that whoever needs memory gets it while others read.

use super::balance::{ScanCounts, ScanInput, Swappiness};
use super::cursor::Visit;
use super::lists::PageType;
use super::lruvec::Lruvec;
use super::pass::{Pass, Turn};
use super::rmap::Level;
use super::shrink::Scratch;
use super::stats::Account;
use super::{ListSizes, LruvecRef, Reclaim};
use crate::cache::WriteBackError;
use crate::group::GroupNode;
use crate::sync::atomic::Ordering;
use crate::units::Pages;

/// Rounds that direct reclaim takes whole are at most this part of the pool. Chosen: what a round
/// frees beyond the goal lies idle, and small pools have no memory for that.
const WHOLE_ROUND_FRACTION: u64 = 128;

/// Who reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The background thread (kswapd).
    Background,
    /// The thread that needs the memory.
    Direct,
    /// A thread that polls futures, for one that needs the memory: it never sleeps. Counted as
    /// direct reclaim.
    Polled,
    /// Whoever asks for pages to go, without need. Counted as direct reclaim, as in the kernel.
    Requested,
}

/// What a pass is to achieve.
#[derive(Clone, Debug)]
pub struct ScanControl<'a> {
    /// Pages to free. For the background thread, at most; its pass ends when the pool has its high
    /// watermark.
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

impl ScanControl<'_> {
    /// Whether the whole pool is short.
    pub(super) fn is_pool_wide(&self) -> bool {
        self.target.parent().is_none()
    }

    /// On whose account it is counted.
    pub(super) fn account(&self) -> Account {
        Account {
            is_background: self.actor == Actor::Background,
            is_pool_wide: self.is_pool_wide(),
        }
    }
}

/// What a pass achieved.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Pages examined on inactive lists.
    pub nr_scanned: u64,
    /// Pages freed.
    pub nr_reclaimed: u64,
    /// Clusters of groups that were looked at for that.
    pub nr_steps: u64,
    /// Pages that stayed because somebody read them or held their latch.
    pub nr_borrowed: u64,
    /// Pages that could not be written back, and why the last one could not.
    pub nr_write_failed: u64,
    /// The last write-back error.
    pub write_error: Option<WriteBackError>,
}

/// The state of one pass.
pub(super) struct Scan<'a> {
    pub(super) control: &'a ScanControl<'a>,
    pass: Pass<'a>,
    pub(super) scratch: Scratch,
    pub(super) outcome: Outcome,
    /// Whether active pages are looked at whatever the lists' lengths are.
    forces_deactivation: bool,
    /// Whether active pages were spared.
    has_spared_active: bool,
    has_drained: bool,
    /// Whether it has waited for pages in others' hands.
    pub(super) has_waited: bool,
}

/// What the lists of each group are scanned by in one round.
pub(super) struct Round {
    pub(super) level: Level,
    /// Lists of the target, which the cursor is kept with.
    pub(super) home: LruvecRef,
    /// What every group has in common.
    input: ScanInput,
}

/// Part of one group's lists, scanned at once.
pub(super) struct Step {
    pub(super) lruvec: LruvecRef,
    /// At most a cluster of each list.
    pub(super) counts: ScanCounts,
    /// Pages that may go before the group is protected: one at least.
    pub(super) exposed: u64,
    /// Whether a cluster of active anonymous pages is aged besides.
    pub(super) trims_anon: bool,
}

impl Scan<'_> {
    fn finds_none(&self) -> bool {
        self.outcome.nr_reclaimed == 0 && self.control.nr_to_reclaim > Pages::ZERO
    }
}

impl Reclaim {
    /// Scans the lists of a target and its descendants, at growing priority, until `nr_to_reclaim`
    /// pages are free or everything was looked at that is not protected. What is protected by `low`
    /// alone is looked at if that has freed nothing.
    ///
    /// # Cost
    ///
    /// Bounded: at priority `p` it scans at most 1/2^p of the target's pages, down to `p` = 0, and
    /// goes through the priorities four times at most. Writes dirty pages back (I/O). Allocates its
    /// buffers, a few hundred bytes, outside all locks. Where any group has a `min` or a `low`,
    /// also [`GroupNode::protection_below`] for each group that it comes to.
    pub fn shrink(&self, control: &ScanControl<'_>) -> Outcome {
        let mut scan = Scan {
            control,
            pass: Pass::new(control, &self.groups),
            scratch: Scratch::default(),
            outcome: Outcome::default(),
            // Who begins at the last priority wants everything to go.
            forces_deactivation: control.first_priority == Some(0),
            has_spared_active: false,
            has_drained: false,
            has_waited: false,
        };
        self.batches.drain(|batch| self.spill(batch));
        self.scan_lists(&mut scan);
        while scan.finds_none() && self.tries_harder(&mut scan) {
            self.scan_lists(&mut scan);
        }
        self.note_efficiency(scan.outcome.nr_reclaimed, scan.outcome.nr_scanned);
        if let Some(home) = self.lruvecs.of(control.target) {
            home.see_refaults();
        }
        scan.outcome
    }

    /// Whether there is something that the pass has not looked at yet.
    ///
    /// Progress: batches are drained once, active pages forced once on each side of `low`, which is
    /// passed once.
    fn tries_harder(&self, scan: &mut Scan<'_>) -> bool {
        if !std::mem::replace(&mut scan.has_drained, true) && self.drain_batches() > 0 {
            return true;
        }
        if std::mem::take(&mut scan.has_spared_active) && !scan.forces_deactivation {
            scan.forces_deactivation = true;
            return true;
        }
        scan.forces_deactivation = scan.control.first_priority == Some(0);
        scan.pass.deepen()
    }

    fn has_enough(&self, scan: &Scan<'_>) -> bool {
        let is_balanced = || self.pool.nr_free() >= self.pool.watermarks().high;
        scan.outcome.nr_reclaimed >= scan.control.nr_to_reclaim.0
            || (scan.control.actor == Actor::Background
                && scan.outcome.nr_reclaimed > 0
                && is_balanced())
    }

    /// Once through the priorities.
    fn scan_lists(&self, scan: &mut Scan<'_>) {
        let is_direct = matches!(scan.control.actor, Actor::Direct | Actor::Polled);
        if is_direct && scan.control.is_pool_wide() {
            self.stats.allocstall.add(1);
        }
        let first = scan.control.first_priority;
        let first = first.unwrap_or_else(|| self.first_priority());
        let mut priority = first;
        loop {
            let (scanned, reclaimed) = (scan.outcome.nr_scanned, scan.outcome.nr_reclaimed);
            self.scan_round(scan, Level { priority, first });
            if self.has_enough(scan) {
                return;
            }
            let (scanned, reclaimed) = (
                scan.outcome.nr_scanned - scanned,
                scan.outcome.nr_reclaimed - reclaimed,
            );
            // Ends: each such round frees a part of what is to be freed.
            let gives = reclaimed > 0 && scanned >= self.pool.watermarks().high.0;
            if scan.control.actor == Actor::Background && gives {
                continue;
            }
            if priority == 0 {
                return;
            }
            priority -= 1;
        }
    }

    /// Once through the lists that the pass accepts, at one priority.
    fn scan_round(&self, scan: &mut Scan<'_>, level: Level) {
        let Some(round) = self.prepare(scan, level) else {
            return;
        };
        let Level { priority, first } = level;
        self.stats.count_round(priority);
        // At the last priority twice: the first round may only take marks away.
        let rounds = if priority == 0 { 2 } else { 1 };
        let mut budget = self.lruvecs.sum_of(
            |lruvec| scan.pass.accepts(lruvec),
            |lruvec| round.counts(lruvec, lruvec.sizes()).total(),
        );
        budget = (budget * rounds).max(self.cluster(scan.control.actor));
        let takes_whole = priority == first && self.takes_whole_round(scan.control, budget);
        while budget > 0 && (takes_whole || !self.has_enough(scan)) {
            let Some(step) = self.next_step(&round, scan) else {
                break;
            };
            let looked = self.shrink_step(&round, &step, scan);
            self.note_looked(scan.control.actor, looked);
            scan.outcome.nr_steps += 1;
            budget = budget.saturating_sub(looked.max(1));
        }
    }

    fn takes_whole_round(&self, control: &ScanControl<'_>, budget: u64) -> bool {
        let is_small = budget <= self.pool.managed().0 / WHOLE_ROUND_FRACTION;
        control.actor == Actor::Direct && control.is_pool_wide() && is_small
    }

    /// Where scanning starts: 1/2^p of the pool is about 700 pages, but at least a quarter of a
    /// small one is looked at at once.
    pub(super) fn first_priority(&self) -> u32 {
        let frames = self.pool.managed().0.max(1);
        frames.ilog2().saturating_sub(9).max(2)
    }

    /// What a round goes by; `None` when the target is gone. Notes whether it spares active pages.
    fn prepare(&self, scan: &mut Scan<'_>, level: Level) -> Option<Round> {
        let priority = level.priority;
        let home = self.lruvecs.of(scan.control.target)?;
        let sizes = home.subtree_sizes();
        // Which list is looked at is said by the policy, if there is one.
        let is_one_list = self.policy.is_some();
        let may_deactivate = PageType::ALL.map(|page_type| {
            scan.forces_deactivation
                || !is_one_list && sizes.inactive_is_low(page_type, self.inactive_ratio)
                || home.has_new_workingset(page_type)
        });
        for page_type in PageType::ALL {
            let active = sizes.of(page_type.active());
            scan.has_spared_active |=
                !is_one_list && !may_deactivate[page_type as usize] && active.0 >> priority > 0;
        }
        let file = sizes.of_type(PageType::File) + self.pool.nr_free();
        let inactive_anon = match is_one_list {
            true => sizes.of_type(PageType::Anon),
            false => sizes.inactive_anon,
        };
        let file_is_tiny = scan.control.is_pool_wide()
            && file <= self.pool.watermarks().high
            && !may_deactivate[PageType::Anon as usize]
            && inactive_anon.0 >> priority > 0;
        let input = ScanInput {
            sizes,
            priority,
            // Relaxed: a setting.
            swappiness: Swappiness::Everywhere(self.swappiness.load(Ordering::Relaxed)),
            has_swap: self.has_swap(),
            is_group_reclaim: !scan.control.is_pool_wide(),
            file_is_tiny,
            may_deactivate,
            is_one_list,
            inactive_ratio: self.inactive_ratio,
            costs: home.costs(),
        };
        Some(Round { level, home, input })
    }

    /// The lists that are scanned next for a target, and how many of their pages.
    ///
    /// Progress: a group that is protected is passed over once, and not accepted again.
    fn next_step(&self, round: &Round, scan: &mut Scan<'_>) -> Option<Step> {
        loop {
            let (visit, lruvec) = self.peek(round, &scan.pass)?;
            // Without the cursor: what a group is worth takes the lock of the tree.
            if let Turn::Scan { size, exposed } = scan.pass.judge(&lruvec) {
                let sizes = lruvec.sizes();
                let share = round.counts(&lruvec, sizes.scaled(Pages(size)));
                let mut cursor = round.home.cursor.lock();
                let counts = cursor.take(visit, share, self.cluster(scan.control.actor));
                drop(cursor);
                let trims_anon = round.input_for(&lruvec, sizes).trims_anon();
                let exposed = exposed.max(1);
                let counts = counts.at_most(exposed);
                return Some(Step {
                    lruvec,
                    counts,
                    exposed,
                    trims_anon,
                });
            }
        }
    }

    /// Where the reclaimers of a target go on: the next group that has pages of which this round
    /// looks at any. Others would use up what the round may look at.
    fn peek(&self, round: &Round, pass: &Pass<'_>) -> Option<(Visit, LruvecRef)> {
        let gives = |lruvec: &Lruvec| {
            pass.accepts(lruvec) && round.counts(lruvec, lruvec.sizes()).total() > 0
        };
        let cursor = round.home.cursor.lock();
        let (at, lruvec) = self.lruvecs.next_from(cursor.next_at(), gives)?;
        Some((cursor.visit(at), lruvec))
    }
}

impl Round {
    /// Pages of each list of a group to look at: one at least, if there is any that may be. Under a
    /// policy, of each type, as if all were on its inactive list.
    fn counts(&self, lruvec: &Lruvec, sizes: ListSizes) -> ScanCounts {
        self.input_for(lruvec, sizes).counts()
    }

    fn input_for(&self, lruvec: &Lruvec, sizes: ListSizes) -> ScanInput {
        let of_group = lruvec.swappiness().map(Swappiness::Group);
        ScanInput {
            sizes,
            swappiness: of_group.unwrap_or(self.input.swappiness),
            ..self.input
        }
    }
}
