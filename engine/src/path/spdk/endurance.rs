//! Wear of a controller that SPDK drives (SMART), and its reclaim units (FDP).

use std::io;

use super::controller::Controller;
use crate::path::nvme::wear;
use crate::path::{Endurance, FdpStatistics, ReclaimUnitHandle};

impl Controller {
    /// Asks the controller what was written to it and how worn it is.
    ///
    /// # Errors
    /// It does not say, or not now.
    pub fn endurance(&self) -> io::Result<Endurance> {
        let smart = self.log_page(wear::SMART, 0)?;
        let fdp =
            (!self.facts().placement.is_empty()).then(|| self.fdp_statistics()).transpose()?;
        Ok(wear::endurance(&smart, fdp))
    }

    fn fdp_statistics(&self) -> io::Result<FdpStatistics> {
        let page = self.log_page(wear::FDP_STATISTICS, self.facts().endurance_group)?;
        Ok(wear::fdp_statistics(&page, self.placement_handles()?))
    }

    /// Returns the namespace's placement handles.
    pub(super) fn placement_handles(&self) -> io::Result<Vec<ReclaimUnitHandle>> {
        Ok(wear::handles(&self.reclaim_unit_handles()?, self.facts().limits.block))
    }
}
