//! The report of a measured step, and its trace: written to files whole or not at all.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidelog_planner::migration::Target;
use tidelog_planner::plan::PlannedBytes;
use tidelog_planner::report::{OpSpan, Report, Stall, TransferSpan, Unmovable};
use tidelog_planner::trace::{Kind, Trace};
use tidelog_planner::units::Bytes;

use tidelog_gds::HostTier;

use super::history::{Label, OpRun, Step, Transfer, Wait};
use super::stats::{data_path, staging_backing};
use super::{Session, State};
use crate::abi::Failure;

impl Session {
    /// Writes the report of the last complete step, or of the one that runs where none is complete.
    pub(crate) fn write_report(&self, path: &Path) -> Result<i32, Failure> {
        let page = self.report().to_html();
        replace(path, page.as_bytes()).map_err(|(what, error)| {
            Failure::invalid(format!("the report cannot be written to {what:?}: {error}"))
        })?;
        Ok(0)
    }

    /// Writes the trace of the planned step, for `tidelog-plan`.
    pub(crate) fn write_trace(&self, path: &Path) -> Result<i32, Failure> {
        let trace = self.lock().planned.as_ref().map(|planned| Arc::clone(&planned.trace));
        let trace = trace.ok_or_else(|| {
            Failure::invalid(
                "there is no trace yet: with mode=\"auto\" one is made once two steps in \
                 `with tide.step():` were alike",
            )
        })?;
        replace(path, trace.to_json().as_bytes()).map_err(|(what, error)| {
            Failure::invalid(format!("the trace cannot be written to {what:?}: {error}"))
        })?;
        Ok(0)
    }

    fn report(&self) -> Report {
        let pool = self.pool.stats().ok();
        let state = self.lock();
        let mut report = state.report();
        if let Some(pool) = pool {
            report.figures.push(("data path".to_owned(), data_path(&pool)));
            for why in &pool.reactor.why_not {
                report.figures.push(("why no better one".to_owned(), why.clone()));
            }
            report.figures.push(("staging memory".to_owned(), staging_backing(&pool)));
            report.figures.push(("devices".to_owned(), pool.description.devices.join(", ")));
        }
        if let Some(tier) = self.tier.as_ref().map(HostTier::stats) {
            let value = format!("{} at most of {}", tier.peak, tier.capacity);
            report.figures.push(("host memory".to_owned(), value));
        }
        report
    }
}

impl State {
    fn report(&self) -> Report {
        let mut report = Report {
            title: "training step".to_owned(),
            budget: self.machine.budget(),
            staging: self.staging,
            unmovable: self.unmovable(),
            figures: self.expected(),
            notices: self.notices.clone(),
            ..Report::default()
        };
        let (read, written) = self.figures.bandwidths(Target::Ssd);
        let (from_host, to_host) = self.figures.bandwidths(Target::Host);
        for (name, rate) in [
            ("read at", read),
            ("written at", written),
            ("from host memory at", from_host),
            ("to host memory at", to_host),
        ] {
            if let Some(rate) = rate {
                let value = format!("{}/s while transfers were in flight", Bytes(rate.0));
                report.figures.push((name.to_owned(), value));
            }
        }
        if let Some(step) = self.history.shown() {
            self.show(step, &mut report);
        } else {
            "measured, no step yet".clone_into(&mut report.subtitle);
            report.notices.push(
                "no step was marked: put each training step into `with tide.step():`, and the \
                 report shows the last complete one"
                    .to_owned(),
            );
        }
        report
    }

    fn show(&self, step: &Step, report: &mut Report) {
        let so_far = if step.complete { "" } else { ", not complete" };
        report.subtitle = format!("measured, step {}{so_far}", step.number);
        report.duration = step.duration;
        report.memory.clone_from(&step.memory);
        let words = Words::new(self.planned.as_ref().map(|planned| &*planned.trace), step);
        report.ops = step.ops.iter().map(op_span).collect();
        report.transfers = step.transfers.iter().map(|moved| words.span(moved)).collect();
        report.stalls = step.stalls.iter().map(|waited| words.stall(waited)).collect();
        report.written = written(step);
        report.clean_evictions = step.clean_evictions;
        report.clean_bytes = Bytes(step.clean_bytes);
        if step.truncated {
            report.notices.push(
                "the step did more than a report keeps: the picture leaves out its later part, the \
                 totals of written bytes and clean evictions do not"
                    .to_owned(),
            );
        }
    }

    fn expected(&self) -> Vec<(String, String)> {
        let Some(planned) = &self.planned else {
            return vec![("plan".to_owned(), "none: the session reacts to each op".to_owned())];
        };
        let (plan, expects) = (&planned.plan, &planned.plan.expects);
        let time = seconds(expects.time.0);
        let stalls = if expects.simulated {
            format!("{time} a step, {} of it waiting", seconds(expects.stall.0))
        } else {
            format!("{time} a step if no op waits")
        };
        let bytes = &expects.bytes;
        vec![
            ("plan".to_owned(), format!("{}, {} migrations", plan.policy, plan.rows.len())),
            ("planned again".to_owned(), format!("{} times", self.planning.taken_over)),
            ("the plan expects".to_owned(), stalls),
            ("the plan moves".to_owned(), format!("{} a step", moves(bytes))),
        ]
    }

