//! One reclaim pass: priorities and rounds until enough pages are free (`shrink_node`).
//!
//! A pass goes through priorities: at priority `p` each group scans 1/2^p of its lists (module
//! `balance`), beginning where that is a few hundred pages of the pool. It ends when enough pages
//! are free. The background thread continues until the pool has its high watermark, and stays at a
//! priority while a round frees something and scans as many pages as that watermark.
//!
//! A group whose share is small gives several shares at once, in one of as many laps of the cursor:
//! a step has a fixed cost, and many groups would each pay it for a page.
//!
//! A pass that has freed nothing starts again, once each: with the pages of all add batches; with
//! active pages, if some were spared; with pages protected by `low`.
//!
//! Source: frames-and-reclaim specification, 9.5 to 9.7 and 15. Deviations: when enough is free,
//! the rest of a group's share is left to the next reclaimer, instead of being cut; so small goals
//! are shared in proportion too. Direct reclaim of the whole pool stops there as well, unless the
//! policy is the kernel's, which [completes](super::policy::EvictionPolicy::completes_rounds) the
//! first round: a read would wait until hundreds of pages are evicted. The background thread ends
//! in the middle of a round when the watermark is reached. The last priority ignores accesses and
//! scans every list twice, so that a request gets memory even while other threads read.

use std::time::Duration;

use super::balance::{ScanCounts, ScanInput, Swappiness};
use super::control::{Actor, Outcome, PassPriority, ScanControl};
use super::cursor::{Visit, VisitTaken};
use super::lists::PageType;
use super::lruvec::Lruvec;
use super::pass::{Pass, Turn};
use super::round::{Budget, Round, Scan, Scratch, Step};
use super::sizes::ListSizes;
use super::{LruvecRef, Reclaim};
use crate::group::{StatItem, Tolerance};
use crate::sync::atomic::Ordering;
use crate::units::{Order, Pages};

/// Under the kernel's policy, direct reclaim completes a round only up to this part of the pool.
/// Chosen: pages freed beyond the goal are idle, and small pools have no memory for that.
const WHOLE_ROUND_FRACTION: u64 = 128;

/// The part of a group's pages that it gives in a turn, if its share is less. Chosen: a group of a
/// few hundred pages gives a dozen.
const TURN_FRACTION: u64 = 16;

/// Visits to groups after which one gives its share though it is not its turn, and after which a
/// reclaimer does not care any more that others move the cursor. Chosen: turns of groups alike, one
/// after the other in the table, are less than three times a cluster apart.
const VISITS_MAX: u64 = 96;

impl Reclaim {
    /// Scans the lists of a target and its descendants, at increasing priority, until
    /// `nr_to_reclaim` pages are free or every unprotected page was scanned. Pages protected by
    /// `low` alone are scanned if that has freed nothing.
    ///
    /// # Cost
    ///
    /// Bounded: at priority `p` it scans at most 1/2^p of the target's pages, a page of each group,
    /// or a cluster, whichever is most, and twice that at `p` = 0, where it ends. It goes through
    /// the priorities at most six times. For each cluster of a group it visits 192 others at most,
    /// beside protected ones and groups that have no pages to give, and a round that frees too
    /// little reads the sizes of all. Writes dirty pages back (I/O). Allocates its buffers, a few
    /// hundred bytes, outside all locks. If any group has a `min` or a `low`, also
    /// `GroupNode::protection_below` for each group that it visits.
    pub fn shrink(&self, control: &ScanControl<'_>) -> Outcome {
        let mut scan = Scan {
            control,
            pass: Pass::new(control, &self.groups, self.cache.order_max().pages()),
            scratch: Scratch::default(),
            outcome: Outcome::default(),
            // A pass that starts at the last priority evicts everything.
            forces_deactivation: control.first_priority == Some(0),
            has_spared_active: false,
            has_drained: false,
            has_waited: false,
            writes_dirty: self.writes_dirty_at_once(control),
            has_spared_dirty: false,
        };
        self.batches.drain(|batch| self.spill(batch));
        self.scan_lists(&mut scan);
        while scan.finds_none() && self.tries_harder(&mut scan) {
            self.scan_lists(&mut scan);
        }
        debug_assert!(
            scan.outcome.nr_evicted <= scan.outcome.nr_scanned,
            "nothing is evicted that was not scanned"
        );
        self.note_efficiency(scan.outcome.nr_evicted, scan.outcome.nr_scanned);
        if let Some(home) = self.lruvecs.of(control.target) {
            home.see_refaults();
        }
        scan.outcome
    }

