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

/// Every way to write the letters of a unit in small and capital ones.
fn in_either_case(unit: &str) -> Vec<String> {
    let nr_letters = unit.len();
    let written = |capitals: usize| {
        let letters = unit.char_indices().map(|(nth, letter)| {
            let is_capital = capitals >> nth & 1 == 1;
            if is_capital {
                letter.to_ascii_uppercase()
            } else {
                letter
            }
        });
        letters.collect()
    };
    (0..1 << nr_letters).map(written).collect()
}

// Goal: letter case does not matter but for the `B` of bytes: a small one that no `i` precedes is
// refused. Method: every unit in every case, with and without spaces, against a table of units.
#[test]
fn units_are_read_in_either_case_but_for_bits() {
    let units = [
        ("", 0),
        ("b", 0),
        ("k", 10),
        ("kb", 10),
        ("kib", 10),
        ("m", 20),
        ("mb", 20),
        ("mib", 20),
        ("g", 30),
        ("gb", 30),
        ("gib", 30),
        ("t", 40),
        ("tb", 40),
        ("tib", 40),
    ];
    let (mut nr_read, mut nr_bits) = (0, 0);
    for (unit, shift) in units {
        for written in in_either_case(unit) {
            let is_bits = written.ends_with('b') && unit.len() < 3;
            for text in [
                format!("7{written}"),
                format!("7 {written}"),
                format!(" 007  {written} "),
            ] {
                let read = text.parse::<Bytes>().ok();
                let expected = (!is_bits).then_some(Bytes(7 << shift));
                assert_eq!(read, expected, "`{text}`");
                nr_read += usize::from(!is_bits);
                nr_bits += usize::from(is_bits);
            }
        }
    }
    assert_eq!((nr_read, nr_bits), (3 * 50, 3 * 9));
}

// Goal: amounts end at 64 bits, to the byte, and the error says how to write one. Method: for each
// unit the largest count that fits, and one more.
#[test]
fn the_largest_count_of_each_unit_is_read_and_no_larger_one() {
    for (unit, shift) in [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)] {
        let most = u64::MAX >> shift;
        let read = format!("{most}{unit}").parse();
        assert_eq!(read, Ok(Bytes(most << shift)), "{unit}");
        let text = format!("{}{unit}", u128::from(most) + 1);
        let error = text.parse::<Bytes>().unwrap_err();
        let message = error.to_string();
        let names_it = message.starts_with(&format!("`{text}` is not an amount of memory: "));
        assert!(names_it && message.ends_with("as in 64MiB"), "{message}");
    }
}

// Goal: an amount is shown in the largest unit that divides it, and reads back. Method: random
// amounts of all sizes, many of them multiples of a unit, against division.
#[test]
fn an_amount_is_shown_in_the_largest_unit_that_divides_it() {
    let mut random = crate::seed::rng(61);
    let edges = [1, 1 << 10, 1 << 20, 1 << 30, 1 << 40, 1 << 63, u64::MAX];
    let near = edges.iter().flat_map(|&edge| [edge - 1, edge]);
    let others = (0..5_000).map(|_| (random.u64(..) >> random.u32(..64)) << random.u32(..64));
    for amount in near.chain(others) {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let largest = units.iter().find(|(size, _)| amount % size == 0);
        let (size, unit) = match largest {
            Some(&unit) if amount > 0 => unit,
            _ => (1, "B"),
        };
        let shown = Bytes(amount).to_string();
        assert_eq!(shown, format!("{} {unit}", amount / size));
        assert_eq!(shown.parse(), Ok(Bytes(amount)));
    }
}

// Goal: conversions lose no byte below a page and saturate at the end of 64 bits. Method: the
// amounts around zero, one page and the ends.
#[test]
fn pages_and_bytes_convert_exactly_up_to_the_end() {
    let most = Pages::MAX.0;
    for (bytes, floor, ceil) in [
        (0, 0, 0),
        (1, 0, 1),
        (4095, 0, 1),
        (4096, 1, 1),
        (4097, 1, 2),
        (u64::MAX - 4095, most, most),
        (u64::MAX - 4094, most, most + 1),
        (u64::MAX, most, most + 1),
    ] {
        let bytes = Bytes(bytes);
        assert_eq!(bytes.pages_floor(), Pages(floor), "{bytes}");
        assert_eq!(bytes.pages_ceil(), Pages(ceil), "{bytes}");
    }
    assert_eq!(Pages::MAX.bytes(), Bytes(u64::MAX - 4095));
    assert_eq!(Pages(most + 1).bytes(), Bytes::MAX);
    let ends = [
        (Bytes::kib as fn(u64) -> Bytes, 10),
        (Bytes::mib, 20),
        (Bytes::gib, 30),
    ];
    for (of, shift) in ends {
        let most = u64::MAX >> shift;
        assert_eq!(of(most), Bytes(most << shift));
        assert_eq!(of(most + 1), Bytes::MAX, "one more saturates");
    }
    let shown = [0, 1, 2].map(|count| Pages(count).to_string());
    assert_eq!(shown, ["0 pages", "1 page", "2 pages"]);
}

