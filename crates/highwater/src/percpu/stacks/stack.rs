//! One CPU's stack: a ring of numbers, and one line that describes it.

use std::mem::offset_of;
use std::ptr::NonNull;

use super::header::Header;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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
pub(in crate::percpu) struct Stack {
    /// Written by: pushes and pops (Release), the holder of the lock. Read by: the same, and
    /// probes. Publishes: the numbers in the ring.
    header: AtomicU64,
    /// The CPU that pushes and pops by sequences; above it the gate, up while the lock is held.
    /// Written by: the holder of the lock; where there are no sequences, pushes and pops. Read by:
    /// sequences, the writers. Publishes: the stores made while it was up.
    station: AtomicU64,
    ring: Ring,
    /// Place of the oldest number. Written by: the holder of the lock. Read by: the same,
    /// sequences. Publishes: nothing, as it changes under the lock only.
    bottom: AtomicU32,
    /// A push that finds this many is refused; at most the ring's capacity. Written by: any thread,
    /// at any time (relaxed). Read by: pushes. Publishes: nothing.
    limit: AtomicU32,
    /// The longest run that pushes make. As `limit`; 16 bits.
    run_max: AtomicU32,
}

/// Places for as many numbers as fit. Nothing is read from it that was not written before.
#[repr(C)]
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
    /// A gate that is up, in the station.
    pub(super) const GATE: i64 = 1 << 32;

    pub(super) fn new(cpu: CpuId, capacity: u32) -> Self {
        Self {
            header: AtomicU64::new(Header::EMPTY.0),
            station: AtomicU64::new(u64::from(cpu.0)),
            ring: Ring::new(capacity),
            bottom: AtomicU32::new(0),
            limit: AtomicU32::new(capacity),
            run_max: AtomicU32::new(0),
        }
    }

    /// Returns the header as seen at this moment.
    #[inline]
    pub(super) fn header(&self) -> Header {
        // Relaxed: the lock orders the holder after others' stores; other readers want only a
        // snapshot.
        Header(self.header.load(Ordering::Relaxed))
    }

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

    pub(super) fn run_max(&self) -> u16 {
        // Relaxed: see the field.
        u16::try_from(self.run_max.load(Ordering::Relaxed)).expect("it has 16 bits")
    }

    pub(super) fn set_run_max(&self, run_max: u16) {
        // Relaxed: see the field.
        self.run_max.store(u32::from(run_max), Ordering::Relaxed);
    }

    /// Returns the number of places in the ring.
    pub(super) fn capacity(&self) -> u32 {
        self.ring.mask + 1
    }

    /// Returns the station.
    #[inline]
    pub(super) fn station(&self) -> &AtomicU64 {
        &self.station
    }

    // The following methods are for the holder of the lock.

    /// Raises the gate. Sequences that have found it down continue until they are made to restart.
    pub(super) fn raise(&self) {
        // Relaxed: the membarrier that follows orders it; and only the holder of the lock writes
        // it.
        let open = self.station.load(Ordering::Relaxed);
        let raised = open + Self::GATE.cast_unsigned();
        self.station.store(raised, Ordering::Relaxed);
    }

    /// Raises the gate if it is down: this is how pushes, pops and holders of the lock exclude each
    /// other where there are no sequences.
    pub(super) fn try_raise(&self) -> bool {
        // Relaxed: the half below the gate never changes.
        let open = self.station.load(Ordering::Relaxed) % Self::GATE.cast_unsigned();
        let raised = open + Self::GATE.cast_unsigned();
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
        let cpu = raised % Self::GATE.cast_unsigned();
        // Release. Pairs with `try_raise`, and the sequences' load of the station, which acquires:
        // a thread that finds the gate down sees the stores made while it was up.
        self.station.store(cpu, Ordering::Release);
    }

    pub(super) fn set_header(&self, header: Header) {
        // Relaxed: releasing the lock releases it.
        self.header.store(header.0, Ordering::Relaxed);
    }

    /// Pushes at the hot end, if there are fewer than `limit`; steps the header as a sequence does.
    pub(super) fn push(&self, raw: u32, limit: u32) -> bool {
        let header = self.header();
        if header.len() >= limit {
            return false;
        }
        self.set_number_at(header.len(), raw);
        self.set_header(header.pushed(self.run_max()));
        true
    }

    /// Pops from the hot end; steps the header as a sequence does.
    pub(super) fn pop(&self) -> Option<u32> {
        let header = self.header();
        let below = header.len().checked_sub(1)?;
        let raw = self.number_at(below);
        self.set_header(header.popped());
        Some(raw)
    }

    /// Puts numbers at the hot end.
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
            self.set_number_at(len, raw);
            len += 1;
        }
        self.set_header(header.with_len(len));
    }

    /// Takes the oldest `count` numbers out, or all; oldest first. Returns how many.
    pub(super) fn take_oldest(&self, count: u32, take: impl FnMut(u32)) -> u32 {
        let header = self.header();
        let count = count.min(header.len());
        // They are removed first: if `take` unwinds, the others are lost and none is there twice.
        // Relaxed, as every access under the lock.
        let bottom = self.bottom.load(Ordering::Relaxed);
        let above = bottom.wrapping_add(count);
        self.bottom.store(above, Ordering::Relaxed);
        self.set_header(header.with_len(header.len() - count));
        let places = (0..count).map(|at| self.ring.place(bottom.wrapping_add(at)));
        places
            .map(|place| place.load(Ordering::Relaxed))
            .for_each(take);
        count
    }

    /// Returns number `at`, counted from the oldest.
    #[inline]
    pub(super) fn number_at(&self, at: u32) -> u32 {
        // Relaxed, as every access under the lock or in a sequence.
        self.place(at).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_number_at(&self, at: u32, raw: u32) {
        // Relaxed, as every access under the lock or in a sequence.
        self.place(at).store(raw, Ordering::Relaxed);
    }

    #[inline]
    fn place(&self, at: u32) -> &Place {
        // Relaxed, as every access under the lock or in a sequence.
        let bottom = self.bottom.load(Ordering::Relaxed);
        self.ring.place(bottom.wrapping_add(at))
    }
}

