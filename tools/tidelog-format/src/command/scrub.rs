//! `scrub`: every copy of every durable tensor is read, and bad ones are written again.

use std::fmt::Write;
use std::time::Instant;

use serde_json::json;
use tidelog_command_line::{FormatExit, printable};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{IndexView, inspect};
use tidelog_engine::pool::{OpenOptions, Pool, ScrubReport};
use tidelog_engine::units::ByteCount;

use super::{advance, progress_bar, specs};
use crate::cli::ScrubArgs;
use crate::outcome::{CommandReport, FormatFailure};

pub(super) fn run(args: &ScrubArgs) -> Result<CommandReport, FormatFailure> {
    let devices = specs(&args.pool.devices);
    let view = inspect(&devices)?;
    let total = view.shares.iter().filter_map(|share| share.index.as_ref().ok());
    let total = total.flat_map(IndexView::readable).map(|(entry, ..)| entry.length).sum();
    let mut scrubbing = Scrubbing { devices, args, total: ByteCount(total), begun: Instant::now() };
    let report = scrubbing.run(view.superblock.geometry.shares)?;
    let pool = format!("{:032x}", view.superblock.pool);
    let mut text = format!(
        "pool {pool}: {} durable tensor(s), {}, all copies read: {} part(s) written again, {} tensor(s) have \
         lost bytes\n",
        report.tensors,
        report.bytes,
        report.healed,
        report.damaged.len()
    );
    for damaged in &report.damaged {
        let name = damaged.name.clone().unwrap_or_else(|| damaged.id.to_string());
        let _ = writeln!(text, "LOST: {}", printable(&name));
    }
    let exit = match (report.damaged.is_empty(), report.healed) {
        (false, _) => FormatExit::Damaged,
        (true, 0) => FormatExit::Clean,
        (true, _) => FormatExit::Repaired,
    };
    let damaged =
        report.damaged.iter().map(|it| json!({ "id": it.id.to_string(), "name": it.name }));
    let json = json!({
        "pool": pool,
        "tensors": report.tensors,
        "bytes": report.bytes.0,
        "healed": report.healed,
        "damaged": damaged.collect::<Vec<_>>(),
    });
    Ok(CommandReport::new(text, json, exit))
}

struct Scrubbing<'a> {
    devices: Vec<DeviceSpec>,
    args: &'a ScrubArgs,
    total: ByteCount,
    begun: Instant,
}

impl Scrubbing<'_> {
    fn run(&mut self, shares: u32) -> Result<ScrubReport, FormatFailure> {
        let bar = progress_bar("scrubbing");
        let mut report = ScrubReport::default();
        for share in 0..shares {
            let options = OpenOptions {
                share,
                buffered: self.args.pool.buffered,
                huge_pages: false,
                housekeeping: None,
                ..OpenOptions::default()
            };
            let failed = |error: &dyn std::fmt::Display| {
                FormatFailure::new(FormatExit::Failed, error.to_string(), "")
            };
            let pool = Pool::open(&self.devices, &options)?;
            let mut steps = pool.scrub_steps().map_err(|error| failed(&error))?;
            while let Some(scrubbed) = steps.step().map_err(|error| failed(&error))? {
                report.add(scrubbed);
                advance(&bar, report.bytes, self.total);
                let rate = self.args.rate.unwrap_or_default();
                std::thread::sleep(report.bytes.time_left(rate, self.begun));
            }
            pool.close().map_err(|error| failed(&error))?;
        }
        bar.finish_and_clear();
        Ok(report)
    }
}
