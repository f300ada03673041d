//! The settings and verdicts of repeated runs by their names, and those in which two sides differ.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Texts, the fields that describe the set-up, the traces, and the verdicts of checks.
pub(super) type Settings = BTreeMap<String, Value>;

/// Returns the settings of the last run, and of each check the worst verdict of all runs.
pub(super) fn of(runs: &[Value]) -> Settings {
    let mut settings = runs.last().map_or_else(Settings::new, of_run);
    for (name, verdict) in runs.iter().flat_map(verdicts) {
        let worst = settings.entry(name).or_insert(Value::Null);
        if badness(&verdict) > badness(worst) {
            *worst = verdict;
        }
    }
    settings
}

/// Returns the settings that differ, sorted by name.
pub(super) fn differing(of_a: &Settings, of_b: &Settings) -> Vec<(String, String, String)> {
    let text = |value: Option<&Value>| match value {
        None => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let names: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
    let sides = names
        .into_iter()
        .map(|name| (name, of_a.get(name), of_b.get(name)));
    let differing = sides.filter(|(_, a, b)| a != b);
    differing
        .map(|(name, a, b)| (name.clone(), text(a), text(b)))
        .collect()
}

fn of_run(run: &Value) -> Settings {
    let mut settings = Settings::new();
    for (name, value) in run.as_object().into_iter().flatten() {
        let is_setup = ["seed", "machine", "knobs", "config", "runs"].contains(&name.as_str());
        match value {
            Value::Object(fields) if is_setup => {
                let named =
                    |(field, value): (&String, &Value)| (format!("{name}.{field}"), value.clone());
                settings.extend(fields.iter().map(named));
            }
            Value::Array(_) | Value::Object(_) => {}
            // Remarks on a run, rather than its set-up.
            _ if name.starts_with("note") => {}
            _ if is_setup || value.is_string() => {
                settings.insert(name.clone(), value.clone());
            }
            _ => {}
        }
    }
    settings.extend(traces(run));
    settings
}

/// Returns the trace of each tenant of a replay or of curves: its name, and the beginning of its
/// digest where that is known.
fn traces(run: &Value) -> Vec<(String, Value)> {
    let tenants = run.get("tenants").and_then(Value::as_array);
    let trace = |tenant: &Value| {
        let of = format!("trace of {}", tenant.get("name")?.as_str()?);
        let trace = tenant.get("trace")?;
        let name = trace.as_str().or_else(|| trace.get("name")?.as_str())?;
        let digest = trace.get("sha256").and_then(Value::as_str);
        let digest = digest.and_then(|digest| digest.get(..12));
        let digest = digest.map(|digest| format!(" (sha256 {digest}...)"));
        Some((of, format!("{name}{}", digest.unwrap_or_default()).into()))
    };
    tenants.into_iter().flatten().filter_map(trace).collect()
}

/// Returns the checks of a run of `lab` or `host` with their verdicts.
fn verdicts(run: &Value) -> Vec<(String, Value)> {
    let checks = run.get("checks").and_then(Value::as_array);
    let verdict = |check: &Value| {
        let name = check.get("name").or(check.get("title"))?.as_str()?;
        let verdict = match check.get("pass").and_then(Value::as_bool) {
            Some(pass) => Value::from(if pass { "holds" } else { "fails" }),
            None => check.get("verdict")?.clone(),
        };
        Some((format!("check: {name}"), verdict))
    };
    checks.into_iter().flatten().filter_map(verdict).collect()
}

/// Orders verdicts; one that could not be measured says least.
fn badness(verdict: &Value) -> u8 {
    match verdict.as_str() {
        Some("bad" | "fails") => 4,
        Some("warn") => 3,
        Some("ok" | "holds") => 2,
        Some(_) => 1,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Goal: repeated runs have the worst verdict of each check that any of them has. Method: each
    /// pair of verdicts, in both orders, beside a check that one run lacks.
    #[test]
    fn the_worst_verdict_of_all_runs_counts() {
        let run = |verdict: &str| json!({"checks": [{"title": "c", "verdict": verdict}]});
        let verdicts = ["not_measurable", "ok", "warn", "bad"];
        for (at, worse) in verdicts.iter().enumerate() {
            for better in &verdicts[..=at] {
                let both = [run(better), run(worse)];
                let lacking = [both[1].clone(), both[0].clone(), json!({"checks": []})];
                for runs in [&both[..], &lacking] {
                    assert_eq!(of(runs)["check: c"], *worse, "beside {better}");
                }
            }
        }
    }
}
