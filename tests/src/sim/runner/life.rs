//! Opening, closing, and coming back after the power went.

use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::inspect::accept_overwritten_start;
use tidelog_engine::pool::{OpenError, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;

use super::faults::{AllowedErrors, struck_by};
use super::{Check, Runner, text};
use crate::sim::coverage::{FaultSeen, Under};

/// Returns the options to open the pool.
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
    /// Returns whether the runner was closed well. A process that ends otherwise has crashed.
    pub(super) fn close(&mut self) -> Result<bool, String> {
        self.writes.clear();
        self.reads.clear();
        self.staged.clear();
        if let Some(pool) = self.pool.take() {
            self.closed = pool.close().is_ok() && !self.is_down();
        }
        self.was_hurt |= self.may_be_hurt();
        self.take_in_commits()?;
        if !self.commits.is_empty() {
            return Err(format!("{} commits have no end in a closed pool", self.commits.len()));
        }
        self.model.restarted();
        Ok(self.closed)
    }

    pub(super) fn reopen(&mut self) -> Check {
        self.close()?;
        self.open()
    }

    /// Recovers after a power cut.
    pub(super) fn recover(&mut self) -> Check {
        self.figures.crashes += 1;
        self.close()?;
        self.verdict()?;
        self.open()?;
        self.check_everything()
    }

    pub(super) fn open(&mut self) -> Check {
        self.disks.iter().for_each(SimDisk::clear_faults);
        // Also what struck while the pool was closed.
        self.count_struck(Under::Rest);
        // Two lost writes in a row may lose both that tell of an event.
        let options = OpenOptions {
            accept_older_copies: self.allowed_errors.metadata.is_some(),
            ..options()
        };
        // A second cut may come while recovery is under way; then it begins again, as it does
        // once a disk that was overwritten is taken back.
        for _ in 0..4 {
            match Pool::open(&self.disks, &options) {
                Ok(pool) => {
                    self.pool = Some(pool);
                    self.openings += 1;
                    break;
                }
                Err(OpenError::OverwrittenStart { device, .. }) => self.take_back(&device)?,
                Err(_) if self.is_down() => {
                    self.see_fault(struck_by(self.cut), Under::Open);
                    self.figures.crashes += 1;
                }
                // What a crash may have torn on one copy, and the other cannot be read: nobody
                // knows whether it was whole.
                Err(OpenError::Recovery { .. }) if !self.closed && self.read_again() => {
                    self.see_fault(FaultSeen::RefusedUnread, Under::Open);
                }
                Err(error) => return Err(format!("the pool cannot be opened: {error}")),
            }
        }
        // What was hurt is repaired by opening, or is data.
        let AllowedErrors { damaged, unreadable, .. } = self.allowed_errors;
        self.allowed_errors = AllowedErrors { damaged, unreadable, ..AllowedErrors::default() };
        self.resolve_doubt()
    }

    /// Has all blocks be read again. Returns whether there were any that could not.
    fn read_again(&self) -> bool {
        let mut any = false;
        for disk in &self.disks {
            for block in disk.unreadable() {
                disk.restore(block);
                any = true;
            }
        }
        any
    }

    /// A disk is refused for what stands at its start, which a write that went astray has left
    /// there: says that it is the pool's all the same.
    fn take_back(&mut self, device: &str) -> Check {
        let taken = accept_overwritten_start(&self.disks, false).map_err(text)?;
        if taken.iter().all(|it| it.device != device) {
            return Err(format!("{device} is refused and not taken back: {taken:?}"));
        }
        for disk in taken {
            let of = |index: &usize| disk.device == format!("sim{index}");
            let mut hit = self.astray.iter().chain(&self.stained).copied();
            let Some(index) = hit.find(of) else {
                return Err(format!("{} was not overwritten: {}", disk.device, disk.found));
            };
            self.astray.remove(&index);
            self.see_fault(FaultSeen::StartOverwritten, Under::Open);
        }
        Ok(())
    }
}
