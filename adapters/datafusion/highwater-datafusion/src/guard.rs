//! The statement by which a tenant would leave its pool.

use datafusion_common::{DataFusionError, Result};
use datafusion_expr::{LogicalPlan, Statement};

/// Settings of the runtime environment, which is shared or replaced as a whole.
const RUNTIME: &str = "datafusion.runtime.";

/// Refuses statements that change the runtime environment. `SET datafusion.runtime.memory_limit`
/// replaces the session's pool by one of DataFusion's own, and `RESET` by one without a limit:
/// either takes the session out of its tenant's maximum. Call it on each plan that comes from a
/// tenant, before it is executed.
///
/// # Errors
///
/// [`DataFusionError::Plan`], which names the setting.
///
/// # Examples
///
/// ```
/// use datafusion_expr::{LogicalPlan, SetVariable, Statement};
/// use highwater_datafusion::guard_sql;
///
/// let escape = SetVariable {
///     variable: "datafusion.runtime.memory_limit".into(),
///     value: "100G".into(),
/// };
/// let plan = LogicalPlan::Statement(Statement::SetVariable(escape));
/// assert!(guard_sql(&plan).unwrap_err().to_string().contains("memory_limit"));
/// ```
pub fn guard_sql(plan: &LogicalPlan) -> Result<()> {
    let variable = match plan {
        LogicalPlan::Statement(Statement::SetVariable(set)) => &set.variable,
        LogicalPlan::Statement(Statement::ResetVariable(reset)) => &reset.variable,
        // A prepared statement holds the plan that it runs.
        LogicalPlan::Statement(Statement::Prepare(prepare)) => return guard_sql(&prepare.input),
        _ => return Ok(()),
    };
    let is_runtime = variable
        .get(..RUNTIME.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(RUNTIME));
    if !is_runtime {
        return Ok(());
    }
    Err(DataFusionError::Plan(format!(
        "`{variable}` belongs to the server: this session runs within its tenant's memory limit"
    )))
}
