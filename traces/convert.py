#!/usr/bin/env python3
"""Converts kernel tracepoints to a Highwater trace, and checks one. Standard library only.

  convert.py encode EVENTS.txt OUT.hwt [--names INODES.txt]   text of tracefs' `trace` file -> trace
  convert.py check  TRACE.hwt[.zst] [--capacity-mib 64]       decode, re-encode, count, LRU hit ratio
  convert.py test                                             this file's own tests

The format (all of it):

  8 bytes   HWTRACE1
  u64 LE    number of records
  u64 LE    number of page accesses: the sum of all counts
  then, for each record, two LEB128 varints:
    zigzag(first_page - end_of_previous_record) << 1 | is_write
    count - 1
  where end = first_page + count of the previous record, 0 before the first one, and zigzag folds the
  sign into the lowest bit: n >= 0 -> 2n, n < 0 -> -2n - 1.

A record is one run of 4 KiB pages that the kernel looked up (read) or filled (write) at once. Page
numbers form one dense space: each inode gets a contiguous region, in order of first appearance,
up to its largest page in the recording.
"""

import argparse
import hashlib
import re
import struct
import subprocess
import sys
from collections import OrderedDict, defaultdict

MAGIC = b"HWTRACE1"
HEADER = struct.Struct("<8sQQ")
PAGE_SHIFT = 12

READ = re.compile(
    r"-(\d+) +\[\d+\] .*: mm_filemap_get_pages: dev=(\d+):(\d+) ino=([0-9a-f]+) ofs=(\d+)-(\d+)$"
)
WRITE = re.compile(
    r"-(\d+) +\[\d+\] .*: ext4_(?:da_)?write_end: "
    r"dev (\d+),(\d+) ino (\d+) pos (\d+) len \d+ copied (\d+)$"
)


def parse(lines):
    """Yields (thread, inode, first page, last page, is_write) in the order of the events."""
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or not line.strip():
            continue
        if found := READ.search(line):
            thread, major, minor, ino, low, high = found.groups()
            inode = (int(major), int(minor), int(ino, 16))
            yield int(thread), inode, int(low) >> PAGE_SHIFT, int(high) >> PAGE_SHIFT, False
        elif found := WRITE.search(line):
            thread, major, minor, ino, pos, copied = found.groups()
            if int(copied) == 0:  # the kernel will try again and say so
                continue
            inode = (int(major), int(minor), int(ino))
            first, last = int(pos), int(pos) + int(copied) - 1
            yield int(thread), inode, first >> PAGE_SHIFT, last >> PAGE_SHIFT, True
        else:
            sys.exit(f"line {number}: not an event of this recording: {line.rstrip()}")


def cut_continued(events):
    """Cuts a lookup short if the same thread's next lookup continues it.

    A read(2) that finds only part of its range in one go looks up the rest again: the events are
    `0..=73` and then `4..=73`. The pages from 4 on were accessed once, not twice.
    """
    kept, newest, cut = [], {}, 0
    for thread, inode, first, last, is_write in events:
        before = newest.get(thread)
        if before is not None and not is_write:
            _, earlier, low, high, wrote = kept[before]
            if not wrote and earlier == inode and high == last and low < first:
                kept[before] = (thread, inode, low, first - 1, False)
                cut += 1
        newest[thread] = len(kept)
        kept.append((thread, inode, first, last, is_write))
    return kept, cut


def lay_out(events):
    """Returns the first page of each inode's region, and the total number of pages."""
    pages = {}
    for _, inode, _, last, _ in events:
        pages[inode] = max(pages.get(inode, 0), last + 1)
    base, end = {}, 0
    for inode, count in pages.items():  # a dict keeps the order of insertion: of first sight
        base[inode], end = end, end + count
    return base, end


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(records):
    """Returns the bytes of a trace of (first page, count, is_write) records."""
    body, end, accesses = bytearray(), 0, 0
    for first, count, is_write in records:
        delta = first - end
        zigzag = delta * 2 if delta >= 0 else -delta * 2 - 1
        body += varint(zigzag << 1 | is_write) + varint(count - 1)
        end = first + count
        accesses += count
    return HEADER.pack(MAGIC, len(records), accesses) + body


def decode(data):
    """Yields the records of a trace; exits if it is invalid."""
    magic, total, accesses = HEADER.unpack_from(data)
    if magic != MAGIC:
        sys.exit(f"not a trace: it begins with {magic!r}, not {MAGIC!r}")
    at, end, records = HEADER.size, 0, []

    def next_varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    for _ in range(total):
        head = next_varint()
        zigzag, is_write = head >> 1, bool(head & 1)
        first = end + (zigzag >> 1 if zigzag & 1 == 0 else -(zigzag + 1 >> 1))
        count = next_varint() + 1
        records.append((first, count, is_write))
        end = first + count
    if at != len(data) or sum(count for _, count, _ in records) != accesses:
        sys.exit(f"corrupt: {len(data) - at} bytes after the last record, or a wrong header")
    return records