// Goal: amounts that are added up or changed in place do not wrap around either, and the panic
// names both. Method: one byte beyond each end, and the sums that still fit.
#[test]
fn sums_and_changes_in_place_end_at_64_bits() {
    let message = |change: fn()| {
        let panic = std::panic::catch_unwind(change).unwrap_err();
        *panic.downcast::<String>().expect("a formatted message")
    };
    let whole: Bytes = [Bytes(u64::MAX - 3), Bytes(3)].into_iter().sum();
    assert_eq!(whole, Bytes::MAX);
    assert_eq!(std::iter::empty::<Pages>().sum::<Pages>(), Pages::ZERO);
    let over = message(|| _ = [Pages(u64::MAX), Pages(1)].into_iter().sum::<Pages>());
    let most = u64::MAX;
    assert_eq!(over, format!("{most} pages + 1 page does not fit 64 bits"));
    let mut bytes = Bytes(5);
    bytes -= Bytes(5);
    bytes += Bytes::MAX;
    assert_eq!(bytes, Bytes::MAX);
    let under = message(|| {
        let mut bytes = Bytes(1023);
        bytes -= Bytes(1024);
    });
    assert_eq!(under, "1023 B - 1 KiB is negative");
}

// Goal: every number becomes an adjustment of -1000 to 1000, in order, and is shown as that
// number. Method: all numbers around that range, and the ends of 16 and 32 bits.
#[test]
fn an_adjustment_is_the_nearest_that_there_is() {
    let wide = [i32::MIN, -65_536 - 7, -32_769, 32_768, 65_536 + 7, i32::MAX];
    for thousandths in (-1100..=1100).chain(wide) {
        let adj = OomScoreAdj::clamped(thousandths);
        let nearest = thousandths.clamp(-1000, 1000);
        assert_eq!((adj.get(), i32::from(adj)), (nearest, nearest));
        assert_eq!(adj.to_string(), nearest.to_string());
        assert_eq!(adj == OomScoreAdj::UNKILLABLE, nearest == -1000);
        assert_eq!(adj == OomScoreAdj::MAX, nearest == 1000);
    }
    let columns = format!("{:>6}|{:<5}|", OomScoreAdj::clamped(-250), OomScoreAdj::MAX);
    assert_eq!(columns, "  -250|1000 |");
}

// Goal: a block of order n is 2^n frames, and no block is larger than the largest. Method: every
// number that fits a byte.
#[test]
fn orders_end_at_the_largest_block() {
    for raw in 0..=u8::MAX {
        let order = Order::new(raw);
        assert_eq!(order.is_some(), raw <= 10, "order {raw}");
        let Some(order) = order else { continue };
        let pages = (0..raw).fold(1, |pages, _| 2 * pages);
        assert_eq!((order.get(), order.pages()), (raw, Pages(pages)));
        assert_eq!(Bytes(order.size() as u64), order.pages().bytes());
    }
    assert_eq!(Order::all().next_back(), Some(Order::MAX));
    assert_eq!(Order::HUGE.pages().bytes(), Bytes::mib(2));
    assert!(Order::all().eq((0..=10).filter_map(Order::new)));
}

// Goal: an identifier is 32 bits wide; an index beyond that is a mistake and not another
// identifier. Method: the last index, and the one after it.
#[test]
fn an_index_of_33_bits_is_no_identifier() {
    let last = u32::MAX as usize;
    assert_eq!(Pfn::from_index(last).index(), last);
    assert_eq!(CpuId::from_index(last).to_string(), "C4294967295");
    assert_eq!(
        (Pfn(17).to_string(), GroupId(5).to_string()),
        ("F17".into(), "G5".into())
    );
    for make in [
        (|| _ = Pfn::from_index(1 << 32)) as fn(),
        || _ = CpuId::from_index(1 << 32),
        || _ = GroupId::from_index(1 << 32),
    ] {
        assert!(std::panic::catch_unwind(make).is_err());
    }
}
