//! Promise: a manager stays below the memory limit of its cgroup. Uses a real cgroup if one can be
//! created, and otherwise prints the reason and skips. Directory trees test the rules
//! (`manager/cgroup/tests.rs`).

#[path = "support/cgroup.rs"]
mod group;

use std::fs;

use group::{Inside, run_within};
use highwater::{BuildError, Bytes, Manager};

#[test]
fn a_real_limit_is_found_and_followed() {
    run_within(
        "a_real_limit_is_found_and_followed",
        Bytes::mib(256),
        limit_is_followed,
    );
}

/// The part of the test that runs in the cgroup; returns its result.
fn limit_is_followed(inside: &Inside) -> String {
    let name = &inside.limit;
    let builder = || Manager::builder().capacity(Bytes::mib(512));
    let refused = builder().build().expect_err("twice the limit");
    assert!(
        matches!(&refused, BuildError::AboveCgroup { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains(name), "{refused}");

    let hw = builder().follow_cgroup().build().expect("below the limit");
    assert_eq!(hw.capacity(), Bytes::mib(224));
    // Three times the limit is written, and the process lives.
    let pages = Bytes::mib(200).pages_floor();
    for _ in 0..4 {
        let scratch = hw.space(&hw.root()).map_anon(pages).expect("memory");
        for page in 0..pages.0 {
            scratch.write(page).expect("room")[0] = 1;
        }
    }
    // The limit can only fall to current usage: the frames go first.
    hw.set_capacity(Bytes::mib(32)).expect("nothing is in use");
    hw.trim();
    fs::write(inside.directory.join(name), Bytes::mib(128).0.to_string()).expect("less is in use");
    hw.set_capacity(Bytes::mib(512)).expect("within the range");
    assert_eq!(hw.cgroup_tick(), Ok(Bytes::mib(112)));
    format!("{refused}; followed down to {}", hw.capacity())
}
