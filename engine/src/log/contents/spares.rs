//! Versions that nobody knows any more, for those to come: what is put again and again costs no
//! allocation.

use std::sync::Arc;

use crate::layout::{Checksums, Runs, TensorEntry};
use crate::log::space::Full;
use crate::log::version::{PutRequest, Version};

/// Limit of kept versions. They keep the memory of their lists, too.
const SPARES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct SpareVersions(Vec<Arc<Version>>);

impl SpareVersions {
    /// A version of what is requested, which nobody else holds, where `fill` says, and without
    /// checksums yet.
    pub(super) fn version(
        &mut self,
        serial: u64,
        request: &PutRequest,
        fill: impl FnOnce(&mut Runs) -> Result<(), Full>,
    ) -> Result<Arc<Version>, Full> {
        let mut version = self.0.pop().unwrap_or_else(|| Arc::new(empty(request)));
        let place = Arc::get_mut(&mut version).expect("only what nobody else holds is kept");
        if let Err(full) = fill(&mut place.entry.runs) {
            self.keep(version);
            return Err(full);
        }
        let PutRequest { id, length, lane, .. } = *request;
        (place.serial, place.durability) = (serial, lane.durability);
        (place.entry.id, place.entry.length, place.entry.class) = (id, length, lane.class);
        place.entry.name.clone_from(&request.name);
        Ok(version)
    }

    /// Keeps a version for later, unless somebody still holds it.
    pub(super) fn keep(&mut self, mut version: Arc<Version>) {
        if self.0.len() < SPARES_MAX
            && let Some(Version { entry, .. }) = Arc::get_mut(&mut version)
        {
            entry.name = None;
            entry.runs.clear();
            entry.checksums.clear();
            self.0.push(version);
        }
    }
}

fn empty(request: &PutRequest) -> Version {
    let PutRequest { id, length, lane, .. } = *request;
    let (runs, checksums) = (Runs::new(), Checksums::new());
    let entry = TensorEntry { id, name: None, length, class: lane.class, runs, checksums };
    Version::new(entry, lane.durability, 0)
}
