//! Numbers as text of few columns.

use std::time::Duration;

use highwater::{Bytes, Estimate};

const UNITS: [(&str, u32); 5] = [("T", 40), ("G", 30), ("M", 20), ("K", 10), ("B", 0)];

/// Tenths of a unit that are shown without a decimal place.
const TENTHS_MAX: u128 = 10_000;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Formats an amount of memory with at most one decimal place: `12.3M`.
pub(crate) fn bytes(amount: Bytes) -> String {
    let (unit, shift) = unit_of(amount);
    format!("{}{unit}", in_tenths((u128::from(amount.0) * 10) >> shift))
}

/// Formats an optional amount: `-` for none.
pub(crate) fn limit(amount: Option<Bytes>) -> String {
    amount.map_or_else(|| "-".to_owned(), bytes)
}

/// Formats an interval in the unit of its upper end, rounded outwards: `11.9..12.8M`. An exact
/// amount is formatted as [`bytes`] does.
pub(crate) fn interval(estimate: &Estimate<Bytes>) -> String {
    if estimate.low == estimate.high {
        return bytes(estimate.high);
    }
    let (unit, shift) = unit_of(estimate.high);
    let [low, high] = [estimate.low, estimate.high].map(|end| u128::from(end.0) * 10);
    let low = in_tenths(low >> shift);
    let high = match high.div_ceil(1 << shift) {
        tenths if tenths < TENTHS_MAX => tenths,
        tenths => tenths.next_multiple_of(10),
    };
    format!("{low}..{}{unit}", in_tenths(high))
}

/// Formats a count with separators: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// Formats a count in at most five columns: `9,999`, `12.3k`, `123k`.
pub(crate) fn short(number: u64) -> String {
    if number < 10_000 {
        return count(number);
    }
    let units = [(1_000, "k"), (1_000_000, "M"), (1_000_000_000, "G")];
    let (unit, name) = *units
        .iter()
        .rfind(|(unit, _)| number >= *unit)
        .unwrap_or(&units[0]);
    match number / unit {
        whole @ 0..100 => format!("{whole}.{}{name}", number % unit * 10 / unit),
        whole => format!("{whole}{name}"),
    }
}

/// Formats a duration in at most seven columns: `340us`, `12ms`, `1.2s`, `4m05s`, `3h02m`.
pub(crate) fn duration(duration: Duration) -> String {
    let (seconds, micros) = (duration.as_secs(), duration.subsec_micros());
    match seconds {
        0 if micros == 0 => "0s".to_owned(),
        0 if micros < 1_000 => format!("{micros}us"),
        0 => format!("{}ms", micros / 1_000),
        1..60 => format!("{seconds}.{}s", micros / 100_000),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
    }
}

/// Formats a time since the start with a tenth of a second: `118.2s`.
pub(crate) fn moment(time: Duration) -> String {
    format!("{}.{}s", time.as_secs(), time.subsec_millis() / 100)
}

/// Formats a percentage: `1.20`.
pub(crate) fn percent(percent: f64) -> String {
    format!("{percent:.2}")
}

/// Formats a wall clock time since 1970 as date and time of UTC.
pub(crate) fn utc(unix: Duration) -> String {
    let (days, second) = (unix.as_secs() / DAY, unix.as_secs() % DAY);
    let (year, month, day) = date(days);
    let (hour, minute) = (second / 3_600, second % 3_600 / 60);
    let second = second % 60;
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a day since 1970, by counting.
fn date(mut days: u64) -> (u64, usize, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100);
    let is_leap = |year: u64| is_leap(year) || year.is_multiple_of(400);
    let mut year = 1970;
    // A damaged clock does not count for ever.
    while year < 9_999 && days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while month < 11 && days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    (year, month + 1, days.min(30) + 1)
}

fn unit_of(amount: Bytes) -> (&'static str, u32) {
    let unit = UNITS.iter().find(|(_, shift)| amount.0 >> shift > 0);
    *unit.unwrap_or(&("B", 0))
}

/// Formats tenths of a unit, with a decimal place below [`TENTHS_MAX`] if they are not whole.
fn in_tenths(tenths: u128) -> String {
    let (whole, tenth) = (tenths / 10, tenths % 10);
    if tenth == 0 || tenths >= TENTHS_MAX {
        whole.to_string()
    } else {
        format!("{whole}.{tenth}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short() {
        let shown = |n| bytes(Bytes(n));
        assert_eq!(shown(0), "0B");
        assert_eq!(shown(1_000), "1000B");
        assert_eq!(shown(1_536), "1.5K");
        assert_eq!(shown(u64::MAX), "16777215T");
        assert_eq!(shown((12 << 20) + (1 << 19)), "12.5M");
        let estimate = |value, low, high| Estimate { value, low, high };
        let mib = |n: u64| Bytes(n << 20);
        assert_eq!(interval(&estimate(mib(3), mib(2), mib(4))), "2..4M");
        assert_eq!(interval(&estimate(mib(3), mib(3), mib(3))), "3M");
        assert_eq!(interval(&estimate(mib(3), Bytes::ZERO, mib(3))), "0..3M");
        assert_eq!(shown((12 << 20) + 104_858), "12.1M");
    }

    /// Goal: the ends of an interval are not inside it.
    #[test]
    fn intervals_are_rounded_outwards() {
        let shown = |low, high| {
            interval(&Estimate {
                value: Bytes(low),
                low: Bytes(low),
                high: Bytes(high),
            })
        };
        let mib = |n: u64| n << 20;
        assert_eq!(shown(mib(3) - 1, mib(3)), "2.9..3M");
        assert_eq!(shown(mib(3), mib(3) + 1), "3..3.1M");
        assert_eq!(shown(mib(3) + 1, mib(3) + 1), "3M");
        assert_eq!(shown(mib(12), mib(1_000) + 1), "12..1001M");
        assert_eq!(shown(0, u64::MAX), "0..16777216T");
    }

    #[test]
    fn counts_and_times_are_short() {
        let shorts = [9_999, 12_345, 123_456, 1_234_567, u64::MAX].map(short);
        assert_eq!(shorts, ["9,999", "12.3k", "123k", "1.2M", "18446744073G"]);
        let micros = [0, 340, 12_000, 1_250_000, 245_000_000, 10_920_000_000];
        let durations = micros.map(|micros| duration(Duration::from_micros(micros)));
        assert_eq!(durations, ["0s", "340us", "12ms", "1.2s", "4m05s", "3h02m"]);
        assert_eq!(percent(1.2), "1.20");
    }

    #[test]
    fn dates_have_leap_years() {
        let shown = |seconds| utc(Duration::from_secs(seconds));
        assert_eq!(shown(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(shown(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(shown(1_795_469_696), "2026-11-23 21:34:56 UTC");
        assert_eq!(&shown(u64::MAX)[..5], "9999-");
    }
}
