//! Promise: an error of a read, a range, a sync or an open says in its text which page or range it
//! is about and the numbers that it has, the same by every way to the page; and after it nothing is
//! cached, charged, unmapped or lost.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

mod support;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{
    Access, Backing, Bytes, File, Limits, Manager, Mapping, Pages, SyncError, WriteGate,
};
use support::{TestFile, assert_empty, mapped};

/// The answer of storage to a request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Whole,
    Fails,
    /// This many bytes.
    Moves(usize),
    /// So many bytes more than it was asked for.
    Exceeds(usize),
    Panics,
}

impl Answer {
    fn of(self, len: usize) -> io::Result<usize> {
        match self {
            Self::Whole => Ok(len),
            Self::Fails => Err(io::Error::other("as told")),
            Self::Moves(count) => Ok(count),
            Self::Exceeds(excess) => Ok(len + excess),
            Self::Panics => panic!("as told"),
        }
    }
}

/// Sevens of any length, which can be changed, with an answer for reads, and one for the writes of
/// each page.
#[derive(Debug)]
struct Sevens {
    len: Mutex<u64>,
    page_size: usize,
    reads: Mutex<Answer>,
    nr_reads: Mutex<u64>,
    writes: Mutex<Vec<(u64, Answer)>>,
    syncs: Mutex<Answer>,
}

impl Sevens {
    fn new(len: u64) -> Arc<Self> {
        Self::in_pages_of(PAGE_SIZE, len)
    }

    fn in_pages_of(page_size: usize, len: u64) -> Arc<Self> {
        Arc::new(Self {
            len: Mutex::new(len),
            page_size,
            reads: Mutex::new(Answer::Whole),
            nr_reads: Mutex::new(0),
            writes: Mutex::default(),
            syncs: Mutex::new(Answer::Whole),
        })
    }

    fn open(self: &Arc<Self>, hw: &Manager, access: Access) -> File {
        let backing = Arc::clone(self) as Arc<dyn Backing>;
        hw.open_backing(backing, access).unwrap()
    }
}

impl Backing for Sevens {
    fn len(&self) -> u64 {
        *self.len.lock().unwrap()
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        *self.nr_reads.lock().unwrap() += 1;
        buf.fill(7);
        let answer = *self.reads.lock().unwrap();
        answer.of(buf.len())
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        let answer = {
            let writes = self.writes.lock().unwrap();
            let told = writes.iter().find(|(of, _)| *of == page);
            told.map_or(Answer::Whole, |(_, answer)| *answer)
        };
        answer.of(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        let answer = *self.syncs.lock().unwrap();
        answer.of(0).map(drop)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        *self.len.lock().unwrap() = len;
        Ok(())
    }
}

/// A manager without readahead, so that a read asks storage for its own page.
fn quiet() -> Manager {
    let builder = Manager::builder().capacity(Pages(256).bytes());
    builder.readahead(Pages(0)).build().unwrap()
}

/// Five pages and a hundred bytes.
const LEN: u64 = 5 * PAGE_BYTES + 100;

/// Opens sevens, and maps the file's pages 2 to 6 as pages 0 to 4.
fn upper_part(hw: &Manager, storage: &Arc<Sevens>, access: Access) -> (File, Mapping) {
    let file = storage.open(hw, access);
    let map = hw.space(&hw.root()).map_file(&file, 2..6).unwrap();
    (file, map)
}

/// Returns the text of the error of each way to a page of a read-only file, which is the same.
fn refusal(hw: &Manager, map: &Mapping, page: u64) -> String {
    let texts = [
        map.read(&hw.enter(), page).map(drop).unwrap_err(),
        map.pin(page).map(drop).unwrap_err(),
        hw.block_on(map.read_async(page)).map(drop).unwrap_err(),
    ]
    .map(|error| error.to_string());
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    texts[0].clone()
}

/// As `refusal`, for a writable file.
fn refusal_of_latch(hw: &Manager, map: &Mapping, page: u64) -> String {
    let texts = [
        map.read_latched(page).map(drop).unwrap_err(),
        map.write(page).map(drop).unwrap_err(),
        hw.block_on(map.read_latched_async(page))
            .map(drop)
            .unwrap_err(),
        hw.block_on(map.write_async(page)).map(drop).unwrap_err(),
    ]
    .map(|error| error.to_string());
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    texts[0].clone()
}

const AS_TOLD: [(Answer, u64, &str); 5] = [
    (Answer::Fails, 1, "reading page 3 failed: as told"),
    (
        Answer::Moves(7),
        0,
        "short read of page 2: 7 of 4096 bytes; was the file truncated?",
    ),
    (
        Answer::Moves(99),
        3,
        "short read of page 5: 99 of 100 bytes; was the file truncated?",
    ),
    (
        Answer::Exceeds(5),
        0,
        "reading page 2 failed: the storage reported 4101 of 4096 bytes",
    ),
    (
        Answer::Exceeds(1),
        3,
        "reading page 5 failed: the storage reported 101 of 100 bytes",
    ),
];

#[test]
fn a_read_that_storage_spoils_names_the_page_of_the_file() {
    // Goal: the text has the page's number in the file and the bytes, counted by the file's end in
    // a partial page; nothing stays charged, and the same page can be read afterwards. Method: a
    // mapping that begins in the middle, by each way to a page.
    let hw = quiet();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let storage = Sevens::new(LEN);
        let (file, map) = upper_part(&hw, &storage, access);
        for (answer, page, expected) in AS_TOLD {
            *storage.reads.lock().unwrap() = answer;
            let text = match access {
                Access::ReadOnly => refusal(&hw, &map, page),
                Access::ReadWrite => refusal_of_latch(&hw, &map, page),
            };
            assert_eq!(text, expected);
            let at = (page + 2) * PAGE_BYTES;
            let copied = file.read_at(&hw.root(), at, &mut [0; 8]).unwrap_err();
            assert_eq!(copied.to_string(), expected);
            assert_eq!(hw.root().usage_precise(), Bytes::ZERO, "{answer:?}");
            assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO, "{answer:?}");
        }
        *storage.reads.lock().unwrap() = Answer::Whole;
        let mut tail = [0; 200];
        let got = file.read_at(&hw.root(), 5 * PAGE_BYTES, &mut tail).unwrap();
        assert_eq!((got, tail[99], tail[100]), (100, 7, 0));
        drop((file, map));
        assert_empty(&hw);
    }
}

