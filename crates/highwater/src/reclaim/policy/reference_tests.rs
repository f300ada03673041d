//! Eviction policies over many accesses: S3-FIFO and CAR against references with the stated
//! deviations, and that evicting ends.

use std::collections::{HashMap, VecDeque};

use super::tests::{SIDES, lens};
use super::*;
use crate::sync::Arc;

/// Two lists of pages without the mechanism: pages are evicted one at a time, and every access is
/// known at once.
struct Cache {
    policy: Arc<dyn EvictionPolicy>,
    state: PolicyState,
    capacity: u64,
    /// Heads first.
    lists: [VecDeque<u32>; 2],
    accesses: HashMap<u32, u32>,
    shadows: HashMap<u32, (Side, u64)>,
}

impl Cache {
    fn new(policy: Arc<dyn EvictionPolicy>, capacity: u64, start: u64) -> Self {
        Self {
            policy,
            state: PolicyState::starting_at(start),
            capacity,
            lists: Default::default(),
            accesses: HashMap::new(),
            shadows: HashMap::new(),
        }
    }

    fn lens(&self) -> Lens {
        let [inactive, active] = self.lists.each_ref().map(|list| list.len() as u64);
        let capacity = self.capacity;
        Lens {
            capacity,
            ..lens(inactive, active)
        }
    }

    /// Asks for a page to evict until one is; returns the page and how many were looked at.
    fn evict(&mut self) -> (u32, u64) {
        for nr_looks in 1..=10_000 {
            let lens = self.lens();
            let from = self.policy.next(&self.state, lens);
            let page = self.lists[from as usize]
                .pop_back()
                .expect("a list that has pages");
            let accesses = self.accesses.insert(page, 0).unwrap_or(0);
            match self.policy.decide(&self.state, lens, from, accesses) {
                Fate::Stay { to, credit } => {
                    self.accesses.insert(page, credit);
                    self.lists[to as usize].push_front(page);
                }
                Fate::Evict => {
                    self.accesses.remove(&page);
                    self.shadows.insert(page, (from, self.state.leave(from, 1)));
                    return (page, nr_looks);
                }
                other => panic!("{other:?} of a page that is neither locked nor dirty"),
            }
        }
        panic!("no page is evicted after 10,000 looks");
    }

    /// Accesses a page; returns whether it was resident.
    fn access(&mut self, page: u32) -> bool {
        if let Some(accesses) = self.accesses.get_mut(&page) {
            *accesses = (*accesses + 1).min(self.policy.accesses_max());
            return true;
        }
        while self.lens().total() >= self.capacity {
            self.evict();
        }
        let shadow = self.shadows.remove(&page);
        let departure = shadow.map(|(from, age)| self.state.departure(from, age));
        let to = self.policy.admit(&self.state, self.lens(), departure);
        self.lists[to as usize].push_front(page);
        self.accesses.insert(page, 0);
        false
    }
}

/// A page of a reference: its queue, the time at which it entered that, and its accesses.
struct Queued {
    page: u32,
    queue: Side,
    entered: u64,
    accesses: u32,
}

/// Queues of a reference: pages in no order, and the pages that left each queue in theirs.
#[derive(Default)]
struct Reference {
    pages: Vec<Queued>,
    left: [Vec<u32>; 2],
    /// Pages of each queue that are remembered; by CAR.
    memory: [usize; 2],
    /// Target length of the first queue; by CAR.
    target: usize,
    now: u64,
}

impl Reference {
    fn len(&self, queue: Side) -> usize {
        self.pages.iter().filter(|page| page.queue == queue).count()
    }

    /// Returns the page that has been longest in a queue.
    fn oldest(&self, queue: Side) -> usize {
        let all = 0..self.pages.len();
        let of_queue = all.filter(|&at| self.pages[at].queue == queue);
        of_queue
            .min_by_key(|&at| self.pages[at].entered)
            .expect("the queue has pages")
    }

    fn requeue(&mut self, at: usize, queue: Side, accesses: u32) {
        self.now += 1;
        let (page, entered) = (self.pages[at].page, self.now);
        self.pages[at] = Queued {
            page,
            queue,
            entered,
            accesses,
        };
    }

    fn enter(&mut self, page: u32, queue: Side) {
        self.now += 1;
        let (entered, accesses) = (self.now, 0);
        self.pages.push(Queued {
            page,
            queue,
            entered,
            accesses,
        });
    }

    fn evict(&mut self, at: usize) {
        let Queued { page, queue, .. } = self.pages.swap_remove(at);
        self.left[queue as usize].push(page);
    }

    /// Returns how many pages left a queue after the last departure of `page`, if it left there.
    fn others_since(&self, queue: Side, page: u32) -> Option<usize> {
        self.left[queue as usize]
            .iter()
            .rev()
            .position(|left| *left == page)
    }

    fn is_hit(&mut self, page: u32, most: u32) -> bool {
        let found = self.pages.iter_mut().find(|queued| queued.page == page);
        let Some(queued) = found else { return false };
        queued.accesses = (queued.accesses + 1).min(most);
        true
    }
}

