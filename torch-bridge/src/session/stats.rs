//! What the session tells about itself: JSON for programs, the HTML report for people.

use serde_json::{Map, Value, json};
use tidelog_planner::trace::Kind;

use super::Session;
use super::figures::BytesByKind;

impl Session {
    /// Figures since the session was opened.
    pub(crate) fn stats_json(&self) -> String {
        let state = self.lock();
        json!({
            "totals": state.figures.totals,
            "last_step": state.figures.last_step,
            "bytes_written": by_kind(&state.figures.written),
            "bytes_read": by_kind(&state.figures.read),
            "evictions": state.figures.totals.evictions,
            "fetches": state.figures.totals.fetches,
            "clean_drops": state.figures.totals.clean_drops,
            "stalls": state.figures.totals.stalls,
            "stall_ns": state.figures.totals.stall_ns,
            "resident_bytes": state.machine.committed().0,
            "plan": state.planned.as_ref().map(|planned| json!({
                "ops": planned.trace.ops.len(),
                "storages": planned.trace.storages.len(),
                "migrations": planned.plan.rows.len(),
            })),
            "notices": state.notices,
        })
        .to_string()
    }
}

fn by_kind(bytes: &BytesByKind) -> Value {
    let named = Kind::ALL
        .iter()
        .zip(bytes)
        .map(|(kind, &bytes)| (kind_name(*kind).to_owned(), json!(bytes)));
    Value::Object(named.collect::<Map<_, _>>())
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Parameter => "parameter",
        Kind::Gradient => "gradient",
        Kind::OptimizerState => "optimizer state",
        Kind::Activation => "activation",
        Kind::Other => "other",
    }
}
