//! Results for people and programs.

pub(crate) mod text;