#[test]
fn a_page_that_cannot_be_had_says_why() {
    // Goal: pages outside the mapping, unmapped ones, those behind the file's end, and calls for
    // the other kind of access are told apart, before storage is asked. Method: each by each way.
    let hw = quiet();
    let storage = Sevens::new(LEN);
    let (file, map) = upper_part(&hw, &storage, Access::ReadOnly);
    map.unmap(1..2).unwrap();
    let outside =
        |page: u64| format!("page {page} is outside the mapping, which has 4 pages from 0");
    assert_eq!(refusal(&hw, &map, 4), outside(4));
    assert_eq!(refusal(&hw, &map, u64::MAX), outside(u64::MAX));
    assert_eq!(refusal(&hw, &map, 1), "page 1 of the mapping was unmapped");
    assert_eq!(
        refusal_of_latch(&hw, &map, 0),
        "the file is open to read only, but the call is for files open to write"
    );
    assert_eq!(refusal_of_latch(&hw, &map, 4), outside(4));
    let empty = hw.space(&hw.root()).map_file(&file, 6..6).unwrap();
    let text = "page 0 is outside the mapping, which has 0 pages from 0";
    assert_eq!(refusal(&hw, &empty, 0), text);
    assert_eq!(*storage.nr_reads.lock().unwrap(), 0, "no page was read");
    drop((file, map, empty));

    let (file, map) = upper_part(&hw, &storage, Access::ReadWrite);
    map.unmap(1..2).unwrap();
    assert_eq!(
        refusal(&hw, &map, 0),
        "the file is open to write, but the call is for files open to read only"
    );
    file.set_len(Bytes(3 * PAGE_BYTES)).unwrap();
    let behind =
        |page: u64| format!("page {page} is behind the end of the file, which has 3 pages now");
    assert_eq!(refusal_of_latch(&hw, &map, 2), behind(4));
    assert_eq!(refusal_of_latch(&hw, &map, 3), behind(5));
    let gone = refusal_of_latch(&hw, &map, 1);
    assert_eq!(gone, "page 1 of the mapping was unmapped");
    assert_eq!(refusal_of_latch(&hw, &map, 4), outside(4));
    assert_eq!(*storage.nr_reads.lock().unwrap(), 0, "no page was read");
    drop((file, map));

    let none = hw.root().child("none", Limits::max(Bytes(4095))).unwrap();
    let file = storage.open(&hw, Access::ReadOnly);
    let map = hw.space(&none).map_file(&file, 1..3).unwrap();
    let text = refusal(&hw, &map, 1);
    assert!(text.starts_with("no memory for page 2: "), "{text}");
    assert!(text.contains("/none"), "{text}");
    drop((file, map));
    assert_empty(&hw);
}

