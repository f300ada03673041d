//! The kernel's per-CPU charge stock (`memcg_stock_pcp`): groups below one parent, in three forms.
//!
//! A charge takes pages from its CPU's stock for its group. If that has too few, it charges a batch
//! of 64 to the counters of the group and its ancestors, and keeps the rest. A stock has room for
//! few groups; if it is full, one of them gives way, and its pages go back to the counters. What is
//! uncharged goes to the counters at once.
//!
//! Source: accounting spec 8.3: one slot before Linux 6.16, 7 slots since, of which a random one
//! gives way; and the proposal of 2026 of a stock in each `page_counter`, where none does.
//! Deviation: no limits and no drains on failure, since the question is what is parked.

/// Pages of a batch, and the most that a slot keeps.
pub const CHARGE_BATCH: u64 = 64;

/// Where the stocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockSlots {
    /// That many slots for each CPU, shared by all groups.
    OfCpu(usize),
    /// One for each CPU of each group.
    OfCounter,
}

/// A slot: pages of one group that are charged and not used.
#[derive(Clone, Copy, Debug)]
struct Slot {
    group: usize,
    pages: u64,
}

/// Groups below one parent, and the stocks of all CPUs.
#[derive(Debug)]
pub struct StockedGroups {
    slots: StockSlots,
    /// By CPU.
    stocks: Vec<Vec<Slot>>,
    /// By group: charged pages, used or in a stock.
    charged: Vec<u64>,
    rng: fastrand::Rng,
    walks: u64,
}

impl StockedGroups {
    /// Returns groups that use nothing.
    #[must_use]
    pub fn new(slots: StockSlots, nr_groups: usize, nr_cpus: usize, seed: u64) -> Self {
        Self {
            slots,
            stocks: vec![Vec::new(); nr_cpus],
            charged: vec![0; nr_groups],
            rng: fastrand::Rng::with_seed(seed),
            walks: 0,
        }
    }

    /// Charges `pages` to a group on a CPU.
    pub fn charge(&mut self, cpu: usize, group: usize, pages: u64) {
        let found = self.stocks[cpu].iter_mut().find(|slot| slot.group == group);
        if let Some(slot) = found
            && slot.pages >= pages
        {
            slot.pages -= pages;
            return;
        }
        let batch = pages.max(CHARGE_BATCH);
        self.walks += 1;
        self.charged[group] += batch;
        self.keep(cpu, group, batch - pages);
    }

    /// Uncharges `pages` of a group.
    ///
    /// # Panics
    ///
    /// When fewer are charged.
    pub fn uncharge(&mut self, group: usize, pages: u64) {
        let charged = &mut self.charged[group];
        *charged = charged
            .checked_sub(pages)
            .expect("uncharged what was charged");
    }

    /// Puts charged pages into a CPU's stock.
    fn keep(&mut self, cpu: usize, group: usize, pages: u64) {
        let stock = &mut self.stocks[cpu];
        let nth = match stock.iter().position(|slot| slot.group == group) {
            Some(nth) => nth,
            None => {
                let is_full = matches!(self.slots, StockSlots::OfCpu(nr) if stock.len() >= nr);
                if is_full {
                    let Slot { group, pages } = stock.swap_remove(self.rng.usize(..stock.len()));
                    self.charged[group] -= pages;
                }
                stock.push(Slot { group, pages: 0 });
                stock.len() - 1
            }
        };
        let slot = &mut stock[nth];
        slot.pages += pages;
        if slot.pages > CHARGE_BATCH {
            self.charged[group] -= slot.pages;
            slot.pages = 0;
        }
    }

    /// Returns how often a charge walked up to the root.
    #[must_use]
    pub fn walks(&self) -> u64 {
        self.walks
    }

    /// Returns the pages in all stocks.
    #[must_use]
    pub fn parked(&self) -> u64 {
        self.stocks.iter().flatten().map(|slot| slot.pages).sum()
    }

    /// Returns the pages charged to all groups, parked ones included: the parent's usage.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.charged.iter().sum()
    }

    /// Returns the most that the stocks could have parked now, at the parent: 64 pages for each
    /// slot in use.
    #[must_use]
    pub fn parked_max(&self) -> u64 {
        let slots: usize = self.stocks.iter().map(Vec::len).sum();
        slots as u64 * CHARGE_BATCH
    }

    /// Returns the same of the group that has most.
    #[must_use]
    pub fn parked_max_of_any(&self) -> u64 {
        let mut slots = vec![0; self.charged.len()];
        for slot in self.stocks.iter().flatten() {
            slots[slot.group] += CHARGE_BATCH;
        }
        slots.into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pages are conserved and no slot keeps more than a batch, in all three forms. Method:
    /// random charges and uncharges; what is charged is what is used and what is parked.
    #[test]
    fn stocks_conserve_pages() {
        for slots in [
            StockSlots::OfCpu(1),
            StockSlots::OfCpu(7),
            StockSlots::OfCounter,
        ] {
            let mut rng = fastrand::Rng::with_seed(3);
            let mut groups = StockedGroups::new(slots, 20, 4, 1);
            let mut used = [0; 20];
            for _ in 0..20_000 {
                let (cpu, group, pages) = (rng.usize(..4), rng.usize(..20), rng.u64(1..100));
                if used[group] >= pages {
                    groups.uncharge(group, pages);
                    used[group] -= pages;
                } else {
                    groups.charge(cpu, group, pages);
                    used[group] += pages;
                }
                assert_eq!(groups.charged(), used.iter().sum::<u64>() + groups.parked());
                assert!(groups.parked() <= groups.parked_max());
            }
            let per_cpu = match slots {
                StockSlots::OfCpu(nr) => nr as u64,
                StockSlots::OfCounter => 20,
            };
            assert!(groups.parked_max() <= 4 * per_cpu * CHARGE_BATCH);
            assert!(groups.walks() > 0);
        }
    }
}