/// S3-FIFO as published, with the memory that the module states.
fn s3_fifo(reference: &mut Reference, page: u32, capacity: usize, from: Option<Side>) -> bool {
    if reference.is_hit(page, 3) {
        return true;
    }
    let small = (capacity / 10).max(1);
    let nr_left = |reference: &Reference| reference.left[0].len() + reference.left[1].len();
    while reference.pages.len() >= capacity {
        let is_main_full = reference.len(Side::Active) > capacity - small;
        let queue = match is_main_full || reference.len(Side::Inactive) == 0 {
            true => Side::Active,
            false => Side::Inactive,
        };
        let at = reference.oldest(queue);
        match (queue, reference.pages[at].accesses) {
            (Side::Inactive, 2..) => reference.requeue(at, Side::Active, 0),
            (Side::Active, accesses @ 1..) => reference.requeue(at, queue, accesses - 1),
            _ => reference.evict(at),
        }
    }
    let since = match from {
        Some(Side::Inactive) => reference.others_since(Side::Inactive, page),
        _ => None,
    };
    let is_ghost = since.is_some_and(|others| others < capacity * 9 / 10);
    let is_first_fill = nr_left(reference) == 0 && reference.len(Side::Inactive) >= small;
    let queue = match is_ghost || is_first_fill {
        true => Side::Active,
        false => Side::Inactive,
    };
    reference.enter(page, queue);
    false
}

/// CAR as published, with the memory that the module states.
fn car(reference: &mut Reference, page: u32, capacity: usize, from: Option<Side>) -> bool {
    if reference.is_hit(page, 1) {
        return true;
    }
    while reference.pages.len() >= capacity {
        let is_first = reference.len(Side::Inactive) >= reference.target.max(1)
            || reference.len(Side::Active) == 0;
        let queue = if is_first {
            Side::Inactive
        } else {
            Side::Active
        };
        let at = reference.oldest(queue);
        if reference.pages[at].accesses > 0 {
            reference.requeue(at, Side::Active, 0);
        } else {
            reference.evict(at);
            reference.memory[queue as usize] += 1;
        }
    }
    let known = from.filter(|&queue| {
        let since = reference.others_since(queue, page);
        since.is_some_and(|others| others < reference.memory[queue as usize])
    });
    let [first, second] = reference.memory;
    match known {
        Some(Side::Inactive) => {
            let step = (second / first).max(1);
            reference.target = (reference.target + step).min(capacity);
            reference.memory[0] -= 1;
        }
        Some(Side::Active) => {
            reference.target = reference.target.saturating_sub((first / second).max(1));
            reference.memory[1] -= 1;
        }
        None if reference.len(Side::Inactive) + first >= capacity => {
            reference.memory[0] = first.saturating_sub(1);
        }
        None if reference.pages.len() + first + second >= 2 * capacity => {
            reference.memory[1] = second.saturating_sub(1);
        }
        None => {}
    }
    reference.enter(page, known.map_or(Side::Inactive, |_| Side::Active));
    false
}

type Step = fn(&mut Reference, u32, usize, Option<Side>) -> bool;

/// Compares a policy with its reference, access by access, and the queues at the end.
fn agree(kind: PolicyKind, reference: Step, random: &mut fastrand::Rng) {
    for capacity in [1, 2, 3, 9, 10, 11, 40, 100] {
        let mut cache = Cache::new(kind.policy(), capacity as u64, random.u64(..1 << 40));
        let mut model = Reference::default();
        let nr_pages = random.u32(2..4) * u32::try_from(capacity).expect("small") + 1;
        for nth in 0..4_000 {
            let page = random.u32(..nr_pages).min(random.u32(..nr_pages));
            let from = cache.shadows.get(&page).map(|&(from, _)| from);
            let is_hit = reference(&mut model, page, capacity, from);
            let context = format!("access {nth} to page {page}, capacity {capacity}, {kind}");
            assert_eq!(cache.access(page), is_hit, "{context}");
        }
        for side in SIDES {
            let of_side = model.pages.iter().filter(|page| page.queue == side);
            let mut queue: Vec<&Queued> = of_side.collect();
            queue.sort_by_key(|page| std::cmp::Reverse(page.entered));
            let queue = queue.iter().map(|page| page.page);
            assert!(
                queue.eq(cache.lists[side as usize].iter().copied()),
                "{side:?}"
            );
        }
    }
}

// Goal: S3-FIFO and CAR decide as published, with the one deviation that each module states: how
// long a page is remembered. Method: random accesses of two or three times the capacity, some pages
// more often than others, against queues that are searched instead of kept in order.
#[test]
fn s3_fifo_and_car_decide_as_published_but_for_their_memory() {
    let mut random = crate::seed::rng(81);
    agree(PolicyKind::S3Fifo, s3_fifo, &mut random);
    agree(PolicyKind::Car, car, &mut random);
}

// Goal: evicting from any two lists ends: a policy spares each page for no more rounds than it
// counts accesses, and one more to decide. Method: random lists, long and short, of pages with no
// to all accesses, emptied one page at a time; policies that age a list are never asked to.
#[test]
fn no_policy_spares_pages_for_ever() {
    let mut random = crate::seed::rng(82);
    for kind in PolicyKind::ALL
        .into_iter()
        .filter(|kind| !kind.policy().ages())
    {
        for _ in 0..100 {
            let sizes = [random.u32(..40), random.u32(..40)];
            let all = sizes[0] + sizes[1];
            let mut cache = Cache::new(kind.policy(), random.u64(1..100), 0);
            cache.state.set_target(random.u64(..60));
            if random.bool() {
                cache.state.begin_turn();
            }
            cache.lists = [(0..sizes[0]).collect(), (sizes[0]..all).collect()];
            let most = cache.policy.accesses_max();
            cache.accesses = (0..all).map(|page| (page, random.u32(..=most))).collect();
            for left in (1..=u64::from(all)).rev() {
                let (_, nr_looks) = cache.evict();
                let bound = (2 * u64::from(most) + 2) * left + 1;
                assert!(
                    nr_looks <= bound,
                    "{kind}: {nr_looks} looks at {left} pages"
                );
            }
            assert_eq!(cache.lens().total(), 0, "{kind}");
        }
    }
}
