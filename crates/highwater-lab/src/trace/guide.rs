//! User documentation of the trace formats: the layout of a record, and an example of each that
//! `printf` makes in a shell.

use super::format::Format;

/// Documentation of a format.
#[derive(Clone, Copy, Debug)]
pub struct FormatGuide {
    /// The format.
    pub format: Format,
    /// A record, and its meaning.
    pub record: &'static str,
    /// Traces that can be made at a shell's prompt.
    pub examples: &'static [Example],
}

/// A small trace.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// Its bytes, as the format of `printf(1)`.
    pub printf: &'static str,
    /// Options that the reader needs besides the format.
    pub options: &'static str,
    /// Requests that a reader finds in it.
    pub requests: u64,
    /// Pages of 4 KiB that the requests touch.
    pub accesses: u64,
}

const fn example(printf: &'static str, requests: u64, accesses: u64) -> Example {
    Example {
        printf,
        options: "",
        requests,
        accesses,
    }
}

/// Every format, in the order of [`Format::ALL`].
pub const GUIDE: [FormatGuide; 14] = [
    FormatGuide {
        format: Format::Arc,
        record: "\
text, a line a request: start, count, ignored, sequence number. The first two
are in blocks of 512 bytes, or of --block-size. Reads only.",
        examples: &[example(r"110765 64 0 0\n7 2 0 1\n", 2, 11)],
    },
    FormatGuide {
        format: Format::Lirs,
        record: "\
text, a page number a line; lines of * are ignored. Reads only.",
        examples: &[example(r"17\n18\n*\n17\n", 3, 3)],
    },
    FormatGuide {
        format: Format::U32Be,
        record: "\
binary, big-endian keys of 32 bits, a page each. Reads only. Never detected.",
        examples: &[example(r"\0\0\0\7\0\0\0\10", 2, 2)],
    },
    FormatGuide {
        format: Format::U64Be,
        record: "\
binary, big-endian keys of 64 bits, a page each. Reads only. Never detected.",
        examples: &[example(r"\0\0\0\0\0\0\0\7", 1, 1)],
    },
    FormatGuide {
        format: Format::U32Le,
        record: "\
binary, little-endian keys of 32 bits, a page each. Reads only. Never detected.",
        examples: &[example(r"\7\0\0\0\10\0\0\0", 2, 2)],
    },
    FormatGuide {
        format: Format::Vscsi,
        record: "\
binary, 32 bytes a SCSI command, little-endian: u32 number, u32 bytes, u32
segments, u16 opcode, u16 version (bits 8 to 15 are 1), u64 sector of 512 bytes,
u64 time.",
        examples: &[example(
            r"\1\0\0\0\0\40\0\0\1\0\0\0\50\0\0\1\20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            1,
            2,
        )],
    },
    FormatGuide {
        format: Format::Address,
        record: "\
text, a line a load (l) or store (s): l|s, address as 0xHEX, ignored. The page
that the address lies in is touched.",
        examples: &[example(r"s 0x1fffff50 1\nl 0x30031000 14\n", 2, 2)],
    },
    FormatGuide {
        format: Format::AdaptSize,
        record: "\
text, a line a request: time, id of an object, its size in bytes. Reads only.",
        examples: &[example(r"1 0 68\n2 1 7454\n3 0 68\n", 3, 4)],
    },
    FormatGuide {
        format: Format::Mooncake,
        record: "\
text, a JSON object a line; each element of `hash_ids` is a read of one page.",
        examples: &[example(
            r#"{"timestamp": 0, "hash_ids": [0, 14, 15]}\n{"hash_ids": [0]}\n"#,
            4,
            4,
        )],
    },
    FormatGuide {
        format: Format::OracleGeneral,
        record: "\
binary, 24 bytes a request, little-endian: u32 time, u64 id of an object, u32
size in bytes, i64 next access (not used). Reads only.",
        examples: &[example(
            r"\1\0\0\0\7\0\0\0\0\0\0\0\0\40\0\0\377\377\377\377\377\377\377\377",
            1,
            2,
        )],
    },
    FormatGuide {
        format: Format::Csv,
        record: "\
text, fields between commas, without quoting. The first line names the columns,
or --columns does, and then there need not be one: key, and perhaps time, size
in bytes and op (read, get, gets, r; write, set, put, w, add, replace, cas,
append, prepend, incr, decr; delete touches nothing). Other columns are ignored.
Keys are numbers or any other text.",
        examples: &[
            example(
                r"time,key,size,op\n0,7,,read\n1,8,4097,SET\n2,7,,read\n",
                3,
                4,
            ),
            Example {
                printf: r"0.5,user:7,GET,200\n0.7,user:8,PUT,9000\n",
                options: "--columns time=1,key=2,op=3,size=4",
                requests: 2,
                accesses: 4,
            },
        ],
    },
    FormatGuide {
        format: Format::Msr,
        record: "\
text, the MSR Cambridge traces: time, host, disk, Read or Write, offset and
size in bytes, latency. One volume a file: host and disk are ignored. A line
that names type, offset and size may stand above.",
        examples: &[example(
            r"128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,4096,4096,68\n",
            2,
            9,
        )],
    },
    FormatGuide {
        format: Format::Twitter,
        record: "\
text, the traces of Twitter's cache clusters: time, key, key size, value size,
client, op, TTL. An object is as large as its key and value; ops as in csv.",
        examples: &[example(
            r"0,yDqF:3q:1AJrrJ1nnCJKKrnGx1A,27,27,5,get,0\n0,a,b,3,5000,4,set,300\n",
            2,
            3,
        )],
    },
    FormatGuide {
        format: Format::Highwater,
        record: "\
binary, Highwater's own. Version 1: the magic, u64 records, u64 page accesses,
then two LEB128 numbers a record. Version 2, of `highwater record`: the magic,
then blocks of a kind, a u32 length and content: text, files and their names,
places of their pages, records, lost events, the end (traces/README.md).",
        examples: &[
            example(r"HWTRACE1\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\24\0\1\1", 2, 3),
            example(
                r"HWTRACE2\2\5\0\0\0\0\0\0\7f\3\4\0\0\0\0\100\0\0\4\6\0\0\0\2\3\24\0\1\1\6\3\0\0\0\2\3\0",
                2,
                3,
            ),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no format is forgotten.
    #[test]
    fn every_format_has_its_guide() {
        let guided = GUIDE.map(|guide| guide.format);
        assert_eq!(guided, Format::ALL);
        assert!(GUIDE.iter().all(|guide| !guide.examples.is_empty()));
    }
}
