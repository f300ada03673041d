//! Whole numbers on the command line, with errors that name the range.

use std::ops::RangeInclusive;

/// Returns a parser of whole numbers in a range; `of` says of what, as in `of seconds`.
pub(crate) fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
    of: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("expected a whole number{of}, {least} to {most}")
        })
    }
}

/// Returns a parser of the seeds of random numbers.
pub(crate) fn seed() -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync {
    whole(0..=u64::MAX, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_range_is_named_with_it() {
        let seconds = whole::<u32>(1..=3600, " of seconds");
        assert_eq!(seconds("3600"), Ok(3600));
        let expected = "expected a whole number of seconds, 1 to 3600";
        for refused in [
            "0",
            "3601",
            "-1",
            "0.1",
            "1e3",
            "",
            " 7",
            "99999999999999999999",
        ] {
            assert_eq!(seconds(refused), Err(expected.to_owned()), "`{refused}`");
        }
        assert_eq!(seed()("18446744073709551615"), Ok(u64::MAX));
    }
}
