//! Scan balance at its ends: swappiness 0 and 200, shares of any lists, and counts that are cut.

use super::balance::tests::input;
use super::balance::{Costs, SWAPPINESS_MAX, ScanCounts, ScanInput, Swappiness};
use super::lists::{LruList, PageType};
use super::sizes::ListSizes;

const fn value_of(swappiness: Swappiness) -> u64 {
    match swappiness {
        Swappiness::Everywhere(value) | Swappiness::Group(value) => value,
    }
}

#[test]
fn swappiness_of_either_end_spares_one_type() {
    // Goal: 0 swaps nothing that the pool could get from files, 200 evicts no file, and the
    // last priority asks for both only where swapping is allowed; a group with 0 is never
    // swapped, though files are tiny or the priority is the last. Method: both ends for the
    // pool and for a group, at a high and the last priority, with files that are tiny or not.
    use Swappiness::{Everywhere, Group};
    let (anon, files) = ([true, false], [false, true]);
    for (swappiness, priority, file_is_tiny, expected) in [
        (Everywhere(0), 2, false, files),
        (Everywhere(0), 0, false, files),
        (Everywhere(0), 2, true, anon),
        (Everywhere(0), 0, true, anon),
        (Everywhere(200), 2, false, anon),
        (Everywhere(200), 0, false, [true; 2]),
        (Everywhere(1), 0, false, [true; 2]),
        (Group(0), 2, false, files),
        (Group(0), 0, false, files),
        (Group(0), 2, true, files),
        (Group(0), 0, true, files),
        (Group(200), 2, false, anon),
        (Group(200), 0, true, [true; 2]),
    ] {
        let input = ScanInput {
            swappiness,
            priority,
            file_is_tiny,
            ..input()
        };
        let scanned = PageType::ALL.map(|page_type| input.counts().has(page_type));
        assert_eq!(scanned, expected, "{input:?}");
        let own = ScanInput {
            is_group_reclaim: true,
            ..input
        };
        let scanned = PageType::ALL.map(|page_type| own.counts().has(page_type));
        let is_never = value_of(swappiness) == 0;
        assert_eq!(scanned, if is_never { files } else { expected }, "{own:?}");
        let unswapped = ScanInput {
            has_swap: false,
            ..input
        }
        .counts();
        assert!(!unswapped.has(PageType::Anon) && unswapped.has(PageType::File));
    }
}

/// Returns random inputs, with empty lists and costs of all sizes.
fn random_input(random: &mut fastrand::Rng) -> ScanInput {
    let mut len = || random.u64(..1 << 30) >> random.u32(..34).min(63);
    let sizes = ListSizes::from_lists([(); LruList::COUNT].map(|()| len()));
    let costs = Costs {
        anon: len(),
        file: len(),
    };
    ScanInput {
        sizes,
        priority: random.u32(..=12),
        swappiness: match random.bool() {
            true => Swappiness::Everywhere(random.u64(..=SWAPPINESS_MAX)),
            false => Swappiness::Group(random.u64(..=SWAPPINESS_MAX)),
        },
        has_swap: random.u8(..4) > 0,
        is_group_reclaim: random.bool(),
        file_is_tiny: random.u8(..4) == 0,
        may_deactivate: [random.bool(), random.bool()],
        ages: random.bool(),
        costs,
    }
}

#[test]
fn no_list_gives_more_than_its_share() {
    // Goal: a list gives at most its length divided by 2^priority, none that may not be scanned
    // gives any, and a group with nothing to give at this priority gives one page of one list,
    // if any list may be scanned; a policy's active lists are scanned with the inactive ones.
    // Method: random inputs.
    let mut random = crate::seed::rng(93);
    for _ in 0..20_000 {
        let input = random_input(&mut random);
        let counts = input.counts();
        let aged = |page_type: PageType| input.may_deactivate[page_type as usize];
        let mut most = 0;
        for page_type in PageType::ALL {
            let share = |list| input.sizes.of(list).0 >> input.priority;
            let (inactive, active) = (page_type.inactive(), page_type.active());
            let shares = match (input.ages, aged(page_type)) {
                (false, _) => [share(inactive) + share(active), 0],
                (true, true) => [share(inactive), share(active)],
                (true, false) => [share(inactive), 0],
            };
            most += shares[0] + shares[1];
            if counts.total() > 1 {
                assert!(counts.of(inactive) <= shares[0], "{input:?}: {counts:?}");
                assert!(counts.of(active) <= shares[1], "{input:?}: {counts:?}");
            }
            let may_scan = page_type == PageType::File || input.has_swap;
            assert!(may_scan || !counts.has(page_type), "{input:?}: {counts:?}");
        }
        assert!(counts.total() <= most.max(1), "{input:?}: {counts:?}");
        assert_eq!(counts.of(LruList::Unevictable), 0);
        let files = input.sizes.inactive_file.0 > 0 && value_of(input.swappiness) < 200;
        if files && !input.file_is_tiny {
            assert!(counts.total() > 0, "{input:?}");
        }
    }
}

#[test]
fn counts_are_cut_files_first() {
    // Goal: a limit on inactive pages is used for files first and touches no active list; the
    // smaller count is of each list, and products saturate. Method: limits around both counts.
    let of = |counts: ScanCounts| [0, 1, 2, 3].map(|nth| counts.of(LruList::ALL[nth]));
    let mut counts = ScanCounts::default();
    for (list, count) in LruList::ALL.into_iter().zip([30, 7, 20, 9]) {
        counts.set(list, count);
    }
    for (most, anon, file) in [
        (0, 0, 0),
        (19, 0, 19),
        (20, 0, 20),
        (21, 1, 20),
        (50, 30, 20),
        (51, 30, 20),
    ] {
        assert_eq!(
            of(counts.at_most(most)),
            [anon, 7, file, 9],
            "at most {most}"
        );
    }
    assert_eq!(of(counts.by_type()), [37, 0, 29, 0]);
    assert_eq!(of(counts.min(counts.by_type())), [30, 0, 20, 0]);
    assert_eq!(
        of(counts.times(u64::MAX / 20))[2..],
        [u64::MAX / 20 * 20, u64::MAX / 20 * 9]
    );
    assert_eq!(of(counts.times(u64::MAX / 20))[0], u64::MAX, "saturates");
    let mut spent = ScanCounts::default();
    assert!(spent.is_spent());
    spent.set(LruList::ActiveAnon, 5);
    assert!(spent.is_spent(), "no reason to go on");
    spent.set(LruList::ActiveFile, 1);
    assert!(!spent.is_spent());
}
