//! Managers, tenants and consumers of tests.

use std::sync::Arc;

use datafusion_execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{Options, Tenant};

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn manager(capacity: Bytes) -> Manager {
    let built = Manager::builder()
        .capacity(capacity)
        .frames(Bytes::ZERO)
        .build();
    built.expect("a manager without frames")
}

pub(crate) fn tenant(hw: &Manager, name: &str, max: Bytes, options: Options) -> Tenant {
    let group = hw.root().child(name, Limits::max(max));
    Tenant::new(group.expect("the name is free"), options)
}

pub(crate) fn query(tenant: &Tenant) -> Arc<dyn MemoryPool> {
    tenant.query().build().expect("no limits of its own")
}

pub(crate) fn spilling(name: &str, pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new(name)
        .with_can_spill(true)
        .register(pool)
}

pub(crate) fn holding(name: &str, pool: &Arc<dyn MemoryPool>) -> MemoryReservation {
    MemoryConsumer::new(name).register(pool)
}
