//! Background work of a pool.

use tidelog_engine::pool::{CommitError, ReclaimError};

use super::{Check, Runner};
use crate::sim::coverage::Under;

impl Runner<'_> {
    /// Reclaims; no caller may see a difference, whatever becomes of it.
    pub(super) fn reclaim(&mut self) -> Check {
        let reclaimed = self.pool()?.reclaim_once();
        self.count_struck(Under::Reclaim);
        match reclaimed {
            // What moves may take more of the index than it did, and there may be none left.
            Ok(_) | Err(ReclaimError::Commit(CommitError::IndexFull { .. })) => Ok(()),
            Err(_) if self.allowed_errors.any() || self.is_down() => Ok(()),
            Err(error) => Err(format!("nothing is wrong with the disks: {error}")),
        }
    }

    pub(super) fn scrub(&mut self) -> Check {
        let report = self.pool()?.scrub();
        self.count_struck(Under::Get);
        match report {
            Ok(report) if report.damaged.is_empty() => Ok(()),
            _ if self.allowed_errors.any() || self.is_down() => Ok(()),
            Ok(report) => Err(format!("undamaged disks have bad units: {report:?}")),
            Err(error) => Err(error.to_string()),
        }
    }
}
