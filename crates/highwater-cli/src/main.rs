//! The `highwater` program.

fn main() {}
