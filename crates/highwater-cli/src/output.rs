//! Output: results to standard output, the rest to standard error.
//!
//! A closed pipe (`highwater ... | head`) is not an error: output ends quietly.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

/// Writes a result to standard output.
///
/// # Errors
///
/// When it cannot be written, except to a closed pipe.
pub(crate) fn print(result: fmt::Arguments<'_>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_fmt(result).and_then(|()| stdout.flush());
    match written {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
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
