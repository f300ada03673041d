//! Reports: one self-contained HTML file, with the data inside, so that it can be drawn again.
//!
//! An [`Envelope`] is the data: the kind of run, its version and command, and its results.
//! A module of each kind draws it as a [`Page`](page::Page): `replay`, `curve`, `lab`, `host`,
//! `compare`. A [`Destination`] is opened before the run, so that a path that cannot be written
//! costs no time, and written whole or not at all.
//!
//! Invariant: drawing reads the envelope alone, so a file drawn again shows the same. Nothing in
//! the file refers to another: no font, script, style or picture.
//!
//! Figures are drawn by plotters with its SVG back end alone. It adds 5 crates without a build
//! script of C code; plotly and charming add 49 and 61, and need a script of megabytes in each
//! report, more than the bound. HTML is by maud: 4 crates more, of which askama needs 10 and a
//! folder of templates.

mod axis;
pub(crate) mod compare;
mod counts;
pub(crate) mod curve;
mod figure;
pub(crate) mod host;
pub(crate) mod lab;
pub(crate) mod leaves;
mod machine;
mod page;
mod recorded;
pub(crate) mod replay;
mod rows;
mod settings;
mod table;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::Exit;
use crate::output::{Product, complain, print};

/// The id of the element that holds the data.
pub(crate) const DATA_ID: &str = "highwater-report";

/// The version of the data's format. It changes when an older program would draw it wrongly.
const FORMAT: u32 = 1;

/// Largest report. Chosen: a mail server takes it.
const BYTES_MAX: usize = 1 << 20;

const EXAMPLES: &str = "\
Examples:
  highwater replay --report run.html
      a report to draw again
  highwater report run.html
      draws it again in place, for example after an update of the program
  highwater report run.html --output new.html
      draws it again into another file

Exit status: 0 when the report is written, 2 for a file that is no report, a report of another
version, or a path that cannot be written.";

/// Arguments of `highwater report`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArguments {
    /// A report that `--report` has written
    #[arg(value_name = "FILE.html")]
    file: PathBuf,

    /// Where to write it [default: in its place]
    #[arg(long, short, value_name = "FILE.html")]
    output: Option<PathBuf>,
}

/// The data of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The version of this format.
    format: u32,
    /// The version of the program that ran.
    pub(crate) version: String,
    /// The command line that ran.
    pub(crate) command: String,
    /// The module that draws the results.
    kind: Kind,
    /// The results.
    pub(crate) data: Value,
}

/// The kinds of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Replay,
    Curve,
    Lab,
    Host,
    Compare,
}

impl Envelope {
    /// Wraps the results of this run of the program.
    ///
    /// # Errors
    ///
    /// When `data` cannot be represented.
    pub(crate) fn new(kind: Kind, data: &impl Serialize) -> Result<Self, String> {
        let words = std::env::args_os().skip(1);
        let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
        Ok(Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: format!("highwater {}", words.join(" ")),
            kind,
            data: serde_json::to_value(data).map_err(|e| e.to_string())?,
        })
    }

    /// Reads the data of a report's HTML.
    ///
    /// # Errors
    ///
    /// When it is no report, or one of another version.
    pub(crate) fn of_html(html: &str) -> Result<Self, String> {
        let begin = format!("<script type=\"application/json\" id=\"{DATA_ID}\">");
        let (_, rest) = html
            .split_once(&begin)
            .ok_or("it is no report: expected a file that `--report` has written")?;
        let (json, _) = rest
            .split_once("</script>")
            .ok_or("the report is cut short: its data has no end")?;
        let damaged = |e: serde_json::Error| format!("the report is damaged: {e}");
        let value: Value = serde_json::from_str(json).map_err(damaged)?;
        let format = value.get("format").and_then(Value::as_u64);
        if format != Some(u64::from(FORMAT)) {
            let by = value.get("version").and_then(Value::as_str);
            return Err(format!(
                "it has format {}, written by highwater {}, and this is highwater {}, which draws \
                 format {FORMAT}: draw it with that version",
                format.map_or_else(|| "unknown".to_owned(), |format| format.to_string()),
                by.unwrap_or("of an unknown version"),
                env!("CARGO_PKG_VERSION")
            ));
        }
        serde_json::from_value(value).map_err(damaged)
    }

    /// Draws the report.
    ///
    /// # Errors
    ///
    /// When the data lacks a part that its kind has, or the page would exceed 1 MiB.
    pub(crate) fn html(&self) -> Result<String, String> {
        let page = match self.kind {
            Kind::Replay => replay::page(self),
            Kind::Curve => curve::page(self),
            Kind::Lab => lab::page(self),
            Kind::Host => host::page(self),
            Kind::Compare => compare::page(self),
        };
        let page = page.map_err(|e| format!("the report's data is incomplete: {e}"))?;
        let data = serde_json::to_string(self).map_err(|e| e.to_string())?;
        let html = page.html(&data);
        if html.len() > BYTES_MAX {
            return Err(format!(
                "the report would have {} bytes, and at most {BYTES_MAX} are allowed: report fewer \
                 experiments or tenants at a time",
                html.len()
            ));
        }
        Ok(html)
    }

    /// Returns the objects that `--json` prints for the run, as `compare` reads them.
    pub(crate) fn outcomes(&self) -> Vec<Value> {
        let field = |name: &str| self.data.get(name).cloned();
        match self.kind {
            Kind::Replay | Kind::Curve => field("report").into_iter().collect(),
            Kind::Host => field("result").into_iter().collect(),
            Kind::Lab => {
                let entries = self.data.get("experiments").and_then(Value::as_array);
                let outcomes = entries.into_iter().flatten();
                outcomes
                    .filter_map(|entry| entry.get("outcome").cloned())
                    .collect()
            }
            Kind::Compare => Vec::new(),
        }
    }

    /// Returns the lines of the foot that every report has.
    fn foot(&self) -> Vec<(String, String)> {
        vec![
            ("Command".to_owned(), self.command.clone()),
            ("Version".to_owned(), self.version.clone()),
        ]
    }
}

