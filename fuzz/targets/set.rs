//! `--set KNOB=VALUE`: what is accepted is what the knob then says.
#![no_main]

use highwater::frame::Tunables;
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/highwater-cli/src/knob_arg.rs"]
mod knob_arg;

fuzz_target!(|text: &str| {
    match text.parse::<knob_arg::Knob>() {
        Ok(knob) => {
            let turned = knob.turn(Tunables::default());
            assert_eq!(turned.get(&knob.name), Some(knob.value));
        }
        Err(error) => assert!(!error.is_empty()),
    }
});