    /// Returns whether a pass writes dirty pages of files back as it finds them. Beside a thread
    /// that writes back, a request does not wait for storage on behalf of others while at least
    /// half of the file pages that it may take are clean: it leaves dirty ones where they are.
    /// Without one it writes them: left alone, they would only make the cache smaller.
    ///
    /// Source: direct reclaim of Linux since 3.2, which leaves dirty file pages to the flusher
    /// threads. Deviation: a pass that finds nothing else writes them itself.
    fn writes_dirty_at_once(&self, control: &ScanControl<'_>) -> bool {
        let is_request = matches!(control.actor, Actor::Direct | Actor::Polled);
        // Relaxed: a hint.
        let has_writer = self.has_writer.load(Ordering::Relaxed);
        if !is_request || !has_writer {
            return true;
        }
        let Some(home) = self.lruvecs.of(control.target) else {
            return true;
        };
        let frames = self.file_frames(&home);
        let dirty = match control.is_pool_wide() {
            true => self.cache.nr_dirty().0,
            // Any staleness: a hint.
            false => {
                let item = StatItem::FileDirty;
                let read = control
                    .target
                    .read_stat(item, Tolerance::ANY, Duration::ZERO);
                u64::try_from(read.value).unwrap_or(0)
            }
        };
        dirty > frames.0 / 2
    }

    /// Returns the frames of the file pages of a target and its descendants: the lengths of the
    /// lists, unless there may be larger pages.
    fn file_frames(&self, home: &Lruvec) -> Pages {
        let sizes = match self.cache.order_max() {
            Order::ZERO => home.subtree_sizes(),
            _ => self.lruvecs.frames_below(home.group()),
        };
        sizes.of_type(PageType::File)
    }