/// Returns a word of a command line as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A file to be written at the end of a run.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    /// A file beside it that takes its place; `None` for a device or a pipe.
    temporary: Option<NamedTempFile>,
}

impl Destination {
    /// Checks that the file can be written. Leaves nothing behind when dropped.
    ///
    /// # Errors
    ///
    /// The message for the user.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let named = |e: io::Error| cannot_write(path, &e);
        Product::Report.check_replaceable(path)?;
        let found = fs::metadata(path);
        let temporary = match found {
            Ok(found) if found.is_dir() => return Err(named(io::ErrorKind::IsADirectory.into())),
            Ok(found) if !found.is_file() => None,
            _ => {
                let folder = path.parent().filter(|folder| *folder != Path::new(""));
                let folder = folder.unwrap_or(Path::new("."));
                let mut builder = tempfile::Builder::new();
                // As of any new file: less what the umask takes.
                let permissions = fs::Permissions::from_mode(0o666);
                let builder = builder
                    .prefix(".highwater-report-")
                    .permissions(permissions);
                Some(builder.tempfile_in(folder).map_err(named)?)
            }
        };
        Ok(Self {
            path: path.to_owned(),
            temporary,
        })
    }

    /// Writes the report.
    ///
    /// # Errors
    ///
    /// The message for the user.
    pub(crate) fn write(self, envelope: &Envelope) -> Result<(), String> {
        let html = envelope.html()?;
        // The run may have written another file there.
        Product::Report.check_replaceable(&self.path)?;
        let named = |e: io::Error| cannot_write(&self.path, &e);
        match self.temporary {
            None => fs::write(&self.path, html).map_err(named),
            Some(mut file) => {
                file.write_all(html.as_bytes()).map_err(named)?;
                keep_permissions(&self.path, &file).map_err(named)?;
                file.persist(&self.path).map_err(|e| named(e.error))?;
                Ok(())
            }
        }
    }
}

/// Gives a new file the permissions of the one that it replaces.
fn keep_permissions(path: &Path, file: &NamedTempFile) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) => file.as_file().set_permissions(found.permissions()),
        Err(_) => Ok(()),
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> String {
    format!(
        "cannot write the report {}: {error}; name a file in a folder that exists and that you may \
         write to",
        path.display()
    )
}

/// Opens the destination of `--report`, if that is given; says why not and returns the exit status.
pub(crate) fn destination(path: Option<&Path>) -> Result<Option<Destination>, Exit> {
    path.map(Destination::open).transpose().map_err(unusable)
}

/// Writes a report and returns the exit status: `exit` if that succeeds.
pub(crate) fn write(
    destination: Destination,
    envelope: Result<Envelope, String>,
    exit: Exit,
) -> Exit {
    match envelope.and_then(|envelope| destination.write(&envelope)) {
        Ok(()) => exit,
        Err(message) => unusable(message),
    }
}

fn unusable(message: String) -> Exit {
    complain(format_args!("{message}"));
    Exit::Unusable
}

/// Draws a report again, and returns the exit status.
pub(crate) fn run(arguments: &ReportArguments) -> Exit {
    let file = arguments.file.display();
    let read = fs::read_to_string(&arguments.file).map_err(|e| e.to_string());
    let envelope = match read.and_then(|html| Envelope::of_html(&html)) {
        Ok(envelope) => envelope,
        Err(e) => return unusable(format!("cannot draw {file}: {e}")),
    };
    let output = arguments.output.as_ref().unwrap_or(&arguments.file);
    match Destination::open(output).and_then(|to| to.write(&envelope)) {
        Ok(()) => {
            // If this fails, the report is still written.
            let _ = print(format_args!("{}\n", output.display()));
            Exit::Fine
        }
        Err(message) => unusable(message),
    }
}
