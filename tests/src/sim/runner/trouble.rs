//! Faults of whole disks: one stalls, or comes back as an older copy of itself.

use tidelog_engine::layout::{BLOCK_BYTES, Events, HOLDERS_OFFSET};
use tidelog_engine::path::sim::SimSnapshot;
use tidelog_engine::pool::{OpenError, Pool};
use tidelog_engine::schedule::Ticket;

use super::life::options;
use super::{Check, Runner};
use crate::sim::coverage::{FaultSeen, Under};
use crate::sim::model::Content;
use crate::sim::script::Cut;

/// Length of a stall: far longer than all that is done meanwhile takes, in ticks.
const STALL: u64 = 1_000_000_000;
/// Tensors that are read meanwhile.
const READ: usize = 8;

/// A copy of a disk.
pub(super) struct Copied {
    disk: usize,
    bytes: SimSnapshot,
    /// Index of the opening in which the copy was made.
    opening: u64,
    /// True if something of its start had rotted, or a write had gone there that was not meant for
    /// it.
    start_is_hurt: bool,
    /// True if the copied had a count of openings and closings: without one nothing tells its age.
    has_count: bool,
}

impl Runner<'_> {
    /// Makes a copy of a disk, with the pool open.
    pub(super) fn copy(&mut self, disk: u8) {
        self.count_struck(Under::Rest);
        let disk = usize::from(disk);
        let bytes = self.disks[disk].snapshot();
        let start_is_hurt = self.astray.contains(&disk) || self.stained.contains(&disk);
        let block = self.disks[disk].peek(HOLDERS_OFFSET, BLOCK_BYTES as usize);
        let pool = self.pool.as_ref().map(|pool| pool.description().pool);
        let has_count = pool.is_none_or(|pool| Events::decode(&block, pool, 0).is_some());
        self.copied =
            Some(Copied { disk, bytes, opening: self.openings, start_is_hurt, has_count });
    }

    /// Ends the process or cuts the power, and puts the last copy of a disk in its place. Where an
    /// opening or closing lies between, the pool refuses it by its name, and then the disk is back;
    /// else nothing tells it, and it stays.
    pub(super) fn stale(&mut self, disk: u8, cut: Option<Cut>) -> Check {
        let Some(mut copied) = self.copied.take() else { return Ok(()) };
        let told = copied.has_count && self.disks.len() > 1;
        if copied.disk != usize::from(disk) || !told || self.is_down() {
            return Ok(());
        }
        self.complete()?;
        self.settle()?;
        if let Some(cut) = cut {
            self.blow(cut, Under::Rest);
        }
        // Whose events were hurt says nothing, and a closing that failed was not counted.
        // What cannot be read on one disk another one has to have.
        let hurt = self.allowed_errors.metadata.is_some() || self.is_any_unreadable();
        let writes = self.allowed_errors.writes;
        self.close()?;
        let counted = cut.is_none() && !writes && !self.is_down();
        let is_older = copied.opening < self.openings || counted;
        if is_older && !hurt {
            let name = format!("sim{}", copied.disk);
            self.disks[copied.disk].swap(&mut copied.bytes);
            match Pool::open(&self.disks, &options()) {
                Err(OpenError::OlderCopy { devices, .. })
                    if devices.iter().all(|it| it.device == name) => {}
                Err(OpenError::OverwrittenStart { device, .. })
                    if copied.start_is_hurt && device == name => {}
                Err(error) => return Err(format!("{name} is an older copy, not: {error}")),
                Ok(_) => return Err(format!("{name} is an older copy of itself, and admitted")),
            }
            self.disks[copied.disk].swap(&mut copied.bytes);
            self.see_fault(FaultSeen::Stale, Under::Open);
        } else if !is_older && !hurt && cut.is_some() && self.model.in_doubt.is_none() {
            self.disks[copied.disk].swap(&mut copied.bytes);
            return self.open_beside_older();
        }
        self.open()?;
        self.check_everything()
    }

    /// Opens the pool with a disk that lacks what was written last. The index is that of the
    /// others: every commit that was acknowledged is there, and a tensor has its bytes or an error.
    fn open_beside_older(&mut self) -> Check {
        let (before, damaged) = (self.count_lost(), self.allowed_errors.damaged);
        let sealed = self.model.held_alone(std::iter::empty()).len();
        self.allowed_errors.damaged += (self.model.durable.len() + sealed) as u64;
        self.see_fault(FaultSeen::OlderInOneRun, Under::Open);
        self.was_hurt = true;
        self.open()?;
        self.check_everything()?;
        if !self.is_down() {
            // All others have been read, and are as they were written.
            self.allowed_errors.damaged = damaged + self.count_lost() - before;
        }
        Ok(())
    }

    /// Has a disk answer nothing while everything is read, and what lies elsewhere be there before
    /// it responds.
    pub(super) fn stall(&mut self, disk: u8) -> Check {
        let stalled = self.disks[usize::from(disk)].clone();
        if self.disks.len() < 2 || self.is_down() {
            return Ok(());
        }
        self.complete()?;
        self.settle()?;
        // What is still being committed would change what there is to read.
        while !self.commits.is_empty() {
            self.follow(0);
            self.process_completions()?;
        }
        let durable = self.model.durable.iter().map(|(id, content)| (*id, true, *content));
        let scratch =
            self.model.scratch.iter().map(|(id, content)| (u16::from(*id), false, *content));
        let is_there = |(_, _, content): &(u16, bool, Content)| content.length > 0;
        let tensors: Vec<_> = durable.chain(scratch).filter(is_there).take(READ).collect();
        // The first byte of a tensor is on one disk. Where that is, reading it shows.
        let mut elsewhere = Vec::new();
        for &tensor in &tensors {
            let before = stalled.counters().reads;
            let read = self.start(tensor.0, tensor.1, (0, 1))?;
            if read.wait().is_ok() && stalled.counters().reads == before {
                elsewhere.push(tensor);
            }
            self.count_struck(Under::Get);
        }
        if self.is_down() {
            return Ok(());
        }
        stalled.stall(STALL);
        let mut all: Vec<(u16, bool, Content, Ticket)> = Vec::new();
        for &(id, durable, content) in &tensors {
            let ticket = self.start(id, durable, (0, content.length.into()))?;
            all.push((id, durable, content, ticket));
        }
        for (id, durable, _) in elsewhere {
            let read = self.start(id, durable, (0, 1))?;
            let _ = read.wait();
            if !stalled.is_stalled() && !self.is_down() {
                return Err(format!(
                    "{id} is on another disk than {disk}, which has stalled, and waited for it"
                ));
            }
        }
        self.see_fault(FaultSeen::Stalled, Under::Get);
        for (id, durable, content, ticket) in all {
            let outcome = ticket.wait();
            self.count_struck(Under::Get);
            let (name, durable) = (format!("{id}, beside a stall"), durable.then_some(id));
            self.compare(&name, durable, content, &outcome, &ticket, &content.bytes())?;
        }
        Ok(())
    }
}
