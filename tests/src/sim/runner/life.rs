//! Opening, closing, and coming back after the power went.

use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::{OpenOptions, Pool};
use tidelog_engine::units::ByteCount;

use super::faults::{AllowedErrors, struck_by};
use super::{Check, Runner};
use crate::sim::coverage::Under;

/// How the pool is opened.
pub(super) fn options() -> OpenOptions {
    OpenOptions {
        staging: ByteCount::kib(256),
        buffers: ByteCount::kib(256),
        huge_pages: false,
        stepped: true,
        ..OpenOptions::default()
    }
}

impl Runner<'_> {
    pub(super) fn close(&mut self) -> Check {
        self.writes.clear();
        self.reads.clear();
        self.staged.clear();
        if let Some(pool) = self.pool.take() {
            drop(pool.close());
        }
        self.take_in_commits()?;
        if !self.commits.is_empty() {
            return Err(format!("{} commits have no end in a closed pool", self.commits.len()));
        }
        self.model.restarted();
        Ok(())
    }

    pub(super) fn reopen(&mut self) -> Check {
        self.close()?;
        self.open()
    }

    /// After a power cut.
    pub(super) fn recover(&mut self) -> Check {
        self.figures.crashes += 1;
        self.reopen()?;
        self.check_everything()
    }

    pub(super) fn open(&mut self) -> Check {
        self.disks.iter().for_each(SimDisk::clear_faults);
        // Two lost writes in a row may lose both that tell of an event.
        let options = OpenOptions {
            accept_older_copies: self.allowed_errors.metadata.is_some(),
            ..options()
        };
        // A second cut may come while recovery is under way; then it begins again.
        for _ in 0..3 {
            match Pool::open(&self.disks, &options) {
                Ok(pool) => {
                    self.pool = Some(pool);
                    self.openings += 1;
                    break;
                }
                Err(_) if self.is_down() => {
                    self.see_fault(struck_by(self.cut), Under::Open);
                    self.figures.crashes += 1;
                }
                Err(error) => return Err(format!("the pool cannot be opened: {error}")),
            }
        }
        // What was hurt is repaired by opening, or is data.
        let AllowedErrors { damaged, .. } = self.allowed_errors;
        self.allowed_errors = AllowedErrors { damaged, ..AllowedErrors::default() };
        self.resolve_doubt()
    }
}
