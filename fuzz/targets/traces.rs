//! Every trace format, detected or named, plain or compressed, strict or lenient: reading ends, and
//! each request is within the limits that the reader promises.
//!
//! The first byte names the format, the second the other options; the rest is the trace.
#![no_main]

use std::io::Cursor;

use highwater_lab::trace::{
    COUNT_LIMIT, Format, Lenient, PAGE_LIMIT, ReaderOptions, Target, TraceReader,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [format, options, trace @ ..] = data else {
        return;
    };
    let options = ReaderOptions {
        // A number beyond the formats leaves it to the content.
        format: Format::ALL.get(usize::from(format % 16)).copied(),
        block_size: (options & 1 != 0).then_some(1 << (options >> 5)),
        columns: (options & 2 != 0).then(|| "time=1,key=2,size=3,op=4".parse().unwrap()),
        lenient: match options & 4 {
            0 => Lenient::StopAtBad,
            _ => Lenient::SkipBad,
        },
        ..ReaderOptions::default()
    };
    let reader = TraceReader::from_reader("input", Cursor::new(trace.to_vec()), &options);
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for request in reader.by_ref() {
        match request.map(|request| request.target) {
            Ok(Target::Pages { first, count }) => {
                assert!(first < PAGE_LIMIT && (1..=COUNT_LIMIT).contains(&count));
            }
            Ok(Target::Key { pages, .. }) => assert!((1..=COUNT_LIMIT).contains(&pages)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(reader.next().is_none(), "a reader that has ended goes on");
});
