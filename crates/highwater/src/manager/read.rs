//! Reading bytes of a file without a mapping (read(2)), and read patterns.

use std::ops::Range;

use super::error::ReadError;
use super::fault::Found;
use super::file::File;
use super::group::Group;
use super::guard::Guard;
use super::source::FillSource;
use super::{Core, Manager};
use crate::cache::{ReadPattern, Window};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{FilePage, Pages};

/// Upper bound of the readahead window, tunable while the manager runs.
#[derive(Debug)]
pub(super) struct ReadaheadMax {
    /// Written by: the embedder. Read by: page faults. Publishes: nothing.
    pages: AtomicU64,
    /// Selects the marked page of a window.
    #[cfg(feature = "lab")]
    marks: crate::cache::MarkRule,
}

impl ReadaheadMax {
    pub(super) fn new(max: Pages) -> Self {
        Self {
            pages: AtomicU64::new(max.0),
            #[cfg(feature = "lab")]
            marks: crate::cache::MarkRule::default(),
        }
    }

    #[cfg(feature = "lab")]
    pub(super) fn with_marks(mut self, marks: crate::cache::MarkRule) -> Self {
        self.marks = marks;
        self
    }

    /// Returns whether a missing page can get the mark that is meant for page `mark`: that one, or
    /// the next that is missing. So a stream through partly resident pages misses less often.
    pub(super) fn marks(&self, page: FilePage, mark: FilePage) -> bool {
        #[cfg(feature = "lab")]
        if self.marks == crate::cache::MarkRule::Exact {
            return page == mark;
        }
        page >= mark
    }

    pub(super) fn get(&self) -> Pages {
        // Relaxed: an independent number.
        Pages(self.pages.load(Ordering::Relaxed))
    }
}

impl Manager {
    /// Sets the maximum readahead window: see [`Builder::readahead`](super::Builder::readahead).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_readahead(&self, max: Pages) {
        // Relaxed: as in `ReadaheadMax::get`.
        self.core().readahead.pages.store(max.0, Ordering::Relaxed);
    }

    /// Returns the maximum readahead window.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn readahead(&self) -> Pages {
        self.core().readahead.get()
    }
}

impl File {
    /// Copies bytes of the file into `buf`, starting at `offset`, as read(2) does. Missing pages
    /// are read in and charged to `group`; resident pages stay charged to their group; no space
    /// counts them. Returns the number of bytes copied. It is smaller than the buffer at the end of
    /// the file, or where a page after the first could not be read: a read that starts there
    /// returns the error.
    ///
    /// Sequential reads trigger readahead ([`Builder::readahead`](super::Builder::readahead)), of
    /// one stream for each file: use mappings for several.
    ///
    /// # Cost
    ///
    /// A guard or latch for each resident page, and the copy. For missing pages the file's I/O, for
    /// many pages at once in sequential reads.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if nothing could be read.
    ///
    /// # Panics
    ///
    /// When the group belongs to another manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # let path = std::env::temp_dir().join(format!("highwater-read-at-{}", std::process::id()));
    /// std::fs::write(&path, "a page, or less")?;
    /// let hw = highwater::Manager::builder().build()?;
    /// let file = hw.open(&path)?;
    /// let mut word = [0; 4];
    /// assert_eq!(file.read_at(&hw.root(), 2, &mut word)?, 4);
    /// assert_eq!(&word, b"page");
    /// assert_eq!(file.read_at(&hw.root(), 11, &mut [0; 8])?, 4);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_at(&self, group: &Group, offset: u64, buf: &mut [u8]) -> Result<usize, ReadError> {
        self.assert_same_manager(group);
        let source = self.source_for(group);
        let len = source.file.backing().len().saturating_sub(offset);
        let len = usize::try_from(len).map_or(buf.len(), |len| len.min(buf.len()));
        let size = source.file.order().size();
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (page, begin) = (FilePage(at / size as u64), within_page(at, size));
            let count = (size - begin).min(len - done);
            let piece = &mut buf[done..done + count];
            let asked = (begin + len - done).div_ceil(size) as u64;
            match self.core().copy_page(source, page, asked, begin, piece) {
                Ok(copied) => {
                    done += copied;
                    if copied < count {
                        break; // the file has shrunk
                    }
                }
                Err(ReadError::BehindEnd { .. }) => break,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Sets the order in which this file, and mappings made of it afterwards, will be read. For a
    /// buffered file, also the kernel's own readahead (`POSIX_FADV_RANDOM`), which is otherwise off
    /// while misses are out of order.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::ReadPattern;
    /// # use highwater::{Bytes, Manager};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open(source.path())?;
    /// file.set_read_pattern(ReadPattern::Random); // nothing is read ahead
    /// file.read_at(&hw.root(), 0, &mut [0; 8])?;
    /// assert_eq!(hw.root().usage_precise(), Bytes(4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_read_pattern(&self, pattern: ReadPattern) {
        self.entry().readahead().set_pattern(pattern);
        self.entry().note_order(pattern);
    }

