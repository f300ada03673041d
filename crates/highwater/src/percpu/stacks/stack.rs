//! One CPU's stack: a ring of numbers, and one line that describes it.

use std::mem::offset_of;
use std::ptr::NonNull;

use super::Tally;
use super::header::{Header, PLACES_MAX};
use crate::memmap::zeroed;
use crate::percpu::Area;
use crate::percpu::sequences::{On, Stationed};
use crate::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::units::CpuId;

/// A number in a ring. Written by: pushes (above the hot end), the holder of the lock. Read by:
/// pops, the holder of the lock. Publishes: nothing; the header does.
type Place = AtomicU32;

/// A stack of numbers. The hot end is pushed to and popped from; the oldest number is at the other
/// end.
///
/// ```text
/// ring    . . . [oldest ... hottest] . . .      bottom is the place of the oldest, modulo the ring
/// ```
#[repr(C, align(128))]
pub(super) struct Stack {
    /// Written by: pushes and pops (Release), the holder of the lock. Read by: the same, and
    /// probes. Publishes: the numbers in the ring.
    header: AtomicU64,
    /// The CPU that pushes and pops by sequences; above it, in bit 31, the gate, up while the lock
    /// is held; above that the number of locks, so that an unchanged station shows unchanged
    /// limits. Written by: the holder of the lock; where there are no sequences, pushes and pops.
    /// Read by: sequences, the writers. Publishes: the stores made while it was up.
    station: AtomicU64,
    ring: Ring,
    /// A push that finds this many is refused; at most the ring's capacity. Written by: any thread,
    /// at any time (relaxed). Read by: pushes. Publishes: nothing.
    limit: AtomicU32,
    /// What pushes step the tally with. As `limit`.
    bound: AtomicU16,
}

/// Places for as many numbers as fit. Nothing is read from it that was not written before.
struct Ring {
    first: NonNull<Place>,
    /// One less than the places, which are a power of two.
    mask: u32,
}

