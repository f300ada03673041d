//! Arithmetic that knows no tree: effective protection, throttling delays, pressure.

pub(super) mod protection;
pub(super) mod throttle;
pub(super) mod pressure;
