//! A tenant reads a file of 16 MiB through a limit of 4 MiB.
//!
//! Command: `cargo run -p highwater --example hello`. Prints the tenant's usage, as an interval and
//! exactly, and the work of reclaim that kept it below its limit.

#![expect(clippy::print_stdout, reason = "prints what it teaches")]

use highwater::{Bytes, Limits, Manager};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("highwater-hello-{}", std::process::id()));
    std::fs::write(&path, vec![b'h'; 16 << 20])?; // 4,096 pages of 4 KiB
    let hw = Manager::builder().capacity(Bytes::mib(64)).build()?; // real memory, reserved
    let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(4)))?;
    let file = hw.open(&path)?;
    let map = hw.space(&tenant).map_file(&file, 0..file.pages())?;
    for page in 0..map.pages() {
        let guard = hw.enter(); // what is read under it stays where it is
        assert_eq!(map.read(&guard, page)?[0], b'h');
    }
    let (seen, exact) = (tenant.usage(), tenant.usage_precise());
    assert!(seen.contains(exact) && exact <= Bytes::mib(4));
    println!("usage {seen}, exactly {exact}\n{}", hw.snapshot());
    Ok(std::fs::remove_file(&path)?)
}
