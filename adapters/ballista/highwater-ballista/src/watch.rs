//! Whether the pools in force are Highwater's.
//!
//! A setting of the executor decides whether Ballista puts a pool of its own over the one that a
//! runtime producer made, and no error tells. So the pool is looked at where a task's plan is
//! decoded: there the task's context is at hand, and every stage has a node of Ballista's.

use std::fmt;
use std::sync::Arc;

use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, WindowUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::{
    proto_decode::PhysicalExprDecodeCtx, proto_encode::PhysicalExprEncodeCtx,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use parking_lot::Mutex;

use crate::task_pool::TaskPool;

/// The pools that an executor's tasks have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum InForce {
    /// No task came yet.
    #[default]
    Unknown,
    /// All tasks until now had one of Highwater's.
    Highwater,
    /// A task had another pool, which is described here, and was refused.
    Foreign(String),
}

/// Tells whether the pools in force are Highwater's: for a health check.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<InForce>>);

impl Watch {
    /// Returns the pools that tasks have had until now.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        self.0.lock().clone()
    }

    /// Returns whether no task had a foreign pool.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        !matches!(*self.0.lock(), InForce::Foreign(_))
    }

    fn look(&self, pool: &dyn MemoryPool) -> Result<()> {
        let mut in_force = self.0.lock();
        if pool.is::<TaskPool>() {
            if *in_force == InForce::Unknown {
                *in_force = InForce::Highwater;
            }
            return Ok(());
        }
        let text = format!(
            "the memory pool of this task is {pool}, and not Highwater's, so that no tenant's \
             maximum would hold: call Executors::configure after all other settings of the executor"
        );
        if !matches!(*in_force, InForce::Foreign(_)) {
            log::error!("{text}");
            *in_force = InForce::Foreign(pool.to_string());
        }
        Err(DataFusionError::Configuration(text))
    }
}

/// A codec that looks at the pool of each plan that it decodes.
pub(crate) struct WatchedCodec {
    pub(crate) watch: Watch,
    pub(crate) inner: Arc<dyn PhysicalExtensionCodec>,
}

impl fmt::Debug for WatchedCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchedCodec({:?})", self.inner)
    }
}

impl PhysicalExtensionCodec for WatchedCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        ctx: &TaskContext,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.watch.look(ctx.memory_pool().as_ref())?;
        self.inner.try_decode(buf, inputs, ctx, proto_converter)
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        proto_converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        self.inner.try_encode(node, buf, proto_converter)
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        self.inner.try_decode_udf(name, buf)
    }

    fn try_encode_udf(&self, node: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udf(node, buf)
    }

    fn try_decode_higher_order_function(
        &self,
        name: &str,
        buf: &[u8],
    ) -> Result<Arc<HigherOrderUDF>> {
        self.inner.try_decode_higher_order_function(name, buf)
    }

    fn try_encode_higher_order_function(
        &self,
        node: &HigherOrderUDF,
        buf: &mut Vec<u8>,
    ) -> Result<()> {
        self.inner.try_encode_higher_order_function(node, buf)
    }

    fn try_decode_expr(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        ctx: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        self.inner.try_decode_expr(buf, inputs, ctx)
    }

    fn try_encode_expr(
        &self,
        node: &Arc<dyn PhysicalExpr>,
        buf: &mut Vec<u8>,
        ctx: &PhysicalExprEncodeCtx<'_>,
    ) -> Result<()> {
        self.inner.try_encode_expr(node, buf, ctx)
    }

    fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
        self.inner.try_decode_udaf(name, buf)
    }

    fn try_encode_udaf(&self, node: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udaf(node, buf)
    }

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        self.inner.try_decode_udwf(name, buf)
    }

    fn try_encode_udwf(&self, node: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udwf(node, buf)
    }
}
