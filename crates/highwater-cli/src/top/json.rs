//! A moment as one JSON object, with units in the names of fields.

use std::time::Duration;

use highwater::{Bytes, Estimate};
use serde_json::{Map, Value, json};

use super::model::{File, Frames, Group, Lock, Source, Stall, State, Victim};
use super::rates::Rate;

/// Returns the object of a moment and the recording that it is from.
pub(crate) fn moment<S: Source>(state: &State, rates: &[Rate], source: &S) -> Value {
    let origin = source.origin();
    let groups = state.groups.iter().zip(rates);
    let counters = state.counters.iter();
    let counters: Map<String, Value> = counters
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let marks = source.marks().iter();
    let marks: Vec<Value> = marks
        .map(|mark| json!({"time_us": micros(mark.time), "text": mark.text}))
        .collect();
    json!({
        "recording": {
            "file": origin.file,
            "program": origin.program,
            "pid": origin.pid,
            "started_unix_us": micros(origin.started_unix),
            "page_size_bytes": origin.page_size,
            "moments": source.len(),
            "has_ended": source.has_ended(),
            "torn_records": source.nr_torn(),
        },
        "tick": state.tick,
        "time_us": micros(state.time),
        "whole_at_us": micros(state.whole_at),
        "is_whole": state.is_whole,
        "groups": groups.map(|(group, rate)| of_group(group, rate)).collect::<Vec<_>>(),
        "frames": of_frames(&state.frames),
        "locks": state.locks.iter().map(of_lock).collect::<Vec<_>>(),
        "files": state.files.iter().map(of_file).collect::<Vec<_>>(),
        "files_omitted": state.files_omitted,
        "counters": counters,
        "marks": marks,
        "victims": source.victims().iter().map(of_victim).collect::<Vec<_>>(),
    })
}

fn of_group(group: &Group, rate: &Rate) -> Value {
    let bytes = |limit: Option<Bytes>| limit.map(|limit| limit.0);
    let events: Map<String, Value> = group
        .events
        .iter()
        .map(|(name, count)| ((*name).to_owned(), json!(count)))
        .collect();
    json!({
        "path": group.path,
        "id": group.id,
        "read_at_us": micros(group.read_at),
        "usage_bytes": interval(&group.usage),
        "peak_bytes": interval(&group.peak),
        "min_bytes": bytes(group.limits.min),
        "low_bytes": bytes(group.limits.low),
        "high_bytes": bytes(group.limits.high),
        "max_bytes": bytes(group.limits.max),
        "events": events,
        "pressure": {"some": of_stall(&group.some), "full": of_stall(&group.full)},
        "anon_pages": group.stat.anon,
        "file_pages": group.stat.file,
        "file_dirty_pages": group.stat.file_dirty,
        "refaults": group.stat.refault,
        "activated_refaults": group.stat.activate,
        "scanned_pages": group.stat.scanned,
        "reclaimed_pages": group.stat.reclaimed,
        "faults": group.stat.fault,
        "major_faults": group.stat.major_fault,
        "statistics_off_at_most": group.stat_staleness,
        "statistics_age_us": micros(group.stat_age),
        "refaults_per_s": rate.refaults,
        "scanned_pages_per_s": rate.scanned,
        "reclaimed_pages_per_s": rate.reclaimed,
        "major_faults_per_s": rate.major_faults,
        "reclaim_efficiency_percent": rate.efficiency,
        "waiting": {
            "charges": group.waiting.charges,
            "bytes": group.waiting.bytes.0,
            "longest_us": micros(group.waiting.longest),
        },
    })
}

fn of_stall(stall: &Stall) -> Value {
    // Two decimal places, as in the kernel's files.
    let [avg10, avg60, avg300] = stall.averages;
    json!({
        "avg10_percent": avg10,
        "avg60_percent": avg60,
        "avg300_percent": avg300,
        "total_us": micros(stall.total),
    })
}

fn of_frames(frames: &Frames) -> Value {
    let lists: Vec<Value> = frames
        .lists
        .iter()
        .map(|list| {
            json!({
                "cpu": list.cpu,
                "count_pages": list.count,
                "high_pages": list.high,
                "high_min_pages": list.high_min,
                "high_max_pages": list.high_max,
                "batch_pages": list.batch,
            })
        })
        .collect();
    json!({
        "managed_pages": frames.managed,
        "ballooned_pages": frames.ballooned,
        "free_pages": frames.free,
        "deferred_pages": frames.deferred,
        "cached_pages": frames.cached,
        "allocated_pages": frames.allocated,
        "peak_pages": frames.peak,
        "watermark_min_pages": frames.watermark_min,
        "watermark_low_pages": frames.watermark_low,
        "watermark_high_pages": frames.watermark_high,
        "is_reclaiming": frames.is_reclaiming,
        "pcp": lists,
    })
}

fn of_lock(lock: &Lock) -> Value {
    json!({
        "class": lock.class,
        "contended": lock.contended,
        "wait_us": micros(lock.wait),
        "hold_us": lock.held.map(|(held, _)| micros(held)),
        "holds": lock.held.map(|(_, holds)| holds),
    })
}

fn of_file(file: &File) -> Value {
    json!({
        "id": file.id,
        "path": file.path,
        "size_pages": file.pages,
        "resident_bytes": interval(&file.resident),
    })
}

fn of_victim(victim: &Victim) -> Value {
    let census: Map<String, Value> = victim
        .census
        .iter()
        .map(|(name, count)| (name.replace(' ', "_"), json!(count)))
        .collect();
    let runner_up = victim.runner_up.as_ref();
    json!({
        "time_us": micros(victim.time),
        "target": victim.target,
        "path": victim.path,
        "estimate_bytes": interval(&victim.estimate),
        "exact_bytes": victim.exact.map(|exact| exact.0),
        "badness_bytes": victim.badness,
        "runner_up": runner_up.map(|(path, next)| json!({"path": path, "badness_bytes": next})),
        "gap_bytes": victim.gap.0,
        "search": census,
        "text": victim.text,
    })
}

fn interval(estimate: &Estimate<Bytes>) -> Value {
    json!({"value": estimate.value.0, "low": estimate.low.0, "high": estimate.high.0})
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
