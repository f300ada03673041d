//! The statement by which a tenant would leave its pool.

use datafusion_common::{DataFusionError, Result};
use datafusion_expr::{LogicalPlan, Statement};

/// Settings of the server: those of the runtime environment, which is shared or replaced as a
/// whole, and those that name the session's tenant.
const OF_THE_SERVER: [&str; 2] = ["datafusion.runtime.", "highwater."];

/// Refuses statements that change the runtime environment or the session's tenant. `SET
/// datafusion.runtime.memory_limit` replaces the session's pool by one of DataFusion's own, and
/// `RESET` by one without a limit: either takes the session out of its tenant's maximum. `SET
/// highwater.tenant` has its later queries charged to another tenant, where the name travels with
/// the session (Ballista). Call it on each plan that comes from a tenant, before it is executed.
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
/// for (name, value) in [("datafusion.runtime.memory_limit", "100G"), ("Highwater.tenant", "b")] {
///     let escape = SetVariable { variable: name.into(), value: value.into() };
///     let plan = LogicalPlan::Statement(Statement::SetVariable(escape));
///     assert!(guard_sql(&plan).unwrap_err().to_string().contains(name));
/// }
/// ```
pub fn guard_sql(plan: &LogicalPlan) -> Result<()> {
    let variable = match plan {
        LogicalPlan::Statement(Statement::SetVariable(set)) => &set.variable,
        LogicalPlan::Statement(Statement::ResetVariable(reset)) => &reset.variable,
        // A prepared statement holds the plan that it runs.
        LogicalPlan::Statement(Statement::Prepare(prepare)) => return guard_sql(&prepare.input),
        _ => return Ok(()),
    };
    let begins_with = |prefix: &str| {
        let start = variable.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if !OF_THE_SERVER.into_iter().any(begins_with) {
        return Ok(());
    }
    Err(DataFusionError::Plan(format!(
        "`{variable}` belongs to the server: this session runs within its tenant's memory limit"
    )))
}

#[cfg(test)]
mod tests {
    use datafusion_expr::{Prepare, ResetVariable, SetVariable};

    use super::*;

    fn set(variable: &str) -> LogicalPlan {
        LogicalPlan::Statement(Statement::SetVariable(SetVariable {
            variable: variable.into(),
            value: "1".into(),
        }))
    }

    fn reset(variable: &str) -> LogicalPlan {
        LogicalPlan::Statement(Statement::ResetVariable(ResetVariable {
            variable: variable.into(),
        }))
    }

    fn prepared(plan: LogicalPlan) -> LogicalPlan {
        LogicalPlan::Statement(Statement::Prepare(Prepare {
            name: "later".into(),
            fields: Vec::new(),
            input: plan.into(),
        }))
    }

    // Goal: each setting of the server is refused by its name, in any case, also within prepared
    // statements; no other is, also if its name is shorter than a prefix, lacks its point, or has a
    // character across its end.
    #[test]
    fn settings_of_the_server_are_refused_and_no_others() {
        let refused = |plan: &LogicalPlan| guard_sql(plan).map_err(|error| error.to_string());
        for of_server in [
            "datafusion.runtime.temp_directory",
            "HIGHWATER.tenant",
            "highwater.",
        ] {
            for plan in [set(of_server), reset(of_server)] {
                let expected = format!(
                    "Error during planning: `{of_server}` belongs to the server: this session \
                     runs within its tenant's memory limit"
                );
                assert_eq!(refused(&plan), Err(expected.clone()));
                assert_eq!(refused(&prepared(prepared(plan))), Err(expected));
            }
        }
        for harmless in [
            "",
            "highwater",
            "datafusion.runtime",
            "datafusion.runtimes.x",
            "highwateré",
        ] {
            for plan in [set(harmless), reset(harmless), prepared(set(harmless))] {
                assert_eq!(refused(&plan), Ok(()), "{harmless}");
            }
        }
    }
}
