//! Generated accesses: families that caches are known to handle well or badly, for a cache of any
//! size.
//!
//! A family is a rule, not a trace: its lengths are parts of the capacity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;
use highwater_lab::models::AccessTrace;

/// Accesses of a trace for each page of the capacity.
const TURNS: usize = 100;

/// First number of pages that are new at each request; pages of other families are below.
const NEW: u64 = 1 << 40;
/// Distance between the pages of the parts of a mixture.
const APART: u64 = 1 << 30;

/// A family, and the generator of its accesses.
pub(crate) type Family = (&'static str, fn(&mut Maker));

/// The families.
pub(crate) const FAMILIES: [Family; 42] = [
    ("loop of 1.1", |maker| maker.looping(1.1)),
    ("loop of 2", |maker| maker.looping(2.0)),
    ("loop of 10", |maker| maker.looping(10.0)),
    ("loops of 0.3 and 1.7", Maker::two_loops),
    ("set of 0.5, replaced", |maker| maker.replaced(0.5, 5)),
    ("set of 0.8, replaced", |maker| maker.replaced(0.8, 5)),
    ("set of 0.5, sliding", |maker| maker.sliding(0.5)),
    ("set of 1.2, sliding", |maker| maker.sliding(1.2)),
    ("one-hit wonders and popular pages", Maker::wonders),
    ("scans and popular pages", |maker| maker.scans(2.0, 3)),
    ("short scans and many popular pages", |maker| {
        maker.scans(0.5, 2)
    }),
    ("recency, near", |maker| {
        maker.recent(|maker| maker.delay(0.5))
    }),
    ("recency, far", |maker| {
        maker.recent(|maker| maker.delay(2.0))
    }),
    ("recency, heavy tail", |maker| {
        maker.recent(Maker::heavy_delay)
    }),
    ("frequency, flat", |maker| maker.popular(0.7)),
    ("frequency", |maker| maker.popular(0.9)),
    ("frequency, steep", |maker| maker.popular(1.1)),
    ("uniform", |maker| {
        maker.repeat(|maker, _| maker.random.u64(0..3 * maker.capacity))
    }),
    ("new is reused soon", |maker| {
        maker.born(1, |maker| maker.delay(0.15))
    }),
    ("new is reused later", |maker| {
        maker.born(1, |maker| maker.part(0.2) + maker.delay(0.15))
    }),
    ("new is reused after a fixed pause", |maker| {
        maker.born(1, |maker| maker.part(0.4))
    }),
    ("new is reused at most once", Maker::born_twice),
    ("prefixes grow", |maker| {
        maker.born(6, |maker| maker.delay(0.04))
    }),
    ("recency beside a loop", Maker::recent_and_loop),
    ("new is reused, beside popular pages", |maker| {
        maker.born_beside(Maker::popular_page)
    }),
    ("new is reused, beside a loop", |maker| {
        maker.born_beside(|maker, time| APART + time % maker.part(1.4));
    }),
    ("phases", Maker::phases),
    ("phases, long", Maker::long_phases),
    ("set of 0.6, replaced", |maker| maker.replaced(0.6, 5)),
    ("set of 0.7, replaced", |maker| maker.replaced(0.7, 5)),
    ("set of 0.95, replaced", |maker| maker.replaced(0.95, 5)),
    ("set of 0.8, half replaced", Maker::half_replaced),
    ("set of 0.8, replaced rarely", |maker| {
        maker.replaced(0.8, 20)
    }),
    ("set of 0.8, replaced, in order", Maker::replaced_in_order),
    (
        "set of 0.7, replaced, beside popular pages",
        Maker::replaced_beside,
    ),
    ("popular pages that drift", Maker::drifting),
    ("new is reused after a long pause", |maker| {
        maker.born(1, |maker| maker.part(0.6))
    }),
    ("forward and back", |maker| {
        let pages = maker.drawn_part(1.2, 2.0);
        maker.repeat(|_, time| forward_and_back(time, pages));
    }),
    ("forward and back, beside popular pages", |maker| {
        let pages = maker.drawn_part(1.2, 1.5);
        maker.beside_popular(|time| forward_and_back(time, pages));
    }),
    (
        "forward and back, then popular pages",
        Maker::forward_and_back_by_turns,
    ),
    ("set in order, a part replaced", |maker| {
        let page = maker.partly_replaced(0.95);
        maker.repeat(|_, time| page(time));
    }),
    (
        "set in order, a part replaced, beside popular pages",
        |maker| {
            let page = maker.partly_replaced(0.8);
            maker.beside_popular(page);
        },
    ),
];

/// Returns the accesses of a family.
pub(crate) fn made(make: fn(&mut Maker), capacity: usize, seed: u64) -> AccessTrace {
    let mut maker = Maker {
        random: Rng::with_seed(seed),
        capacity: capacity as u64,
        len: TURNS * capacity,
        accesses: Vec::new(),
        nr_new: 0,
    };
    make(&mut maker);
    maker.accesses.truncate(maker.len);
    maker.accesses.into_iter().collect()
}

/// Returns the page of a loop that goes forward and back through some pages.
const fn forward_and_back(time: u64, pages: u64) -> u64 {
    match time % (2 * pages) {
        forward if forward < pages => forward,
        back => 2 * pages - 1 - back,
    }
}

/// Generator of the accesses of one trace.
pub(crate) struct Maker {
    random: Rng,
    capacity: u64,
    len: usize,
    accesses: Vec<u64>,
    nr_new: u64,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "parts of a capacity, far below 2^53"
)]
impl Maker {
    /// Returns a part of the capacity, at least a page.
    fn part(&self, part: f64) -> u64 {
        ((self.capacity as f64 * part) as u64).max(1)
    }