#[test]
fn a_range_that_is_refused_changes_nothing() {
    // Goal: a range that ends outside, or before it begins, is told with its numbers, by each call
    // that takes one, and no page of it is unmapped, read or discarded; a range of no pages is
    // within. Method: ranges of which a part is within; pages are looked at after each.
    let hw = quiet();
    let storage = Sevens::new(LEN);
    let (file, map) = upper_part(&hw, &storage, Access::ReadOnly);
    let memory = hw.space(&hw.root()).map_anon(Pages(4)).unwrap();
    (0..4).for_each(|page| memory.write(page).unwrap().fill(8));
    let max = u64::MAX;
    for (start, end) in [(2, 5), (5, 5), (3, 1), (0, max), (max, max), (max, 0)] {
        let range = start..end;
        let of = |has: &str| format!("pages {start} to {end} (exclusive) are not within the {has}");
        let expected = of("mapping, which has 4");
        let refused = [
            map.unmap(range.clone()).unwrap_err().to_string(),
            map.will_need(range.clone()).unwrap_err().to_string(),
            memory.unmap(range.clone()).unwrap_err().to_string(),
            memory.discard(range.clone()).unwrap_err().to_string(),
        ];
        assert!(refused.iter().all(|text| *text == expected), "{refused:?}");
        let [start, end] = [start, end].map(|page: u64| page.saturating_add(2));
        let of_file = hw.space(&hw.root()).map_file(&file, start..end);
        let text = format!("pages {start} to {end} (exclusive) are not within the file");
        let refused = of_file.map(drop).unwrap_err().to_string();
        assert_eq!(refused, text + ", which has 6");
    }
    let one = map.prefetch([0, 3, 4, 1]).unwrap_err().to_string();
    let text = "pages 4 to 5 (exclusive) are not within the mapping, which has 4";
    assert_eq!(one, text);
    hw.check_invariants();
    assert_eq!(*storage.nr_reads.lock().unwrap(), 0, "no page was read");
    (0..4).for_each(|page| assert_eq!(memory.read_latched(page).unwrap()[9], 8));
    map.unmap(4..4).unwrap();
    map.will_need(2..2).unwrap();
    memory.discard(0..0).unwrap();
    map.prefetch(Vec::<u64>::new()).unwrap();
    assert_eq!(
        *storage.nr_reads.lock().unwrap(),
        0,
        "no page was asked for"
    );
    (0..4).for_each(|page| assert_eq!(map.read(&hw.enter(), page).unwrap()[9], 7));
    drop((file, map, memory));
    assert_empty(&hw);
}

#[test]
fn memory_beyond_its_maximum_and_of_files_is_refused() {
    // Goal: each refusal of memory has its reason; the largest object is made. Method: one page
    // more than the maximum, and a discard of a file's pages, which keep their bytes.
    let hw = quiet();
    let most = Pages(1 << 32);
    let text = "memory of 4294967297 pages is too large: at most 4294967296 pages at once";
    let above = Pages(most.0 + 1);
    let anon = hw.space(&hw.root()).map_anon(above).map(drop);
    assert_eq!(anon.unwrap_err().to_string(), text);
    assert_eq!(hw.shared_memory(above).unwrap_err().to_string(), text);
    let largest = hw.shared_memory(most).unwrap();
    let end = hw.space(&hw.root());
    let end = end.map_file(&largest, most.0 - 1..most.0).unwrap();
    end.write(0).unwrap()[4095] = 9;
    assert_eq!(end.read_latched(0).unwrap()[4094..], [0, 9]);
    assert_eq!(hw.root().usage_precise(), Pages(1).bytes());
    let (_file, map) = upper_part(&hw, &Sevens::new(LEN), Access::ReadWrite);
    map.write(0).unwrap()[0] = 8;
    let text = "the mapping is of a file, and only memory can be discarded";
    assert_eq!(map.discard(0..1).unwrap_err().to_string(), text);
    assert_eq!(map.discard(0..9).unwrap_err().to_string(), text);
    assert_eq!(map.read_latched(0).unwrap()[..2], [8, 7]);
}

