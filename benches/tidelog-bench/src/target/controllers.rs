//! Controllers that the kernel does not drive, for the raw level. Each is attached once, and stays
//! this process's until the run's end: what is known of it cannot change meanwhile.

use std::io;

use tidelog_device_safety::{ClaimedController, NamedDevice, Reason, TargetKind};
use tidelog_engine::path::PathProvider;

use crate::exit::BenchError;
use crate::option::JobOptions;

#[derive(Debug, Default)]
pub(super) struct Controllers(Vec<Held>);

#[derive(Debug)]
struct Held {
    target: NamedDevice,
    attached: ClaimedController,
    /// True if the controller may be written: it was looked at since it was attached.
    may_be_written: bool,
}

impl Controllers {
    /// Returns the device that was found when the controller of this name was attached.
    pub(super) fn target(&self, name: &str) -> Option<NamedDevice> {
        self.held(name).map(|held| held.target.clone())
    }

    /// Returns whether the controller may be written.
    pub(super) fn is_admitted(&self, name: &str) -> bool {
        self.held(name).is_some_and(|held| held.may_be_written)
    }

    /// Returns the contents of a controller, if it is attached.
    pub(super) fn holds(&self, name: &str) -> Option<io::Result<Option<Reason>>> {
        self.held(name).map(|held| held.attached.holds())
    }

    /// Attaches the controller, if it is not yet.
    pub(super) fn hold(&mut self, target: &NamedDevice) -> io::Result<()> {
        let TargetKind::Controller(name) = &target.kind else { return Ok(()) };
        if self.held(&target.given).is_none() {
            let attached = ClaimedController::to(name)?;
            let target = target.clone();
            self.0.push(Held { target, attached, may_be_written: false });
        }
        Ok(())
    }

    /// Admits a controller: nothing speaks against writing it.
    pub(super) fn admit(&mut self, name: &str) {
        let held = self.0.iter_mut().filter(|held| held.target.given == name);
        held.for_each(|held| held.may_be_written = true);
    }

    /// Returns the provider of the data path of a job, which has its controllers alone meanwhile.
    pub(super) fn provider(&self, job: &JobOptions) -> Result<Box<dyn PathProvider>, BenchError> {
        let held: Vec<&Held> = job.filename.iter().filter_map(|name| self.held(name)).collect();
        if let Some(held) = held.iter().find(|held| held.attached.is_in_use()) {
            let what = format!(
                "{}: a controller serves one job at a time; give this one stonewall",
                held.target.given
            );
            return Err(BenchError::usage(what).within(&job.name));
        }
        Ok(ClaimedController::provider(held.into_iter().map(|held| &held.attached)))
    }

    fn held(&self, name: &str) -> Option<&Held> {
        self.0.iter().find(|held| held.target.given == name)
    }
}