    /// Draws a part of the capacity.
    fn drawn_part(&mut self, least: f64, most: f64) -> u64 {
        let part = least + (most - least) * self.random.f64();
        self.part(part)
    }

    /// Draws an exponentially distributed delay, whose mean is that part of the capacity.
    fn delay(&mut self, part: f64) -> u64 {
        (-(1.0 - self.random.f64()).ln() * self.capacity as f64 * part) as u64
    }

    /// Draws a delay that is as often short as it is long now and then.
    fn heavy_delay(&mut self) -> u64 {
        let scale = (1.0 - self.random.f64()).powf(-1.25);
        self.part(0.02 * scale)
    }

    /// Draws a geometrically distributed count.
    fn count(&mut self, mean: f64) -> u64 {
        (-(1.0 - self.random.f64()).ln() * mean) as u64
    }

    /// Draws a page below `pages` by Zipf's law, low ones more often.
    fn zipf(&mut self, pages: u64, exponent: f64) -> u64 {
        let most = ((pages + 1) as f64).powf(1.0 - exponent) - 1.0;
        let rank = (most * self.random.f64() + 1.0).powf(1.0 / (1.0 - exponent));
        (rank as u64).clamp(1, pages) - 1
    }
}

impl Maker {
    fn new_page(&mut self) -> u64 {
        self.nr_new += 1;
        NEW + self.nr_new
    }

    /// Adds accesses one at a time; `next` takes the number of those before.
    fn repeat(&mut self, mut next: impl FnMut(&mut Self, u64) -> u64) {
        while self.accesses.len() < self.len {
            let time = self.accesses.len() as u64;
            let page = next(self, time);
            self.accesses.push(page);
        }
    }

    fn looping(&mut self, part: f64) {
        let pages = self.part(part);
        self.repeat(|_, time| time % pages);
    }

    fn two_loops(&mut self) {
        let [short, long] = [0.3, 1.7].map(|part| self.part(part));
        let mut at = [0; 2];
        self.repeat(|maker, _| {
            let which = usize::from(maker.random.u8(0..3) > 0);
            at[which] += 1;
            [at[0] % short, APART + at[1] % long][which]
        });
    }

    /// Reads a set of pages at random; another set replaces it after `turns` capacities of
    /// accesses.
    fn replaced(&mut self, part: f64, turns: u64) {
        let pages = self.part(part);
        self.repeat(|maker, time| {
            let set = time / (turns * maker.capacity);
            set * APART + maker.random.u64(0..pages)
        });
    }

    /// Reads a set of pages at random; after five capacities of accesses, half of it is replaced.
    fn half_replaced(&mut self) {
        let half = self.part(0.4);
        self.repeat(|maker, time| {
            let nr_replaced = time / (5 * maker.capacity);
            nr_replaced * half + maker.random.u64(0..2 * half)
        });
    }

    /// Reads a set of pages in order, again and again; as [`replaced`](Self::replaced).
    fn replaced_in_order(&mut self) {
        let pages = self.part(0.8);
        self.repeat(|maker, time| time / (5 * maker.capacity) * APART + time % pages);
    }

    /// Draws a set of 0.7 to `most` of the capacity that is read in order two or three times before
    /// a part of it, 0.05 to 0.4 of the capacity, is replaced; returns its pages by the time.
    fn partly_replaced(&mut self, most: f64) -> impl Fn(u64) -> u64 + use<> {
        let pages = self.drawn_part(0.7, most);
        let turns = self.random.u64(2..4);
        let nr_replaced = self.drawn_part(0.05, 0.4);
        move |time| time / (turns * pages) * nr_replaced + time % pages
    }

    /// Reads popular pages one time in five, and those of `page` in their order.
    fn beside_popular(&mut self, page: impl Fn(u64) -> u64) {
        let mut at = 0;
        self.repeat(|maker, _| match maker.random.u8(0..5) {
            0 => NEW + maker.zipf(2 * maker.capacity, 0.9),
            _ => {
                at += 1;
                page(at)
            }
        });
    }

    /// Alternates popular pages with a loop that goes forward and back.
    fn forward_and_back_by_turns(&mut self) {
        let pages = self.drawn_part(1.2, 1.5);
        let turn = 8 * self.capacity;
        self.repeat(|maker, time| match time / turn % 2 {
            0 => NEW + maker.zipf(3 * maker.capacity, 0.9),
            _ => forward_and_back(time, pages),
        });
    }

