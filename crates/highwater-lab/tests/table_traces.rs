//! Promise: comma-separated tables are read with their columns in any order, and no record of any
//! trace asks for more than the limit.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

#[expect(
    dead_code,
    clippy::print_stderr,
    reason = "each test file uses its own part"
)]
mod trace_support;

use std::io::Cursor;

use highwater_lab::trace::{
    Format, Lenient, Op, ReaderOptions, Request, Target, TraceError, TraceReader,
};

use trace_support::{options, pages};

fn key(op: Op, key: u64, pages: u64) -> Request {
    let target = Target::Key { key, pages };
    Request { op, target }
}

fn read(bytes: &[u8], options: &ReaderOptions) -> Result<Vec<Request>, TraceError> {
    TraceReader::from_reader("sample", Cursor::new(bytes.to_vec()), options)?.collect()
}

// Goal: columns are found in any order, with a header or without one, and string keys distinguish
// objects. Method: one table in four shapes.
#[test]
fn csv_columns_are_read_wherever_they_are() {
    let columns = |text: &str| ReaderOptions {
        columns: Some(text.parse().unwrap()),
        ..ReaderOptions::default()
    };
    let expected = [
        key(Op::Read, 7, 1),
        key(Op::Write, 8, 2),
        key(Op::Read, 7, 1),
    ];
    let shapes = [
        (
            ReaderOptions::default(),
            "OP,Key,bytes\nget,7,1\nset,8,5000\nr,7,\n",
        ),
        (
            columns("key=2,op=1,size=3"),
            "get,7,1\nset,8,5000,more\nr,7,\n",
        ),
        (
            columns("key=2,op=1,size=3"),
            "verb,name,length\nget,7,1\nset,8,5000\nr,7,\n",
        ),
        (
            columns("time=1,key=3,op=4,size=2"),
            "when,a,b,c\n2026-01-01,,7,r\n0,8192,8,w\n0,1,7,r",
        ),
    ];
    for (options, text) in shapes {
        assert_eq!(read(text.as_bytes(), &options).unwrap(), expected, "{text}");
    }
    let only_key = read(b"a b\nuser:1\na b\n", &columns("key=1")).unwrap();
    assert_eq!(only_key.len(), 3);
    assert_eq!(only_key[0], only_key[2]);
    assert_ne!(only_key[0], only_key[1]);
    let commas = read(
        b"0,a,b,3,9,1,get,0\n0,a,c,3,9,1,get,0\n",
        &ReaderOptions::default(),
    );
    let commas = commas.unwrap();
    assert_ne!(commas[0], commas[1], "keys of twitter may hold commas");
    for (text, columns_are, found) in [
        ("1,2\n3\n", "key=2", "record 2 at byte 4: found `3`"),
        ("1,2\n3,\n", "key=2", "record 2 at byte 4: found `3,`"),
        (
            "1,2\n1,-2\n",
            "key=1,size=2",
            "record 2 at byte 4: found `1,-2`",
        ),
    ] {
        let error = read(text.as_bytes(), &columns(columns_are))
            .unwrap_err()
            .to_string();
        assert!(error.contains(found), "{error}");
    }
    let no_key = read(
        b"time,size,op\n",
        &options(Some(Format::Csv), Lenient::StopAtBad),
    );
    let error = no_key.unwrap_err().to_string();
    assert!(error.contains("--columns"), "{error}");
    let two_fields = read(b"key,size\n1,2,3\n", &ReaderOptions::default());
    assert!(
        two_fields.is_err(),
        "a record has as many fields as its header"
    );
}

// Goal: a record of a few bytes that asks for hours of work is an error that names it. Method: the
// largest request and one page more, in formats that can express it.
#[test]
fn a_request_has_at_most_two_to_the_twenty_pages() {
    let most = pages(Op::Read, 0, 1 << 20);
    let arc = read(b"0 8388608 0 0", &ReaderOptions::default()).unwrap();
    assert_eq!(arc, [most]);
    let mut huge = b"HWTRACE1".to_vec();
    huge.extend(1_u64.to_le_bytes());
    huge.extend((1_u64 << 32).to_le_bytes());
    huge.extend([0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert_eq!(huge.len(), 30);
    for (bytes, value) in [
        (
            b"0 8 0 0\n0 8388609 0 0".to_vec(),
            "record 2 at byte 8: found pages 1048577",
        ),
        (
            b"key,size\n1,4294967297\n".to_vec(),
            "record 2 at byte 9: found size 4294967297",
        ),
        (huge, "record 1 at byte 24: found count - 1 4294967295"),
    ] {
        let error = read(&bytes, &ReaderOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(value) && error.contains("4 GiB"), "{error}");
    }
}
