//! Recorded events of resident memory, plain or compressed: reading ends.
#![no_main]

use std::io::Cursor;

use highwater_lab::rss_trace::RssTrace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match RssTrace::from_reader("input", Cursor::new(data.to_vec())) {
        Ok(trace) => {
            for event in trace {
                if let Err(error) = event {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
