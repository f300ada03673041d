//! The compact format: bytes that are a trace are written again as the same requests.
//!
//! The input is what follows the magic number. A recording, version 2, is read, and its
//! last page is looked up.
#![no_main]

use std::io::Cursor;

use highwater_lab::trace::{CompactWriter, Format, ReaderOptions, Request, Target, TraceReader};
use libfuzzer_sys::fuzz_target;

fn read(bytes: Vec<u8>) -> Option<Vec<Request>> {
    let options = ReaderOptions {
        format: Some(Format::Highwater),
        ..ReaderOptions::default()
    };
    let reader = TraceReader::from_reader("input", Cursor::new(bytes), &options).unwrap();
    reader.collect::<Result<_, _>>().ok()
}

fn look_up(bytes: Vec<u8>) {
    let options = ReaderOptions::default();
    let mut reader = TraceReader::from_reader("input", Cursor::new(bytes), &options).unwrap();
    let mut last = None;
    while let Some(Ok(request)) = reader.next() {
        last = Some(request.target);
    }
    if let (Some(recording), Some(Target::Pages { first, .. })) = (reader.recording(), last) {
        assert!(recording.file_of_page(first).is_none_or(|(file, _)| file.name.len() <= 4096));
    }
}

fuzz_target!(|data: &[u8]| {
    look_up([b"HWTRACE2", data].concat());
    let Some(requests) = read([b"HWTRACE1", data].concat()) else {
        return;
    };
    let mut writer = CompactWriter::seekable(Cursor::new(Vec::new())).unwrap();
    for request in &requests {
        let Target::Pages { first, count } = request.target else {
            panic!("the compact format holds pages");
        };
        writer.push(request.op, first, count).unwrap();
    }
    let written = writer.finish().unwrap().into_inner();
    assert_eq!(read(written), Some(requests));
});
