//! Unpacks a recorded machine for `highwater host --root`, where no zstd is installed:
//! `cargo run -p highwater-host --example unpack -- trees/6.1-64.tar.zst DIR`.

use std::error::Error;
use std::fs::File;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [tree, dir] = arguments.as_slice() else {
        return Err("usage: unpack TREE.tar.zst DIR".into());
    };
    let decoder = ruzstd::decoding::StreamingDecoder::new(File::open(tree)?)?;
    tar::Archive::new(decoder).unpack(dir)?;
    Ok(())
}
