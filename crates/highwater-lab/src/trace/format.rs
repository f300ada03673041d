//! Names of the formats and of the compressions. Parsing, printing and messages use one list,
//! [`Format::ALL`].

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The layout of a trace's records, described in the header of [`trace`](super).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Lines `start count ignored seq` of blocks.
    Arc,
    /// One page number a line; `*` lines are break marks.
    Lirs,
    /// An array of big-endian 32-bit keys.
    U32Be,
    /// An array of big-endian 64-bit keys.
    U64Be,
    /// An array of little-endian 32-bit keys.
    U32Le,
    /// 32-byte records of SCSI commands, version 1.
    Vscsi,
    /// Lines `l|s 0xADDRESS n`: loads and stores.
    Address,
    /// Lines `time id size`: objects with sizes in bytes.
    AdaptSize,
    /// One JSON object a line with an array `hash_ids`.
    Mooncake,
    /// libCacheSim's 24-byte records with the next access.
    OracleGeneral,
    /// Comma-separated columns that a header or the user names.
    Csv,
    /// Comma-separated block requests, as published with the MSR Cambridge traces.
    Msr,
    /// Comma-separated cache requests, as published for Twitter's clusters.
    Twitter,
    /// The project's own: variable-length deltas behind a header with counts.
    Highwater,
}

/// The names of [`Format::ALL`], for messages.
pub(super) const FORMAT_NAMES: &str = "arc, lirs, u32be, u64be, u32le, vscsi, address, adaptsize, mooncake, oracle-general, csv, msr, twitter, highwater";

impl Format {
    /// Every format.
    pub const ALL: [Self; 14] = [
        Self::Arc,
        Self::Lirs,
        Self::U32Be,
        Self::U64Be,
        Self::U32Le,
        Self::Vscsi,
        Self::Address,
        Self::AdaptSize,
        Self::Mooncake,
        Self::OracleGeneral,
        Self::Csv,
        Self::Msr,
        Self::Twitter,
        Self::Highwater,
    ];

    /// Returns the name in the command line and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arc => "arc",
            Self::Lirs => "lirs",
            Self::U32Be => "u32be",
            Self::U64Be => "u64be",
            Self::U32Le => "u32le",
            Self::Vscsi => "vscsi",
            Self::Address => "address",
            Self::AdaptSize => "adaptsize",
            Self::Mooncake => "mooncake",
            Self::OracleGeneral => "oracle-general",
            Self::Csv => "csv",
            Self::Msr => "msr",
            Self::Twitter => "twitter",
            Self::Highwater => "highwater",
        }
    }

    /// Returns whether traces of this format can hold writes; all others only read.
    #[must_use]
    pub const fn may_write(self) -> bool {
        matches!(
            self,
            Self::Vscsi | Self::Address | Self::Csv | Self::Msr | Self::Twitter | Self::Highwater
        )
    }

    /// Returns whether a record is a line of text.
    pub(super) const fn is_text(self) -> bool {
        matches!(
            self,
            Self::Arc
                | Self::Lirs
                | Self::Address
                | Self::AdaptSize
                | Self::Mooncake
                | Self::Csv
                | Self::Msr
                | Self::Twitter
        )
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that is not the name of a format.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not a trace format: expected one of {FORMAT_NAMES}")]
pub struct ParseFormatError {
    /// The text as given.
    pub text: String,
}

impl FromStr for Format {
    type Err = ParseFormatError;

    /// Parses a format's exact name.
    ///
    /// # Errors
    ///
    /// When the text is no name; the error lists the names.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| ParseFormatError {
            text: text.to_owned(),
        })
    }
}

/// Compression of a trace, detected from its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// Not compressed.
    Plain,
    /// Zstandard frames (RFC 8878).
    Zstd,
    /// Gzip members (RFC 1952).
    Gzip,
    /// Xz streams.
    Xz,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_messages_list_them_all() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(format.to_string(), format.name());
        }
        let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        assert_eq!(FORMAT_NAMES, names.join(", "));
        let error = "ARC".parse::<Format>().unwrap_err();
        assert!(error.to_string().contains(FORMAT_NAMES));
    }
}
