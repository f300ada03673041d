//! Pressure stall information (PSI): `/proc/pressure/memory`, `memory.pressure`.

use super::{ParseError, number};

/// Shares of time that tasks stalled, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Over the last 10 seconds.
    pub avg10: f64,
    /// Over the last minute.
    pub avg60: f64,
    /// Over the last five minutes.
    pub avg300: f64,
    /// In all, in microseconds.
    pub total_us: u64,
}

/// Stalls of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// At least one task stalled.
    pub some: Stall,
    /// All tasks stalled at once.
    pub full: Stall,
}

/// Parses a file of pressure.
///
/// # Errors
///
/// When a share is no number of percent, or the line `some` is missing.
pub fn pressure(text: &str) -> Result<Pressure, ParseError> {
    let mut found = Pressure::default();
    let mut has_some = false;
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let stall = match words.next() {
            Some("some") => {
                has_some = true;
                &mut found.some
            }
            Some("full") => &mut found.full,
            _ => continue,
        };
        for word in words {
            match word.split_once('=') {
                Some(("avg10", text)) => stall.avg10 = percent(index, "avg10", text)?,
                Some(("avg60", text)) => stall.avg60 = percent(index, "avg60", text)?,
                Some(("avg300", text)) => stall.avg300 = percent(index, "avg300", text)?,
                Some(("total", text)) => stall.total_us = number(index, "total", text)?,
                _ => {}
            }
        }
    }
    if has_some {
        Ok(found)
    } else {
        Err(ParseError::at(0, "no line starts with `some`"))
    }
}

fn percent(index: usize, name: &str, text: &str) -> Result<f64, ParseError> {
    let value: f64 = number(index, name, text)?;
    if (0.0..=100.0).contains(&value) {
        Ok(value)
    } else {
        let message = format!("`{name}` is {value}, not 0 to 100 percent");
        Err(ParseError::at(index, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_are_read() {
        let text = "some avg10=0.00 avg60=1.09 avg300=0.04 total=2068196\n\
                    full avg10=0.00 avg60=0.05 avg300=0.02 total=340515\n";
        let found = pressure(text).unwrap();
        assert!((found.some.avg60 - 1.09).abs() < 1e-9);
        assert!((found.full.avg60 - 0.05).abs() < 1e-9);
        assert_eq!(found.full.total_us, 340_515);
    }

    #[test]
    fn wrong_shares_are_refused() {
        assert!(pressure("").is_err());
        assert!(pressure("full avg10=0.00\n").is_err());
        let error = pressure("some avg10=1.0\nfull avg60=NaN\n").unwrap_err();
        assert_eq!(error.line, 2);
        assert!(pressure("some avg10=101\n").is_err());
    }
}
