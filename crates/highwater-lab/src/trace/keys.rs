//! Key traces: the bare arrays `u32be`, `u64be`, `u32le`, the sized objects of `adaptsize` and
//! `oracle-general`, and the prefix blocks of `mooncake`.
//!
//! - `u32be`, `u64be`, `u32le`: arrays of keys; every key is a read of one page.
//! - `adaptsize`: lines `time id size`, size in bytes. Source: D. Berger, R. Sitaraman and M.
//!   Harchol-Balter, "AdaptSize", NSDI 2017, and the trace published with it.
//! - `oracle-general`: 24-byte little-endian records: u32 time, u64 object, u32 size in bytes, i64
//!   next request for the object. Writers disagree on the content of the last field and on how it
//!   says "none", so the reader ignores it. Source: the FAQ of libCacheSim, as a data layout.
//! - `mooncake`: a JSON object a line; each element of `hash_ids` is a read of one page, in order.
//!   Source: R. Qin et al., "Mooncake", FAST 2025, and its traces.
//!
//! An object without a size, or of size 0, has one page.

use serde::Deserialize;

use super::error::Fault;
use super::request::{Op, Parsed, Request};
use super::text::{Fields, is_blank};

/// Bytes of an `oracle-general` record.
pub(super) const ORACLE_RECORD: usize = 24;

/// Returns the request of a key in a bare array.
#[inline]
pub(super) fn parse_key(key: u64) -> Result<Parsed, Fault> {
    Request::on_key(Op::Read, key, 0)
}

/// Parses one line of `adaptsize`.
#[inline]
pub(super) fn parse_adaptsize(line: &[u8]) -> Result<Parsed, Fault> {
    match adaptsize_fields(line) {
        Some((key, bytes)) => Request::on_key(Op::Read, key, bytes),
        None if is_blank(line) => Ok(Parsed::Blank),
        None => Err(Fault::shape("three numbers: time, id, size")),
    }
}

#[inline]
fn adaptsize_fields(line: &[u8]) -> Option<(u64, u64)> {
    let mut fields = Fields::new(line);
    fields.number()?;
    let key = fields.number()?;
    let bytes = fields.number()?;
    fields.is_at_end().then_some((key, bytes))
}

/// The fields of an `oracle-general` record.
#[derive(Clone, Copy, Debug)]
pub(super) struct OracleRecord {
    pub(super) time: u32,
    pub(super) key: u64,
    pub(super) size: u32,
    pub(super) next_access: i64,
}

impl OracleRecord {
    #[inline]
    pub(super) fn new(record: &[u8; ORACLE_RECORD]) -> Self {
        let [t0, t1, t2, t3, k0, k1, k2, k3, k4, k5, k6, k7, rest @ ..] = *record;
        let [s0, s1, s2, s3, n0, n1, n2, n3, n4, n5, n6, n7] = rest;
        Self {
            time: u32::from_le_bytes([t0, t1, t2, t3]),
            key: u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]),
            size: u32::from_le_bytes([s0, s1, s2, s3]),
            next_access: i64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]),
        }
    }
}

/// Parses one record of `oracle-general`.
#[inline]
pub(super) fn parse_oracle(record: &[u8; ORACLE_RECORD]) -> Result<Parsed, Fault> {
    let fields = OracleRecord::new(record);
    Request::on_key(Op::Read, fields.key, u64::from(fields.size))
}

/// The part of a `mooncake` line that is read; other members are ignored.
#[derive(Deserialize)]
struct MooncakeLine {
    hash_ids: Vec<u64>,
}

/// Parses one line of `mooncake`. The whole line is parsed before its first request is returned, so
/// a bad line yields none.
pub(super) fn parse_mooncake(line: &[u8]) -> Result<Parsed, Fault> {
    if is_blank(line) {
        return Ok(Parsed::Blank);
    }
    match serde_json::from_slice::<MooncakeLine>(line) {
        Ok(MooncakeLine { hash_ids }) if hash_ids.is_empty() => Ok(Parsed::Empty),
        Ok(MooncakeLine { hash_ids }) => Ok(Parsed::Keys(hash_ids)),
        Err(_) => Err(Fault::shape(
            "a JSON object with `hash_ids`, an array of whole numbers",
        )),
    }
}
