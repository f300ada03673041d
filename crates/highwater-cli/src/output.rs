//! Output: results to standard output, the rest to standard error.
//!
//! A closed pipe (`highwater ... | head`) is not an error: output ends quietly.

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes a result to standard output.
///
/// # Errors
///
/// When it cannot be written, except to a closed pipe.
pub(crate) fn print(result: fmt::Arguments<'_>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_fmt(result).and_then(|()| stdout.flush());
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
            // Relaxed: read by the same thread.
            IS_READER_GONE.store(true, Ordering::Relaxed);
            Ok(())
        }
        written => written,
    }
}

/// Whether a result met a closed pipe.
static IS_READER_GONE: AtomicBool = AtomicBool::new(false);

/// Returns whether the reader of standard output has gone: for output that has no end.
pub(crate) fn is_reader_gone() -> bool {
    // Relaxed: as above.
    IS_READER_GONE.load(Ordering::Relaxed)
}

/// A kind of file that the program writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Product {
    Report,
    Picture,
    Trace,
}

/// Bytes by which a file is told from others.
const HEAD: usize = 16;

impl Product {
    const fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Picture => "picture",
            Self::Trace => "recorded trace",
        }
    }

    /// Returns whether a file of this kind may begin so.
    fn begins(self, head: &[u8]) -> bool {
        let beginnings: &[&[u8]] = match self {
            Self::Report => &[b"<!doctype html"],
            Self::Picture => &[b"<svg"],
            // As it is, and as a frame of zstd.
            Self::Trace => &[b"hwtrace", &[0x28, 0xb5, 0x2f, 0xfd]],
        };
        let head = head.to_ascii_lowercase();
        beginnings
            .iter()
            .any(|beginning| head.starts_with(beginning))
    }

    /// Checks that what a path names now may be replaced: nothing, an empty file, one of this
    /// kind, or a device or pipe; not a file of the user's.
    ///
    /// # Errors
    ///
    /// The message for the user.
    pub(crate) fn check_replaceable(self, path: &Path) -> Result<(), String> {
        if !path.is_file() {
            return Ok(());
        }
        let mut head = Vec::new();
        // What cannot be read says so when it is written.
        let read = File::open(path).and_then(|file| file.take(HEAD as u64).read_to_end(&mut head));
        match read {
            Ok(bytes) if bytes > 0 && !self.begins(&head) => Err(format!(
                "cannot write the {} {}: a file of this name exists and is none; give another \
                 name, or remove it",
                self.name(),
                path.display()
            )),
            _ => Ok(()),
        }
    }
}

/// Writes one line to standard error, after the program's name.
pub(crate) fn complain(message: fmt::Arguments<'_>) {
    // Without standard error the message is lost.
    let _ = writeln!(io::stderr().lock(), "highwater: {message}");
}

/// Formats an error and its causes in one line; leaves out causes that a message already includes.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: no file is replaced by one of another kind.
    #[test]
    fn files_of_other_kinds_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (content, kinds) in [
            (&b"1,17,4096\n"[..], [false; 3]),
            (b"<!DOCTYPE html><title>", [true, false, false]),
            (b"<svg xmlns", [false, true, false]),
            (b"HWTRACE2", [false, false, true]),
            (&[0x28, 0xb5, 0x2f, 0xfd, 0], [false, false, true]),
            (b"", [true; 3]),
        ] {
            std::fs::write(&path, content).unwrap();
            let all = [Product::Report, Product::Picture, Product::Trace];
            assert_eq!(
                all.map(|product| product.check_replaceable(&path).is_ok()),
                kinds,
                "{content:?}"
            );
        }
        let refused = Product::Report.check_replaceable(&path.join("none"));
        assert_eq!(refused, Ok(()));
    }

    #[derive(Debug)]
    struct Layer(&'static str, Option<Box<Layer>>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|layer| layer as &dyn Error)
        }
    }

    #[test]
    fn causes_are_said_once() {
        let disk = Layer("disk full", None);
        let page = Layer("page 3: disk full", Some(Box::new(disk)));
        let run = Layer("cannot read", Some(Box::new(page)));
        assert_eq!(with_causes(&run), "cannot read: page 3: disk full");
    }
}