    fn unmovable(&self) -> Vec<Unmovable> {
        let stays = |known: &super::Known| (known.pins > 0 || !known.movable) && known.size > 0;
        let mut fixed: Vec<_> = self.known.iter().filter(|(_, known)| stays(known)).collect();
        fixed.sort_unstable_by_key(|(storage, _)| **storage);
        let entries = fixed.into_iter().map(|(&storage, known)| Unmovable {
            name: self.describe(storage),
            bytes: Bytes(known.size),
            why: if known.movable {
                "pinned: something outside sees its memory".to_owned()
            } else {
                "its memory is not the framework's own".to_owned()
            },
        });
        entries.collect()
    }
}

/// Finds words for what a step recorded.
struct Words<'a> {
    /// Names of the plan's ops: under a plan most ops run unseen.
    planned: Option<&'a Trace>,
    /// Names of the ops that were seen, by their place.
    seen: HashMap<u32, &'a str>,
}

impl<'a> Words<'a> {
    fn new(planned: Option<&'a Trace>, step: &'a Step) -> Self {
        let seen = step.ops.iter().filter_map(|ran| Some((ran.index?, &*ran.name))).collect();
        Self { planned, seen }
    }

    fn span(&self, moved: &Transfer) -> TransferSpan {
        TransferSpan {
            name: self.storage(&moved.label),
            kind: moved.kind,
            bytes: Bytes(moved.bytes),
            direction: moved.direction,
            target: moved.target,
            begin: moved.begin,
            moved: moved.moved,
            end: moved.end,
            in_step: Bytes(moved.in_step),
            urgent: moved.urgent,
            ending: moved.ending,
        }
    }

    fn stall(&self, waited: &Wait) -> Stall {
        let op = match &waited.op {
            Some((name, Some(index))) => format!("{name} (op {index})"),
            Some((name, None)) => name.to_string(),
            None => "beginning of the step".to_owned(),
        };
        let storage = waited.waited_for.as_ref();
        let waited_for = storage.map_or_else(|| "room".to_owned(), |each| self.storage(each));
        Stall { op, begin: waited.begin, end: waited.end, waited_for }
    }

    /// What people call a storage: its name, or the op that made it.
    fn storage(&self, label: &Label) -> String {
        match (&label.name, label.birth) {
            (Some(name), _) => name.to_string(),
            (None, Some((op, slot))) => match self.op(op) {
                Some(made_by) => format!("output {slot} of {made_by} (op {op})"),
                None => format!("output {slot} of op {op}"),
            },
            (None, None) => format!("storage {}", label.storage),
        }
    }

    fn op(&self, index: u32) -> Option<&'a str> {
        let planned = self.planned.and_then(|trace| trace.ops.get(index as usize));
        self.seen.get(&index).copied().or_else(|| planned.map(|op| op.name.as_str()))
    }
}

fn op_span(ran: &OpRun) -> OpSpan {
    OpSpan { name: ran.name.to_string(), begin: ran.begin, end: ran.end }
}

fn moves(bytes: &PlannedBytes) -> String {
    let ssd = format!("{} out and {} back", bytes.ssd_written, bytes.ssd_read);
    match (bytes.host_written, bytes.host_read) {
        (Bytes(0), Bytes(0)) => ssd,
        (out, back) => format!("{ssd}, {out} to host memory and {back} from it"),
    }
}

/// Bytes written by kind, largest first; kinds of which nothing was written are left out.
fn written(step: &Step) -> Vec<(Kind, Bytes)> {
    let by_kind = Kind::ALL.into_iter().zip(step.written.map(Bytes));
    let mut written: Vec<_> = by_kind.filter(|(_, bytes)| bytes.0 > 0).collect();
    written.sort_by_key(|(kind, bytes)| (std::cmp::Reverse(*bytes), *kind));
    written
}

pub(super) fn seconds(nanos: u64) -> String {
    format!("{}.{:03} s", nanos / 1_000_000_000, nanos / 1_000_000 % 1000)
}

/// Writes a file beside `path` and renames it: who reads `path` sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), (String, std::io::Error)> {
    let beside = beside(path)
        .ok_or_else(|| (path.display().to_string(), std::io::ErrorKind::InvalidFilename.into()))?;
    let written = fs::File::create(&beside).and_then(|mut file| file.write_all(bytes));
    let replaced = match written {
        Ok(()) => fs::rename(&beside, path).map_err(|error| (path.display().to_string(), error)),
        Err(error) => Err((beside.display().to_string(), error)),
    };
    if replaced.is_err() {
        let _ = fs::remove_file(&beside); // where it was not even made, there is nothing to remove
    }
    replaced
}

fn beside(path: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name()?);
    name.push(format!(".{}.tmp", std::process::id()));
    Some(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_the_older_one_and_leaves_nothing_beside_it() {
        let folder = std::env::temp_dir().join(format!("tidelog-report-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("report.html");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_report_that_cannot_be_written_says_where() {
        let (place, _) = replace(Path::new("/nonexistent/folder/report.html"), b"x").unwrap_err();
        assert!(place.starts_with("/nonexistent/folder/"), "{place}");
        let (place, error) = replace(Path::new("/"), b"x").unwrap_err();
        assert_eq!((place.as_str(), error.kind()), ("/", std::io::ErrorKind::InvalidFilename));
    }
}
