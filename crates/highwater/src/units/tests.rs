//! Amounts, their texts, and comparisons of estimates.

use super::*;

#[test]
fn bytes_read_back_what_they_show() {
    for bytes in [
        Bytes(0),
        Bytes(1),
        Bytes(1000),
        Bytes::kib(1536),
        Bytes::mib(64),
        Bytes::gib(3),
    ] {
        assert_eq!(bytes.to_string().parse(), Ok(bytes));
    }
}

// Goal: no amount wraps around, in release builds either.
#[test]
fn a_difference_below_zero_is_no_huge_amount() {
    let (three, five) = (Bytes(3), Bytes(5));
    assert_eq!(five - three, Bytes(2));
    assert_eq!(three.checked_sub(five), None);
    assert_eq!(three.saturating_sub(five), Bytes::ZERO);
    assert_eq!(Bytes::MAX.checked_add(three), None);
    assert_eq!(Bytes::MAX.saturating_add(three), Bytes::MAX);
    assert!(std::panic::catch_unwind(|| three - five).is_err());
    assert!(std::panic::catch_unwind(|| Bytes::MAX + three).is_err());
    assert!(std::panic::catch_unwind(|| Pages(3) - Pages(5)).is_err());
}

#[test]
fn bytes_refuse_what_is_not_an_amount() {
    assert_eq!("4 mib".parse(), Ok(Bytes::mib(4)));
    assert_eq!("4MB".parse(), Ok(Bytes::mib(4)));
    for text in [
        "",
        "MiB",
        "-1",
        "1.5GiB",
        "64 parsecs",
        "99999999999999999999",
        "17179869184TiB",
        "4Mb",
        "4mb",
        "4 b",
        "4ib",
    ] {
        assert_eq!(
            text.parse::<Bytes>(),
            Err(ParseBytesError {
                text: text.to_owned()
            })
        );
    }
}

#[test]
fn a_count_of_pages_is_not_negative() {
    let count = Estimate {
        value: -1,
        low: -5,
        high: 13,
    };
    let pages = Estimate {
        value: Pages(0),
        low: Pages(0),
        high: Pages(13),
    };
    assert_eq!(Estimate::<Pages>::from(count), pages);
}