#[cfg_attr(
    any(not(target_arch = "x86_64"), not(target_os = "linux"), loom, miri),
    expect(dead_code, reason = "read by the sequences, which this system lacks")
)]
impl Stack {
    // Offsets of the fields that the sequences use.
    pub(in crate::percpu) const STATION_AT: usize = offset_of!(Self, station);
    pub(in crate::percpu) const RING_AT: usize = offset_of!(Self, ring) + offset_of!(Ring, first);
    pub(in crate::percpu) const MASK_AT: usize = offset_of!(Self, ring) + offset_of!(Ring, mask);
    pub(in crate::percpu) const BOTTOM_AT: usize = offset_of!(Self, bottom);
    pub(in crate::percpu) const LIMIT_AT: usize = offset_of!(Self, limit);
    pub(in crate::percpu) const RUN_MAX_AT: usize = offset_of!(Self, run_max);
}

#[cfg(not(loom))]
const _: () = {
    assert!(offset_of!(Stack, header) == 0 && size_of::<Place>() == 4);
    assert!(size_of::<Stack>() == 128, "one line, and its neighbour");
    assert!(offset_of!(Stack, run_max) + 4 <= 64, "one line has it all");
};

impl Ring {
    /// # Panics
    ///
    /// When the capacity is no power of two.
    fn new(capacity: u32) -> Self {
        assert!(
            capacity.is_power_of_two(),
            "a ring of {capacity} places, which is no power of two"
        );
        let places = Box::into_raw(zeroed(capacity as usize));
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

/// Returns zeroes that the system commits as they are written, where there are enough of them.
#[cfg(not(loom))]
fn zeroed(count: usize) -> Box<[Place]> {
    let places = Box::new_zeroed_slice(count);
    // SAFETY: an atomic number may be any bits, zeroes too.
    unsafe { places.assume_init() }
}

#[cfg(loom)]
fn zeroed(count: usize) -> Box<[Place]> {
    (0..count).map(|_| Place::new(0)).collect()
}