#[test]
fn a_file_may_be_as_long_as_page_numbers_reach() {
    // Goal: the bound on the length is exact for each size of pages, by opening and by growing, and
    // the last page of the longest file is like others. Method: the longest file, and one byte
    // more.
    let hw = quiet();
    for (order, size) in [4096, 8192, 16_384, 32_768, 65_536_u64]
        .into_iter()
        .enumerate()
    {
        let most = if order == 0 { 1 << 44 } else { 1_u64 << 41 };
        let (len, page_size) = (most * size, usize::try_from(size).unwrap());
        let storage = Sevens::in_pages_of(page_size, len + 1);
        let opened = hw.open_backing(storage.clone(), Access::ReadWrite);
        let above = most + 1;
        assert_eq!(
            opened.unwrap_err().to_string(),
            format!("a file of {above} pages is too large: the maximum is {most} pages")
        );
        *storage.len.lock().unwrap() = len - 1;
        let file = storage.open(&hw, Access::ReadWrite);
        let grown = file.set_len(Bytes(len + 1)).unwrap_err();
        assert_eq!(grown.kind(), io::ErrorKind::FileTooLarge);
        let text = format!("a file has at most {most} pages");
        assert_eq!(grown.to_string(), text);
        assert_eq!((file.pages(), storage.len()), (most, len - 1));
        file.set_len(Bytes(len)).unwrap();
        let map = hw
            .space(&hw.root())
            .map_file(&file, most - 2..most)
            .unwrap();
        map.write(1).unwrap()[page_size - 1] = 8;
        let behind = hw.space(&hw.root()).map_file(&file, most..most).unwrap();
        assert_eq!(behind.pages(), 0);
        assert_eq!(file.dirty_pages(), [(FilePage(most - 1), 0)]);
        let mut last = [0; 3];
        assert_eq!(file.read_at(&hw.root(), len - 2, &mut last).unwrap(), 2);
        assert_eq!(last, [7, 8, 0]);
        file.sync_range(most - 1..most).unwrap();
        assert_eq!(file.dirty_pages(), []);
        drop((map, behind, file));
        assert_empty(&hw);
    }
}

#[test]
fn a_sync_counts_what_failed_and_tells_the_first() {
    // Goal: the number of failed pages is exact, the first in the file's order is told with its
    // bytes, the others reach storage, and the dirty pages are the failed ones. Method: every
    // answer of storage in one sync, and then each page by itself.
    let hw = quiet();
    let storage = Sevens::new(LEN);
    let (file, map) = mapped_whole(&hw, &storage);
    let failing = [
        (
            1,
            Answer::Panics,
            "writing page 1 back failed, it stays dirty: the storage panicked",
        ),
        (
            2,
            Answer::Fails,
            "writing page 2 back failed, it stays dirty: as told",
        ),
        (
            4,
            Answer::Exceeds(3),
            "short write-back of page 4, it stays dirty: 4099 of 4096 bytes",
        ),
        (
            5,
            Answer::Moves(50),
            "short write-back of page 5, it stays dirty: 50 of 100 bytes",
        ),
    ];
    *storage.writes.lock().unwrap() = failing.map(|(page, answer, _)| (page, answer)).into();
    (0..6).for_each(|page| map.write(page).unwrap()[0] = 8);
    let count = |failed: usize, first: &str| {
        format!("{failed} pages could not be written back and stay dirty; first: {first}")
    };
    let whole = file.sync().unwrap_err();
    assert_eq!(whole.to_string(), count(4, failing[0].2));
    let dirty = || file.dirty_pages().into_iter().map(|(page, _)| page.0);
    assert_eq!(Vec::from_iter(dirty()), [1, 2, 4, 5]);
    for (page, _, text) in failing {
        let alone = file.sync_range(page..page + 1).unwrap_err();
        assert_eq!(alone.to_string(), count(1, text));
    }
    assert_eq!(
        file.sync_range(2..6).unwrap_err().to_string(),
        count(3, failing[1].2)
    );
    file.sync_range(3..4).unwrap();
    let back = 6;
    file.sync_range(back..2).unwrap();
    storage.writes.lock().unwrap().clear();
    file.sync_range(4..u64::MAX).unwrap();
    assert_eq!(Vec::from_iter(dirty()), [1, 2]);
    file.sync().unwrap();
    assert_eq!(dirty().count(), 0);
    drop((file, map));
    assert_empty(&hw);
}

fn mapped_whole(hw: &Manager, storage: &Arc<Sevens>) -> (File, Mapping) {
    let file = storage.open(hw, Access::ReadWrite);
    let map = hw.space(&hw.root()).map_file(&file, 0..6).unwrap();
    (file, map)
}

