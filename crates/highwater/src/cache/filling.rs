//! Pages that are being read in.

use crate::sync::Woken;
use crate::sync::atomic::Ordering;

use super::PageCache;
use super::flags::PageFlag;
use super::key::PageKey;
use crate::memmap::Frame;
use crate::units::{GroupId, Pfn};

/// A page that is being read in: its frame is owned by this thread.
#[derive(Debug)]
#[must_use = "finish or abort a fill: others wait for it"]
pub struct Filling {
    pub(super) key: PageKey,
    pub(super) frame: Frame,
}

impl Filling {
    /// Separates the page from its frame, for storage that fills it while no thread waits.
    pub(crate) fn into_parts(self) -> (PageKey, Frame) {
        (self.key, self.frame)
    }

    /// Undoes [`into_parts`](Self::into_parts).
    pub(crate) fn from_parts(key: PageKey, frame: Frame) -> Self {
        Self { key, frame }
    }
}

impl PageCache {
    /// Begins to read a page in, charged to `group`.
    ///
    /// # Errors
    ///
    /// The frame, unused, if another thread inserted the page first.
    pub fn begin_fill(&self, key: PageKey, frame: Frame, group: GroupId) -> Result<Filling, Frame> {
        let pfn = frame.pfn();
        // Relaxed, all: this thread owns the frame, and finishing the fill publishes it.
        self.groups[pfn.index()].store(group.0, Ordering::Relaxed);
        debug_assert_eq!(self.mapcount(pfn), 0, "{pfn} reused mapped");
        self.young[pfn.index()].store(false, Ordering::Relaxed);
        self.frame_flags(pfn).reset();
        if key.file().kind().is_swap_backed() {
            self.set_flag(pfn, PageFlag::Swapbacked);
        }
        debug_assert!(!self.is_dirty(pfn), "{pfn} reused dirty");
        if self.index.insert_filling(key, pfn) {
            Ok(Filling { key, frame })
        } else {
            Err(frame)
        }
    }

    /// Returns the buffer to fill.
    pub fn filling_bytes<'a>(&'a self, filling: &'a mut Filling) -> &'a mut [u8] {
        self.memory.bytes_mut(&mut filling.frame)
    }

    /// Makes a filled page resident and wakes the threads that wait for it; adds the tasks that do
    /// to `woken`.
    pub fn finish_fill_and(&self, filling: Filling, woken: &mut Woken) -> Pfn {
        let Filling { key, frame } = filling;
        let pfn = match key.file().is_writable() {
            true => self.memory.put_latched(frame, key.get()),
            false => self.memory.publish(frame, key.get()),
        };
        woken.append(self.index.set_resident(pfn));
        pfn
    }

    /// As [`finish_fill_and`](Self::finish_fill_and); wakes the tasks at once.
    #[cfg(test)]
    pub(crate) fn finish_fill(&self, filling: Filling) -> Pfn {
        self.finish_fill_and(filling, &mut Woken::default())
    }

    /// Aborts a fill, wakes the threads that wait for it, adds the tasks that do to `woken`, and
    /// returns the frame.
    #[must_use = "the frame has to be freed"]
    pub fn abort_fill_and(&self, filling: Filling, woken: &mut Woken) -> Frame {
        woken.append(self.index.remove(filling.frame.pfn()));
        filling.frame
    }
}
