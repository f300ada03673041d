//! Handles: a tree, a group, and bytes charged to it.

mod node;
mod tree;
mod charge;
mod charging;
mod wait;
mod usage;
mod limits;
mod high;
mod protection;
mod oom;
mod pressure;
mod stat;
mod on_cpu;

pub use charge::NodeCharge;
pub use high::OverHigh;
pub use node::GroupNode;
pub use oom::LeafGroup;
pub use tree::GroupTree;
pub use wait::NodeChargeWait;