    /// Returns whether something is left that the pass has not scanned.
    ///
    /// Progress: batches are drained once, active pages forced once on each side of `low`, dirty
    /// pages written from a certain round on, and `low` is passed once.
    fn tries_harder(&self, scan: &mut Scan<'_>) -> bool {
        debug_assert!(scan.finds_none(), "a pass that has freed pages is over");
        if !std::mem::replace(&mut scan.has_drained, true) && self.drain_batches() > 0 {
            return true;
        }
        if std::mem::take(&mut scan.has_spared_active) && !scan.forces_deactivation {
            scan.forces_deactivation = true;
            return true;
        }
        if std::mem::take(&mut scan.has_spared_dirty) && !scan.writes_dirty {
            scan.writes_dirty = true;
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

    /// Goes through the priorities once.
    fn scan_lists(&self, scan: &mut Scan<'_>) {
        let direct = [Actor::Direct, Actor::Polled, Actor::Clean];
        if direct.contains(&scan.control.actor) && scan.control.is_pool_wide() {
            self.stats.allocstall.add(1);
        }
        let first = scan.control.first_priority;
        let first = first.unwrap_or_else(|| self.first_priority());
        let mut priority = first;
        loop {
            let (scanned, evicted) = (scan.outcome.nr_scanned, scan.outcome.nr_evicted);
            scan.outcome.priority = priority;
            self.scan_round(scan, PassPriority { priority, first });
            if self.has_enough(scan) {
                return;
            }
            let (scanned, evicted) = (
                scan.outcome.nr_scanned - scanned,
                scan.outcome.nr_evicted - evicted,
            );
            debug_assert!(evicted <= scanned, "{evicted} pages evicted of {scanned}");
            // Terminates: each such round frees a part of the pages to free.
            let gives = evicted > 0 && scanned >= self.pool.watermarks().high.0;
            if scan.control.actor == Actor::Background && gives {
                continue;
            }
            if priority == 0 {
                return;
            }
            priority -= 1;
        }
    }

    /// Scans the lists that the pass accepts once, at one priority.
    fn scan_round(&self, scan: &mut Scan<'_>, level: PassPriority) {
        let Some(round) = self.prepare(scan, level) else {
            return;
        };
        let PassPriority { priority, first } = level;
        debug_assert!(
            priority <= first,
            "priority {priority} comes before {first}"
        );
        self.stats.count_round(priority);
        let mut budget = self.budget(&round, scan);
        let takes_whole = priority == first && self.takes_whole_round(scan.control, budget.pages);
        let mut looked = 0;
        while takes_whole || !self.has_enough(scan) {
            if looked >= budget.pages && !self.extends(&mut budget, looked, &round, &scan.pass) {
                break;
            }
            let Some(step) = self.next_step(&round, scan) else {
                break;
            };
            let looked_at = self.shrink_step(&round, &step, scan);
            #[cfg(feature = "lab")]
            self.note_looked(scan.control.actor, looked_at);
            scan.outcome.nr_steps += 1;
            looked += looked_at.max(1);
        }
    }

    /// Returns the pages that a round scans: the sum of all groups' shares, but a cluster at least.
    /// An estimate from the target's sizes is enough to begin with, as long as no group was passed
    /// over.
    fn budget(&self, round: &Round, scan: &Scan<'_>) -> Budget {
        let is_last = round.level.priority == 0;
        let is_exact = is_last || scan.pass.has_passed_over() || self.policy.completes_rounds();
        let pages = match is_exact {
            true => self.shares(round, &scan.pass),
            false => round.counts(&round.home, round.input.sizes).total(),
        };
        // Twice at the last priority: the first time may only clear marks.
        let times = if is_last { 2 } else { 1 };
        Budget {
            pages: (pages * times).max(self.cluster(scan.control.actor)),
            is_exact,
        }
    }

    /// Makes a budget exact after as many looks; returns whether any are left.
    fn extends(&self, budget: &mut Budget, looked: u64, round: &Round, pass: &Pass<'_>) -> bool {
        debug_assert!(
            looked >= budget.pages,
            "a budget is extended that is not used up"
        );
        if std::mem::replace(&mut budget.is_exact, true) {
            return false;
        }
        budget.pages = self.shares(round, pass);
        looked < budget.pages
    }

    /// Returns the sum of all groups' shares. Reads the sizes of each.
    fn shares(&self, round: &Round, pass: &Pass<'_>) -> u64 {
        self.lruvecs.sum_of(
            |lruvec| pass.accepts(lruvec),
            |lruvec| round.counts(lruvec, lruvec.sizes()).total(),
        )
    }

    fn takes_whole_round(&self, control: &ScanControl<'_>, budget: u64) -> bool {
        let is_small = budget <= self.pool.managed().0 / WHOLE_ROUND_FRACTION;
        let is_request = control.actor == Actor::Direct && control.is_pool_wide();
        self.policy.completes_rounds() && is_request && is_small
    }

    /// Returns the first priority: 1/2^p of the pool is about 700 pages, but at least a quarter of
    /// a small pool.
    pub(super) fn first_priority(&self) -> u32 {
        let frames = self.pool.managed().0.max(1);
        frames.ilog2().saturating_sub(9).max(2)
    }

    /// Returns the parameters of a round; `None` if the target was removed, or no page was ever
    /// charged below it. Records whether the round spares active pages.
    fn prepare(&self, scan: &mut Scan<'_>, level: PassPriority) -> Option<Round> {
        let priority = level.priority;
        let home = self.lruvecs.of(scan.control.target)?;
        let sizes = home.subtree_sizes();
        let may_deactivate = PageType::ALL.map(|page_type| {
            scan.forces_deactivation
                || self.policy.inactive_is_low(sizes.lens(page_type))
                || home.has_new_workingset(page_type)
        });
        for page_type in PageType::ALL {
            let lens = sizes.lens(page_type);
            let spared = lens.total().saturating_sub(self.policy.candidates(lens));
            scan.has_spared_active |= !may_deactivate[page_type as usize] && spared >> priority > 0;
        }
        let file = self.file_frames(&home) + self.pool.nr_free();
        let file_is_tiny = scan.control.is_pool_wide()
            && file <= self.pool.watermarks().high
            && !may_deactivate[PageType::Anon as usize]
            && self.policy.candidates(sizes.lens(PageType::Anon)) >> priority > 0;
        let input = ScanInput {
            sizes,
            priority,
            // Relaxed: a setting.
            swappiness: Swappiness::Everywhere(self.swappiness.load(Ordering::Relaxed)),
            has_swap: self.has_swap(),
            is_group_reclaim: !scan.control.is_pool_wide(),
            file_is_tiny,
            may_deactivate,
            ages: self.ages(),
            costs: home.costs(),
        };
        Some(Round { level, home, input })
    }

    /// Returns the next lists to scan for a target, with their scan counts.
    ///
    /// Progress: a protected group is skipped once, and not accepted again; of the others, one in
    /// twice `VISITS_MAX` gives pages at the latest.
    fn next_step(&self, round: &Round, scan: &mut Scan<'_>) -> Option<Step> {
        let (mut nr_passed, mut nr_late) = (0, 0);
        loop {
            let (visit, lruvec) = self.peek(round, &scan.pass)?;
            scan.outcome.nr_visits += 1;
            // Without the cursor's lock: evaluating protection takes the tree's lock.
            let Turn::Scan { size, exposed } = scan.pass.judge(&lruvec) else {
                continue;
            };
            let sizes = lruvec.sizes();
            let unprotected = sizes.scaled(Pages(size));
            let mut share = round.counts(&lruvec, unprotected);
            let every = self.laps_to_a_turn(round, scan, unprotected, share);
            let turn = (every, nr_passed >= VISITS_MAX);
            // A small goal leaves the rest of several shares.
            let goal = scan.control.nr_to_reclaim.0.max(share.total());
            let most = self.cluster(scan.control.actor).min(goal);
            let taken = round.home.cursor.lock().take(visit, share, turn, most);
            let counts = match taken {
                VisitTaken::Pages(counts) => counts,
                VisitTaken::NoTurn => {
                    nr_passed += 1;
                    debug_assert!(
                        nr_passed <= VISITS_MAX,
                        "a group that must give has no turn"
                    );
                    continue;
                }
                VisitTaken::Moved if nr_late < VISITS_MAX => {
                    nr_late += 1;
                    continue;
                }
                VisitTaken::Moved => share.take(most),
            };
            let trims_anon =
                self.has_swap() && self.policy.inactive_is_low(sizes.lens(PageType::Anon));
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

    /// Returns the number of laps in one of which a group gives the shares of all: as many as make
    /// a sixteenth of its pages, or a cluster if that is less. Where all that can be had is needed,
    /// it gives its share in each.
    fn laps_to_a_turn(
        &self,
        round: &Round,
        scan: &Scan<'_>,
        sizes: ListSizes,
        share: ScanCounts,
    ) -> u64 {
        let needs_all = round.level.priority == 0 || scan.pass.is_deep();
        if needs_all || self.policy.completes_rounds() {
            return 1;
        }
        let given = PageType::ALL
            .into_iter()
            .filter(|page_type| share.has(*page_type));
        let candidates = given.map(|page_type| self.policy.candidates(sizes.lens(page_type)));
        let part = candidates.sum::<u64>() / TURN_FRACTION;
        let at_once = self.cluster(Actor::Direct).min(part);
        (at_once / share.total().max(1)).max(1)
    }

    /// Returns the cursor's next group from which this round scans any pages. Other groups would
    /// use up the round's budget.
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
    /// Returns the pages of each list of a group to scan: at least one if any is eligible. Under a
    /// policy that evicts from both lists, of each type, as if all were on its inactive list.
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