def lru_hits(records, capacity):
    """Returns the hits of an exact LRU of `capacity` pages."""
    resident, hits = OrderedDict(), 0
    for first, count, _ in records:
        for page in range(first, first + count):
            if page in resident:
                hits += 1
                resident.move_to_end(page)
            else:
                resident[page] = None
                if len(resident) > capacity:
                    resident.popitem(last=False)
    return hits


def describe_files(events, names_path, base):
    """Prints accesses by kind of file."""
    names = {}
    with open(names_path, encoding="utf-8") as lines:
        for line in lines:
            inode, path = line.rstrip("\n").split(" ", 1)
            names[int(inode)] = path
    total = defaultdict(lambda: [0, 0, set()])
    for _, inode, first, last, is_write in events:
        row = total[names.get(inode[2], "(outside the database, or removed)")]
        row[is_write] += last - first + 1
        row[2].update(range(base[inode] + first, base[inode] + last + 1))
    print("  reads   writes distinct  file")
    for path, (reads, writes, pages) in sorted(total.items(), key=lambda row: -sum(row[1][:2]))[:16]:
        print(f"{reads:7} {writes:8} {len(pages):8}  {path}")


def run_encode(args):
    with open(args.events, encoding="utf-8", errors="replace") as lines:
        events, cut = cut_continued(parse(lines))
    base, end = lay_out(events)
    records = [(base[i] + first, last - first + 1, w) for _, i, first, last, w in events]
    data = encode(records)
    assert decode(data) == records, "encoding and decoding disagree"
    with open(args.out, "wb") as out:
        out.write(data)
    print(f"{len(events)} events of {len(base)} files, {end} pages; {cut} continued lookups cut")
    if args.names:
        describe_files(events, args.names, base)


def run_check(args):
    with open(args.trace, "rb") as file:
        packed = file.read()
    data = packed
    if packed[:4] == b"\x28\xb5\x2f\xfd":
        data = subprocess.run(["zstd", "-dc"], input=packed, stdout=subprocess.PIPE, check=True).stdout
    records = decode(data)
    assert encode(records) == data, "decoding and encoding again gives other bytes"
    accesses = sum(count for _, count, _ in records)
    writes = sum(count for _, count, is_write in records if is_write)
    pages = {page for first, count, _ in records for page in range(first, first + count)}
    hits = lru_hits(records, args.capacity_mib * 256)
    print(f"file           {len(packed)} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")
    print(f"decoded        {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    print(f"records        {len(records)}")
    print(f"page accesses  {accesses} ({accesses - writes} reads, {writes} writes)")
    print(f"distinct pages {len(pages)}, largest page number {max(pages)}")
    print(f"LRU, {args.capacity_mib} MiB    {hits} hits, hit ratio {hits / accesses:.4f}")


SAMPLE = """\
# tracer: nop
     postgres-10  [001] .....  1.000001: mm_filemap_get_pages: dev=254:0 ino=1f ofs=0-303103
     postgres-11  [000] .....  1.000002: ext4_da_write_end: dev 254,0 ino 32 pos 4000 len 200 copied 200
     postgres-10  [001] .....  1.000003: mm_filemap_get_pages: dev=254:0 ino=1f ofs=16384-303103
     postgres-10  [001] .....  1.000004: mm_filemap_get_pages: dev=254:0 ino=1f ofs=8192-16383
     postgres-11  [000] .....  1.000005: ext4_write_end: dev 254,0 ino 32 pos 8192 len 8192 copied 0
     postgres-11  [000] .....  1.000006: ext4_write_end: dev 254,0 ino 32 pos 8192 len 8192 copied 8192
"""


def run_test(_):
    events, cut = cut_continued(parse(SAMPLE.splitlines()))
    base, end = lay_out(events)
    assert (cut, end, sorted(base.values())) == (1, 78, [0, 74])
    records = [(base[i] + first, last - first + 1, w) for _, i, first, last, w in events]
    assert records == [
        (0, 4, False),  # cut: the third event continues it
        (74, 2, True),  # bytes 4000..4200 touch two pages
        (4, 70, False),
        (2, 2, False),
        (76, 2, True),  # the event with `copied 0` is no access
    ]
    data = encode(records)
    # 74 - 4 = 70: zigzag 140, << 1 | write = 281 = 0x99 0x02; count - 1 = 1.
    assert data[24:29] == bytes([0, 3, 0x99, 2, 1])
    assert data[:24] == MAGIC + struct.pack("<QQ", 5, 80)
    assert decode(data) == records
    assert lru_hits([(0, 2, False), (0, 1, False), (2, 1, False), (1, 1, False), (2, 1, True)], 2) == 2
    print("convert.py: all tests pass")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("encode", help="tracefs text to a trace")
    command.add_argument("events")
    command.add_argument("out")
    command.add_argument("--names", help="lines `inode path`, to print accesses by file")
    command.set_defaults(run=run_encode)
    command = commands.add_parser("check", help="decode, re-encode, count, simulate an LRU")
    command.add_argument("trace")
    command.add_argument("--capacity-mib", type=int, default=64)
    command.set_defaults(run=run_check)
    command = commands.add_parser("test", help="this file's own tests")
    command.set_defaults(run=run_test)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