// SAFETY: a ring is memory that it alone frees; its places are atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Stack {
    /// A gate that is up, in the station. The numbers of CPUs are below it.
    const GATE: u64 = 1 << 31;
    /// One lock, in the station.
    const ONE_LOCK: u64 = 1 << 32;

    pub(super) fn new(cpu: CpuId, capacity: u32) -> Self {
        debug_assert!(u64::from(cpu.0) < Self::GATE, "the number of {cpu}");
        Self {
            header: AtomicU64::new(Header::EMPTY.0),
            station: AtomicU64::new(u64::from(cpu.0)),
            ring: Ring::new(capacity),
            limit: AtomicU32::new(capacity),
            bound: AtomicU16::new(0),
        }
    }

    /// Returns the header as seen at this moment.
    #[inline]
    pub(super) fn header(&self) -> Header {
        // Relaxed: the lock orders the holder after others' stores; other readers want only a
        // snapshot.
        Header(self.header.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn limit(&self) -> u32 {
        // Relaxed: see the field.
        self.limit.load(Ordering::Relaxed)
    }

    /// Makes pushes refused from `limit` numbers on, or when the ring is full.
    pub(super) fn set_limit(&self, limit: u32) {
        // Relaxed: see the field.
        self.limit
            .store(limit.min(self.capacity()), Ordering::Relaxed);
    }

    #[inline]
    fn bound(&self) -> u16 {
        // Relaxed: see the field.
        self.bound.load(Ordering::Relaxed)
    }

    pub(super) fn set_bound(&self, bound: u16) {
        // Relaxed: see the field.
        self.bound.store(bound, Ordering::Relaxed);
    }

    /// Returns the number of places in the ring.
    pub(super) fn capacity(&self) -> u32 {
        self.ring.mask + 1
    }

    /// Pushes in a sequence on the stack's CPU, if it has not reached its limit. Returns whether it
    /// was pushed.
    #[inline(always)]
    pub(super) fn push_here<S: Tally, const DELAY: u32>(&self, area: Area, raw: u32) -> bool {
        let Some(on) = self.open() else {
            return false;
        };
        let header = self.header();
        if header.len() >= self.limit() {
            return false;
        }
        let pushed = header.pushed(S::pushed(header.tally(), self.bound()));
        // Above the hot end: no thread reads the place before the commit, nor after an abort before
        // it is written again.
        let place = (self.ring.place(header.place(header.len())), raw);
        area.store::<DELAY, _, _>(on, &self.header, [header.0, pushed.0], [place])
    }

    /// Pops in a sequence on the stack's CPU, if there is a number.
    #[inline(always)]
    pub(super) fn pop_here<S: Tally, const DELAY: u32>(&self, area: Area) -> Option<u32> {
        let (on, header) = (self.open()?, self.header());
        let place = self.ring.place(header.place(header.len().checked_sub(1)?));
        let popped = header.popped(S::popped(header.tally()));
        area.load_store::<DELAY, _>(on, &self.header, [header.0, popped.0], place)
    }

    /// Raises the gate in a sequence on the stack's CPU. The caller holds the lock.
    pub(super) fn raise_here(&self, area: Area) -> bool {
        let on = self.open();
        on.is_some_and(|on| area.add::<0, _, _>(on, &self.station, Self::GATE, []))
    }

    /// Returns the condition of a sequence: on the stack's CPU, and not locked since this call;
    /// `None` if it is locked.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the half that is the CPU")]
    fn open(&self) -> Option<On<'_, true>> {
        // Acquire. Pairs with `lower`: what is read afterwards is from before the next lock, or the
        // station changes.
        let station = self.station.load(Ordering::Acquire);
        let on = On::guarded(station as u32, &self.station, station);
        (station & Self::GATE == 0).then_some(on)
    }

    // The following methods are for the holder of the lock.

    /// Raises the gate. Sequences that have found it down continue until they are made to restart.
    pub(super) fn raise(&self) {
        // Relaxed: the membarrier that follows orders it; and only the holder of the lock writes
        // it.
        let open = self.station.load(Ordering::Relaxed);
        self.station.store(open | Self::GATE, Ordering::Relaxed);
    }

    /// Raises the gate if it is down: this is how pushes, pops and holders of the lock exclude each
    /// other where there are no sequences.
    pub(super) fn try_raise(&self) -> bool {
        // Relaxed: the exchange checks it.
        let open = self.station.load(Ordering::Relaxed) & !Self::GATE;
        let raised = open | Self::GATE;
        // Acquire. Pairs with `lower`. Failure learns nothing.
        let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
        let exchanged = self
            .station
            .compare_exchange(open, raised, success, failure);
        exchanged.is_ok()
    }

    /// Lowers the gate that the caller has raised.
    pub(super) fn lower(&self) {
        // Relaxed: only the thread that has raised it writes it.
        let raised = self.station.load(Ordering::Relaxed);
        // Release. Pairs with `try_raise`, and the sequences' load of the station, which acquires:
        // a thread that finds the gate down sees the stores made while it was up.
        let next = (raised & !Self::GATE).wrapping_add(Self::ONE_LOCK);
        self.station.store(next, Ordering::Release);
    }

    pub(super) fn set_header(&self, header: Header) {
        // Relaxed: releasing the lock releases it.
        self.header.store(header.0, Ordering::Relaxed);
    }

    /// Pushes at the hot end, if there are fewer than `limit`; steps the header as a sequence does.
    pub(super) fn push<S: Tally>(&self, raw: u32, limit: u32) -> bool {
        let header = self.header();
        if header.len() >= limit {
            return false;
        }
        // Relaxed, as every access to a place: the header orders it.
        let place = self.ring.place(header.place(header.len()));
        place.store(raw, Ordering::Relaxed);
        self.set_header(header.pushed(S::pushed(header.tally(), self.bound())));
        true
    }

    /// Pops from the hot end; steps the header as a sequence does.
    pub(super) fn pop<S: Tally>(&self) -> Option<u32> {
        let header = self.header();
        let place = self.ring.place(header.place(header.len().checked_sub(1)?));
        // Relaxed: as in `push`.
        let raw = place.load(Ordering::Relaxed);
        self.set_header(header.popped(S::popped(header.tally())));
        Some(raw)
    }

    /// Puts numbers at the hot end; the tally stays.
    ///
    /// # Panics
    ///
    /// When there is no room for them; the stack then is as before.
    pub(super) fn extend(&self, raws: impl Iterator<Item = u32>) {
        let header = self.header();
        let mut len = header.len();
        for raw in raws {
            assert!(
                len < self.capacity(),
                "no room in the ring for more than {len}"
            );
            // Relaxed: as in `push`.
            let place = self.ring.place(header.place(len));
            place.store(raw, Ordering::Relaxed);
            len += 1;
        }
        self.set_header(header.extended(len - header.len()));
    }

    /// Takes the oldest `count` numbers out, or all; oldest first; the tally stays. Returns how
    /// many.
    pub(super) fn take_oldest(&self, count: u32, mut take: impl FnMut(u32)) -> u32 {
        let header = self.header();
        let count = count.min(header.len());
        // They are removed first: if `take` unwinds, the others are lost and none is there twice.
        self.set_header(header.without_oldest(count));
        for at in 0..count {
            // Relaxed: as in `push`.
            take(self.ring.place(header.place(at)).load(Ordering::Relaxed));
        }
        count
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Stack>() == 128, "one line, and its neighbour");
    assert!(offset_of!(Stack, bound) + 2 <= 64, "one line has it all");
    assert!(
        offset_of!(Stack, station) == offset_of!(Stationed, station),
        "sequences find the station by the pointer to the header"
    );
};

impl Ring {
    /// # Panics
    ///
    /// When the capacity is no power of two, or above 2^23.
    fn new(capacity: u32) -> Self {
        assert!(
            capacity.is_power_of_two() && capacity <= PLACES_MAX,
            "a ring of {capacity} places, which is no power of two up to {PLACES_MAX}"
        );
        let places = Box::into_raw(zeroed::<Place>(capacity as usize));
        Self {
            first: NonNull::new(places.cast()).expect("a box is somewhere"),
            mask: capacity - 1,
        }
    }

    #[inline]
    fn place(&self, at: u32) -> &Place {
        // SAFETY: masked, it is below the number of places, which are one allocation.
        let place = unsafe { self.first.add((at & self.mask) as usize) };
        // SAFETY: as above; the place is initialized, and lives as long as the ring.
        unsafe { place.as_ref() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let places = NonNull::slice_from_raw_parts(self.first, self.mask as usize + 1);
        // SAFETY: `new` made it from a box of this many places, and no reference to it is left.
        drop(unsafe { Box::from_raw(places.as_ptr()) });
    }
}
