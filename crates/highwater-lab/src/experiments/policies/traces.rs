//! The traces of the experiment: every recorded access trace, and the one that ships.
//!
//! Recorded traces are not part of the project. `HIGHWATER_TRACES` names their folder, or it lies
//! beside the workspace that the program was built in; without it, only the shipped trace is read.

use std::path::{Path, PathBuf};

use crate::control::Control;
use crate::experiments::{ExperimentError, Size};
use crate::models::AccessTrace;
use crate::replay::TraceInput;
use crate::trace::{Format, ReaderOptions, Target, TraceError, TraceReader};

/// PostgreSQL under pgbench; `traces/README.md` says how it was recorded.
const SHIPPED: &[u8] = include_bytes!("../../../../../traces/pgbench.hwt.zst");

/// Accesses between two checks of the stop flag.
const STEP: usize = 1 << 16;

/// A recorded trace, with facts that its content does not tell.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    file: &'static str,
    format: Option<Format>,
    block_size: Option<u32>,
    /// Small enough for a quick run.
    is_quick: bool,
}

const fn told(file: &'static str) -> Recorded {
    Recorded {
        file,
        format: None,
        block_size: None,
        is_quick: false,
    }
}

const fn quick(file: &'static str) -> Recorded {
    Recorded {
        is_quick: true,
        ..told(file)
    }
}

const fn keys(file: &'static str, format: Format) -> Recorded {
    Recorded {
        format: Some(format),
        ..told(file)
    }
}

const RECORDED: [Recorded; 18] = [
    told("block-io/P3.lis.zst"),
    told("block-io/P6.lis.zst"),
    told("block-io/cloudPhysicsIO-w92.vscsi.xz"),
    quick("classic/lirs-cpp.trace.gz"),
    quick("classic/lirs-cs.trace.gz"),
    quick("classic/lirs-loop.trace.gz"),
    quick("classic/lirs-multi1.trace.gz"),
    quick("classic/lirs-multi3.trace.gz"),
    quick("classic/lirs-scan.trace.gz"),
    quick("classic/lirs-sprite.trace.gz"),
    quick("kv-cdn/adaptsize-request.trace.xz"),
    quick("kv-cdn/mooncake-synthetic_trace.jsonl.xz"),
    keys("kv-cdn/scarab-recs.trace.xz", Format::U64Be),
    Recorded {
        is_quick: true,
        ..keys("kv-cdn/web07.trace.xz", Format::U32Be)
    },
    told("mem-ref/address-gcc.trace.gz"),
    told("mem-ref/address-twolf.trace.gz"),
    Recorded {
        block_size: Some(4096),
        ..told("oltp-db/OLTP.lis.zst")
    },
    keys("oltp-db/orm-busy.trace.xz", Format::U32Be),
];

/// A trace that can be opened.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: String,
    /// Whether means include it.
    pub(super) is_recorded: bool,
    place: Place,
    pub(super) options: ReaderOptions,
}

/// The accesses of a trace; a key counts as one page, whatever its size.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) trace: AccessTrace,
    /// Whether a key is larger than a page, so that a replay lays it out as several.
    pub(super) has_sizes: bool,
}

#[derive(Clone, Debug)]
enum Place {
    Shipped,
    File(PathBuf),
}

/// Returns the recorded traces, if their folder is found.
pub(super) fn recorded(size: Size) -> Vec<Source> {
    let Some(folder) = folder() else {
        return Vec::new();
    };
    let wanted = RECORDED
        .iter()
        .filter(|each| each.is_quick || size == Size::Full);
    wanted.map(|each| each.in_folder(&folder)).collect()
}

/// Returns the number of traces that [`recorded`] finds in a complete folder.
pub(super) const fn nr_recorded() -> usize {
    RECORDED.len()
}

pub(super) fn shipped() -> Source {
    Source {
        name: "pgbench".to_owned(),
        is_recorded: false,
        place: Place::Shipped,
        options: ReaderOptions::default(),
    }
}

/// Returns a trace of the request.
pub(super) fn given(path: &Path) -> Source {
    Source {
        name: path.display().to_string(),
        is_recorded: false,
        place: Place::File(path.to_owned()),
        options: ReaderOptions::default(),
    }
}

fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("HIGHWATER_TRACES").map(PathBuf::from);
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let beside = ["../shared/traces", "../../../shared/traces"].map(|path| workspace.join(path));
    let mut places = named.into_iter().chain(beside);
    places.find(|place| place.join("block-io").is_dir())
}

impl Recorded {
    fn in_folder(&self, folder: &Path) -> Source {
        let file = self.file.rsplit('/').next().unwrap_or(self.file);
        let name = file.split('.').next().unwrap_or(file);
        Source {
            name: name.to_owned(),
            is_recorded: true,
            place: Place::File(folder.join(self.file)),
            options: ReaderOptions {
                format: self.format,
                block_size: self.block_size,
                ..ReaderOptions::default()
            },
        }
    }
}

impl Source {
    /// Returns the input of a replay.
    pub(super) fn input(&self) -> TraceInput {
        match &self.place {
            Place::File(path) => TraceInput::File(path.clone()),
            Place::Shipped => TraceInput::Embedded {
                name: "pgbench.hwt.zst",
                bytes: SHIPPED,
            },
        }
    }

    /// Reads every access.
    pub(super) fn read(&self, control: &Control) -> Result<Loaded, ExperimentError> {
        let failed = |source| ExperimentError::AccessTrace {
            trace: self.name.clone(),
            source,
        };
        let reader = match &self.place {
            Place::File(path) => TraceReader::open(path, &self.options),
            Place::Shipped => TraceReader::from_reader(&self.name, SHIPPED, &self.options),
        };
        let mut pages = Vec::new();
        let mut has_sizes = false;
        let mut due = STEP;
        for request in reader.map_err(failed)? {
            let request: Result<_, TraceError> = request;
            match request.map_err(failed)?.target {
                Target::Pages { first, count } => pages.extend(first..first + count),
                Target::Key { key, pages: size } => {
                    has_sizes |= size > 1;
                    pages.push(key);
                }
            }
            if pages.len() >= due {
                control.advance(0)?;
                due = pages.len() + STEP;
            }
        }
        Ok(Loaded {
            trace: pages.into_iter().collect(),
            has_sizes,
        })
    }
}
