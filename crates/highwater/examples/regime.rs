//! Prints the regime (rseq or atomics) in which a manager of this process writes its per-CPU words,
//! and why it is not the cheapest one.
//!
//! Command: `cargo run -p highwater --example regime`. A statically linked program prints the same
//! as a dynamically linked one:
//!
//! ```text
//! RUSTFLAGS="-C target-feature=+crt-static" \
//!     cargo run -p highwater --example regime --target x86_64-unknown-linux-gnu
//! ```

#![expect(clippy::print_stdout, reason = "prints what it teaches")]

use highwater::lab::percpu::{RegimeReason, has_restartable_sequences};
use highwater::{Bytes, Manager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let hw = Manager::builder().capacity(Bytes::mib(1)).build()?;
    let lacks_rseq = match hw.regime().reason {
        None | Some(RegimeReason::MembarrierRefused { .. }) => false,
        Some(_) => true,
    };
    assert_ne!(lacks_rseq, has_restartable_sequences());
    println!("{}", hw.regime());
    Ok(())
}
