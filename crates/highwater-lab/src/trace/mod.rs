//! Trace readers: recorded accesses of real systems, in many formats and compressions, as a
//! stream of page requests.
//!
//! A trace is opened by path ([`TraceReader::open`]) or read from any stream
//! ([`TraceReader::from_reader`]). The reader detects compression by magic bytes (zstd, gzip, xz),
//! and the [`Format`] by content if possible. It holds only a window of the stream,
//! so the length of a trace does not matter.
//!
//! | format | kind | record | target |
//! |---|---|---|---|
//! | `arc` | text | `start count ignored seq`, blocks of 512 bytes | pages |
//! | `lirs` | text | one page number; `*` is a break mark | pages |
//! | `address` | text | `l\|s 0xADDRESS n` | pages |
//! | `msr` | text | `time,host,disk,Read\|Write,offset,size,latency` | pages |
//! | `vscsi` | binary | 32 bytes: SCSI commands | pages |
//! | `highwater` | binary | two variable-length numbers; version 2 in blocks, with names | pages |
//! | `adaptsize` | text | `time id size` | key |
//! | `csv` | text | columns that a header or the options name | key |
//! | `twitter` | text | `time,key,key size,value size,client,op,TTL` | key |
//! | `mooncake` | text | JSON with `hash_ids` | keys |
//! | `oracle-general` | binary | 24 bytes: time, object, size, next access | key |
//! | `u32be` `u64be` `u32le` | binary | one key | key |
//!
//! Rules that hold in every format:
//!
//! - A request touches every page of 4,096 bytes that its bytes lie in. A key has pages of its own:
//!   `ceil(size / 4096)`, one when it has no size or the size is 0.
//! - A block request of no bytes touches nothing: it is counted as empty and skipped.
//! - Pages from 2^44 on and requests of more than 2^20 pages, 4 GiB, are bad records.
//! - In text, blank lines are no records, fields may be separated by several blanks, a line may end
//!   in CR LF, and the last one may lack its end. Record numbers are line numbers.
//! - No content makes a reader panic or run on:
//!   `tests/trace_formats.rs::mutations_never_panic_and_always_end`,
//!   `tests/traces.rs::damaged_streams_never_panic_and_always_end`.

mod blocks;
mod bucket;
mod compact;
mod csv;
pub(crate) mod decompress;
mod detect;
mod digest;
mod directory;
pub(crate) mod error;
mod format;
mod guide;
mod keys;
mod options;
mod reader;
mod recorded;
mod recording;
mod request;
mod skipped;
pub(crate) mod source;
pub(crate) mod text;
mod waiting;

pub use bucket::BucketStore;
pub use compact::{CompactWriter, WriteError};
pub use csv::{Columns, ParseColumnsError};
pub use digest::{Digest, Digesting};
pub use directory::KeyDirectory;
pub use error::{DirectoryError, TraceError};
pub use format::{Compression, Format, ParseFormatError};
pub use guide::{Example, FormatGuide, GUIDE};
pub use options::{Lenient, ReaderOptions};
pub use reader::{Progress, TraceReader};
pub use recorded::{RecordedFile, Recording};
pub use recording::{FileId, FileNumber, Packing, RecordingTotals, RecordingWriter};
pub use request::{COUNT_LIMIT, Op, PAGE_LIMIT, Request, Target};
pub use skipped::Skipped;
