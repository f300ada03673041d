//! Block traces and page traces: `arc`, `vscsi`, `lirs`, `address`. They name places of one address
//! space, and a request touches every 4 KiB page that its bytes lie in.
//!
//! - `arc`: lines `start count ignored seq`: the `count` consecutive blocks from `start`. Blocks
//!   are 512 bytes unless the options say another size. Reads only.
//!   Source: N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST
//!   2003, and the files published with it.
//! - `vscsi`: 32-byte little-endian records: u32 sn, u32 length in bytes, u32 nSG, u16 opcode, u16
//!   version (0x0100), u64 first 512-byte sector, u64 microseconds.
//!   Source: the version 1 record of libCacheSim's vscsi reader, as a data layout.
//! - `lirs`: one decimal page number a line; lines `*` are break marks between runs.
//!   Source: S. Jiang and X. Zhang, "LIRS", SIGMETRICS 2002, and its traces.
//! - `address`: lines `l|s 0xADDRESS n`: a load or a store, after `n` instructions.
//!
//! A request of no bytes is legal (SCSI: a transfer length of 0 is no error) and touches nothing:
//! it is counted as empty and skipped.

use highwater::units::PAGE_BYTES;

use super::error::Fault;
use super::request::{Op, Parsed, Request};
use super::text::{Fields, is_blank};

/// Bytes of a `vscsi` record.
pub(super) const VSCSI_RECORD: usize = 32;

/// Bytes of a sector in `vscsi`, and of a block in `arc` unless the options say otherwise.
pub(super) const SECTOR_BYTES: u32 = 512;

const VSCSI_VERSION: u16 = 0x0100;

/// Parses one line of `arc`.
#[inline]
pub(super) fn parse_arc(line: &[u8], block_size: u32) -> Result<Parsed, Fault> {
    let Some((start, count)) = arc_fields(line) else {
        if is_blank(line) {
            return Ok(Parsed::Blank);
        }
        return Err(Fault::shape("four numbers: start, count, ignored, seq"));
    };
    let block_bytes = u64::from(block_size);
    let Some(first_byte) = start.checked_mul(block_bytes) else {
        return Err(Fault::value("start", start, "a block of a page below 2^44"));
    };
    let Some(bytes) = count.checked_mul(block_bytes) else {
        return Err(Fault::value(
            "count",
            count,
            "blocks of at most 2^20 pages, 4 GiB",
        ));
    };
    Request::on_bytes(Op::Read, first_byte, bytes)
}

#[inline]
fn arc_fields(line: &[u8]) -> Option<(u64, u64)> {
    let mut fields = Fields::new(line);
    let start = fields.number()?;
    let count = fields.number()?;
    fields.number()?;
    fields.number()?;
    fields.is_at_end().then_some((start, count))
}

/// Parses one line of `lirs`.
#[inline]
pub(super) fn parse_lirs(line: &[u8]) -> Result<Parsed, Fault> {
    let mut fields = Fields::new(line);
    if let Some(page) = fields.number()
        && fields.is_at_end()
    {
        return Request::on_pages(Op::Read, page, 1);
    }
    let mut fields = Fields::new(line);
    if fields.is_at_end() || (fields.letter() == Some(b'*') && fields.is_at_end()) {
        return Ok(Parsed::Blank);
    }
    Err(Fault::shape("one page number, or `*`"))
}

/// Parses one line of `address`.
#[inline]
pub(super) fn parse_address(line: &[u8]) -> Result<Parsed, Fault> {
    match address_fields(line) {
        Some((op, address)) => Request::on_pages(op, address / PAGE_BYTES, 1),
        None if is_blank(line) => Ok(Parsed::Blank),
        None => Err(Fault::shape(
            "`l` or `s`, a hexadecimal address with 0x, a number",
        )),
    }
}

#[inline]
fn address_fields(line: &[u8]) -> Option<(Op, u64)> {
    let mut fields = Fields::new(line);
    let op = match fields.letter()? {
        b'l' => Op::Read,
        b's' => Op::Write,
        _ => return None,
    };
    let address = fields.hexadecimal()?;
    fields.number()?;
    fields.is_at_end().then_some((op, address))
}

/// Parses one record of `vscsi`.
#[inline]
pub(super) fn parse_vscsi(record: &[u8; VSCSI_RECORD]) -> Result<Parsed, Fault> {
    let [
        _,
        _,
        _,
        _,
        l0,
        l1,
        l2,
        l3,
        _,
        _,
        _,
        _,
        c0,
        c1,
        v0,
        v1,
        rest @ ..,
    ] = record;
    let [b0, b1, b2, b3, b4, b5, b6, b7, ..] = rest;
    let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
    let opcode = u16::from_le_bytes([*c0, *c1]);
    let version = u16::from_le_bytes([*v0, *v1]);
    let sector = u64::from_le_bytes([*b0, *b1, *b2, *b3, *b4, *b5, *b6, *b7]);
    if version != VSCSI_VERSION {
        return Err(Fault::value("version", u64::from(version), "version 256"));
    }
    let Some(op) = scsi_op(opcode) else {
        let expected = "the opcode of a READ or WRITE command of 6, 10, 12 or 16 bytes";
        return Err(Fault::value("opcode", u64::from(opcode), expected));
    };
    let Some(first_byte) = sector.checked_mul(u64::from(SECTOR_BYTES)) else {
        return Err(Fault::value("sector", sector, "a sector of a page < 2^44"));
    };
    Request::on_bytes(op, first_byte, u64::from(length))
}

/// The commands that move data: READ and WRITE in their 6-, 10-, 12- and 16-byte forms.
/// Source: T10 SCSI Block Commands, operation codes.
#[inline]
const fn scsi_op(opcode: u16) -> Option<Op> {
    match opcode {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a => Some(Op::Write),
        _ => None,
    }
}