#[test]
fn what_was_not_made_durable_is_told_with_its_reason() {
    // Goal: the handle that failed tells storage's error, another one the number of failures and
    // the last error, also by a checkpoint and by a range of no pages; a later handle none. Method:
    // two failures, then storage that has recovered.
    let hw = quiet();
    let storage = Sevens::new(LEN);
    let (file, map) = mapped_whole(&hw, &storage);
    let others = [(); 3].map(|()| file.clone());
    map.write(0).unwrap()[0] = 8;
    *storage.syncs.lock().unwrap() = Answer::Panics;
    let failed = file.sync().unwrap_err();
    let told = "all pages were written, but making them durable failed: ";
    assert_eq!(failed.to_string(), format!("{told}the storage panicked"));
    assert_eq!(file.dirty_pages(), [], "the page counts as written");
    *storage.syncs.lock().unwrap() = Answer::Fails;
    let failed = file.checkpoint(9, Pages(1)).unwrap_err();
    assert_eq!(failed.to_string(), format!("{told}as told"));
    *storage.syncs.lock().unwrap() = Answer::Whole;
    file.sync().unwrap();
    let earlier = [
        others[0].sync().unwrap_err(),
        others[1].sync_range(3..3).unwrap_err(),
        others[2].checkpoint(9, Pages::ZERO).map(drop).unwrap_err(),
    ];
    for error in earlier {
        assert!(matches!(error, SyncError::Earlier { failures: 2, .. }));
        assert_eq!(
            error.to_string(),
            "this sync succeeded, but 2 others failed to make pages durable since this handle's \
             last sync, and data can be lost; last: as told"
        );
    }
    others.iter().for_each(|other| other.sync().unwrap());
    file.clone().sync().unwrap();
}

/// A log that is never asked.
#[derive(Debug)]
struct Unused;

impl WriteGate for Unused {
    fn durable_lsn(&self) -> u64 {
        u64::MAX
    }

    fn flush(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn mistakes_of_the_program_are_panics_that_say_so() {
    // Goal: each documented panic, and no lasting harm. Method: handles of another manager, gates
    // where there can be none, bytes outside a page, and a counter that there is not.
    let (hw, other) = (quiet(), quiet());
    let (file, map) = mapped(&hw, &TestFile::new(4), Access::ReadOnly);
    let (written, pages) = mapped(&hw, &TestFile::new(4), Access::ReadWrite);
    map.read(&hw.enter(), 0).unwrap();
    drop(pages.read_latched(0).unwrap());
    written.set_write_gate(Arc::new(Unused));
    let memory = hw.shared_memory(Pages(1)).unwrap();
    let (root, guard) = (other.root(), other.enter());
    let optimistic = || pages.read_optimistic(0).unwrap();
    let mistakes: [(&str, &dyn Fn()); 13] = [
        ("the group is of another manager", &|| drop(hw.space(&root))),
        ("the group is of another manager", &|| {
            file.will_need(&root, 0..1)
        }),
        ("the group is of another manager", &|| {
            drop(file.read_at(&root, 0, &mut [0; 1]));
        }),
        ("the file is of another manager", &|| {
            drop(other.space(&root).map_file(&file, 0..1));
        }),
        ("another manager", &|| drop(map.read(&guard, 0).map(drop))),
        ("another manager", &|| _ = map.try_read(&guard, 0)),
        ("has a write gate", &|| {
            written.set_write_gate(Arc::new(Unused))
        }),
        ("never written to a file", &|| {
            file.set_write_gate(Arc::new(Unused))
        }),
        ("never written to a file", &|| {
            memory.set_write_gate(Arc::new(Unused))
        }),
        ("", &|| _ = optimistic().array_at::<2>(PAGE_SIZE - 1)),
        ("", &|| _ = optimistic().array_at::<1>(usize::MAX)),
        ("", &|| optimistic().copy_to(1, &mut [0; PAGE_SIZE])),
        ("no counter is named `pgfaults`", &|| {
            _ = hw.snapshot().counter("pgfaults");
        }),
    ];
    for (nth, (expected, mistake)) in mistakes.into_iter().enumerate() {
        let panic = catch_unwind(AssertUnwindSafe(mistake)).expect_err("a panic");
        let text = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
        };
        assert!(text.contains(expected), "{nth}: {text}");
    }
    let edge = optimistic();
    assert_eq!(edge.array_at(PAGE_SIZE - 1), [0x5a]);
    assert_eq!(edge.array_at(PAGE_SIZE), []);
    edge.copy_to(PAGE_SIZE, &mut []);
    assert!(edge.validate());
    drop((guard, file, map, written, pages, memory));
    assert_empty(&hw);
    assert_empty(&other);
}
