//! The RSS traces that ship with the project, embedded in the program.

use super::error::RssTraceError;
use super::reader::RssTrace;

/// An RSS trace that ships with the project; `traces/README.md` says how it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shipped {
    /// 24 compilations by gcc under make: many short processes.
    Build,
    /// pgbench and its PostgreSQL server: few processes with frequent switches.
    Server,
}

impl Shipped {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Build, Self::Server];

    /// Returns its name: that of its file without the endings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Build => "rss-build",
            Self::Server => "rss-server",
        }
    }

    /// Returns the bytes of its file.
    #[must_use]
    pub const fn bytes(self) -> &'static [u8] {
        match self {
            Self::Build => include_bytes!("../../../../traces/rss-build.txt.zst"),
            Self::Server => include_bytes!("../../../../traces/rss-server.txt.zst"),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    ///
    /// As for [`RssTrace::from_reader`]; never for the traces as shipped, which
    /// `tests/rss_traces.rs::shipped_traces_match_their_table` reads to the end.
    pub fn open(self) -> Result<RssTrace, RssTraceError> {
        RssTrace::from_reader(self.name(), self.bytes())
    }
}
