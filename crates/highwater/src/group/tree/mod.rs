//! Changes of a tree: creating and removing groups, setting limits; and the checks of its
//! invariants.

mod limits;
mod lifecycle;
mod check;