    fn replaced_beside(&mut self) {
        let pages = self.part(0.7);
        self.repeat(|maker, time| match maker.random.bool() {
            true => NEW + maker.zipf(2 * maker.capacity, 1.1),
            false => time / (10 * maker.capacity) * APART + maker.random.u64(0..pages),
        });
    }

    /// Reads a set of pages that loses one and gains one every four accesses.
    fn sliding(&mut self, part: f64) {
        let pages = self.part(part);
        self.repeat(|maker, time| time / 4 + maker.random.u64(0..pages));
    }

    fn popular_page(&mut self, _: u64) -> u64 {
        self.zipf(2 * self.capacity, 0.9)
    }

    /// Reads popular pages, whose ranks move by one every eight accesses.
    fn drifting(&mut self) {
        self.repeat(|maker, time| time / 8 + maker.zipf(4 * maker.capacity, 0.9));
    }

    fn popular(&mut self, exponent: f64) {
        self.repeat(|maker, _| maker.zipf(10 * maker.capacity, exponent));
    }

    fn wonders(&mut self) {
        self.repeat(|maker, _| match maker.random.bool() {
            true => maker.new_page(),
            false => maker.zipf(2 * maker.capacity, 0.8),
        });
    }

    /// Reads popular pages, and a scan of a part of the capacity after every `pause` such parts.
    fn scans(&mut self, part: f64, pause: u64) {
        let scan = self.part(part);
        self.repeat(|maker, time| match (time / scan) % (pause + 1) == pause {
            true => maker.new_page(),
            false => maker.zipf(4 * maker.capacity, 0.9),
        });
    }

    /// Returns the page that was accessed `delay` accesses ago, or, one time in four, a new one.
    fn recent_page(&mut self, time: u64, delay: u64) -> u64 {
        match self.random.u8(0..4) == 0 || delay >= time {
            true => self.new_page(),
            false => self.accesses[usize::try_from(time - 1 - delay).expect("an index")],
        }
    }

    fn recent(&mut self, delay: fn(&mut Self) -> u64) {
        self.repeat(|maker, time| {
            let delay = delay(maker);
            maker.recent_page(time, delay)
        });
    }

    fn recent_and_loop(&mut self) {
        let pages = self.part(1.5);
        self.repeat(|maker, time| match maker.random.bool() {
            true => APART + time / 2 % pages,
            false => {
                let delay = maker.delay(0.3);
                maker.recent_page(time, delay)
            }
        });
    }

    /// Requests some pages in order. The request is repeated a few times, each after a pause and
    /// with more pages if it had more than one, and then never again: with one page, data that is
    /// reused while it is new; with more, prefixes of a conversation.
    fn born(&mut self, pages: u64, pause: fn(&mut Self) -> u64) {
        let turns: fn(&mut Self) -> u64 = |maker| maker.count(1.0);
        self.requests(pages, turns, pause);
    }

    fn born_twice(&mut self) {
        self.requests(
            1,
            |maker| maker.random.u64(0..2),
            |maker| maker.random.u64(0..maker.capacity / 2),
        );
    }

    fn requests(&mut self, pages: u64, turns: fn(&mut Self) -> u64, pause: fn(&mut Self) -> u64) {
        let mut due = BinaryHeap::new();
        let mut now = 0;
        while self.accesses.len() < self.len {
            now += 1;
            let first = if pages > 1 {
                1 + self.random.u64(0..2 * pages)
            } else {
                1
            };
            let request: Vec<u64> = (0..first).map(|_| self.new_page()).collect();
            due.push(Reverse((now, request, turns(self))));
            while let Some(Reverse((at, mut request, turns))) = due.pop() {
                if at > now {
                    due.push(Reverse((at, request, turns)));
                    break;
                }
                self.accesses.extend(&request);
                if turns > 0 {
                    let more = if pages > 1 { self.random.u64(1..6) } else { 0 };
                    request.extend((0..more).map(|_| self.new_page()));
                    let pause = 1 + pause(self);
                    due.push(Reverse((now + pause, request, turns - 1)));
                }
            }
        }
    }

    /// Alternates pages that are reused while they are new with pages of another family.
    fn born_beside(&mut self, other: fn(&mut Self, u64) -> u64) {
        self.born(1, |maker| maker.part(0.2) + maker.delay(0.15));
        let born = std::mem::take(&mut self.accesses);
        for (time, page) in (0..).zip(born) {
            let beside = other(self, time);
            self.accesses.extend([page, beside]);
        }
    }

    /// Alternates four families, each for `turns` capacities of accesses.
    fn phases_of(&mut self, turns: u64) {
        let [looped, set] = [1.3, 0.5].map(|part| self.part(part));
        self.repeat(|maker, time| {
            let phase = time / (turns * maker.capacity);
            match phase % 4 {
                0 => maker.zipf(5 * maker.capacity, 0.9),
                1 => APART + time % looped,
                2 => {
                    let delay = maker.delay(0.5);
                    maker.recent_page(time, delay)
                }
                _ => (phase + 2) * APART + maker.random.u64(0..set),
            }
        });
    }

    fn phases(&mut self) {
        self.phases_of(4);
    }

    fn long_phases(&mut self) {
        self.phases_of(12);
    }
}