    /// Reads missing pages in, as far as memory is available without selecting a victim, and
    /// charges them to `group`. It ends at a page that cannot be read; a later read reports the
    /// error.
    ///
    /// # Cost
    ///
    /// The I/O, synchronously.
    ///
    /// # Panics
    ///
    /// When the group belongs to another manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Manager};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open(source.path())?;
    /// file.will_need(&hw.root(), 0..file.pages());
    /// assert_eq!(hw.root().usage_precise(), Bytes(3 * 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn will_need(&self, group: &Group, pages: Range<impl Into<FilePage>>) {
        self.assert_same_manager(group);
        let pages = FilePage::range(pages);
        self.core().read_ahead_all(self.source_for(group), pages);
    }

    fn source_for<'a>(&'a self, group: &'a Group) -> FillSource<'a> {
        FillSource::of_file(self.entry(), group.node())
    }

    fn assert_same_manager(&self, group: &Group) {
        assert!(
            Arc::ptr_eq(group.shared(), self.shared()),
            "the group is of another manager"
        );
    }
}

impl Core {
    /// Copies part of a page, as far as the file has it; reads the page in if it is missing.
    /// Returns how many bytes.
    fn copy_page(
        &self,
        source: FillSource<'_>,
        page: FilePage,
        asked: u64,
        begin: usize,
        into: &mut [u8],
    ) -> Result<usize, ReadError> {
        let key = source.file.key(page);
        let mut count = into.len();
        let (pfn, found) = if key.file().is_writable() {
            let read = self.bring_in(source, page, asked, |pfn| {
                Some((self.cache.latch_at(key, pfn)?, pfn))
            });
            let ((bytes, pfn), found) = read?;
            // Decided under the latch: a shrink zeroes what it cuts off under it.
            source.file.check_end(page)?;
            let len = source.file.page_len(page);
            count = count.min(len.saturating_sub(begin));
            into[..count].copy_from_slice(&bytes[begin..begin + count]);
            (pfn, found)
        } else {
            let guard = Guard::new(&self.memory);
            let read = self.bring_in(source, page, asked, |pfn| {
                Some((self.cache.borrow_at(guard.reader(), key, pfn)?, pfn))
            });
            let ((bytes, pfn), found) = read?;
            into.copy_from_slice(&bytes[begin..begin + count]);
            (pfn, found)
        };
        // Consecutive reads of one page count as one access.
        let is_new = source.readahead.note_asked(page);
        if is_new && (found == Found::Cached || self.reclaim.counts_first_copy()) {
            self.reclaim.mark_accessed(pfn, key);
        }
        Ok(count)
    }

    /// Reads the missing pages of a range, one window at a time.
    pub(super) fn read_ahead_all(&self, source: FillSource<'_>, pages: Range<FilePage>) {
        let end = pages.end.0.min(source.file.pages());
        let mut at = pages.start.0;
        while at < end {
            let step = self.window_max(source).0.max(1);
            let numbers = at..end.min(at.saturating_add(step));
            at = numbers.end;
            let pages = FilePage::range(numbers);
            self.read_ahead(source, &Window::of_request(pages));
        }
    }
}

/// Returns the byte offset within its page.
fn within_page(offset: u64, size: usize) -> usize {
    usize::try_from(offset % size as u64).expect("less than a page")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::cache::{Access, Presence};
    use crate::manager::zeros::Zeros;
    use crate::units::PAGE_BYTES;

    #[test]
    fn the_copying_read_that_brings_a_page_in_is_the_only_one_that_does_not_count() {
        // Goal: each other read counts, also of a page that a mapping or another handle brought in.
        // Method: check the credit of pages under the default policy; pages 3 and later come in by
        // readahead.
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let hw = Manager::builder().build().expect("a manager");
            let file = hw
                .open_backing(Arc::new(Zeros { pages: 64 }), access)
                .expect("a file");
            let map = hw.space(&hw.root()).map_file(&file, 0..1);
            let map = map.expect("within the file");
            let copy = |page: u64| {
                let group = hw.root();
                let got = file.read_at(&group, page * PAGE_BYTES, &mut [0; 8]);
                assert_eq!(got.expect("it can be read"), 8);
            };
            let has_accesses = |page| match hw.core().cache.lookup(file.entry().key(page)) {
                Presence::Resident(pfn) => hw.core().cache.has_accesses(pfn),
                Presence::Absent => panic!("page {page} is not there"),
            };
            match access {
                Access::ReadOnly => _ = map.read(&hw.enter(), 0).expect("it can be read"),
                Access::ReadWrite => _ = map.read_latched(0).expect("it can be read"),
            }
            assert!(!has_accesses(0), "an entry says that");
            copy(20);
            copy(0);
            assert!(!has_accesses(20) && has_accesses(0));
            copy(20);
            assert!(has_accesses(20));
            file.will_need(&hw.root(), 3..5);
            copy(3);
            copy(4);
            assert!(!has_accesses(3) && !has_accesses(4));
            copy(3);
            assert!(has_accesses(3) && !has_accesses(4));
        }
    }
}
