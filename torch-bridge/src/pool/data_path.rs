//! Data paths by the names that callers give them: the engine's, and the one by way of a GPU.

use std::sync::Arc;

use tidelog_engine::path::{Backend, PathChoice, PathKind};
use tidelog_gds::{CallerRegion, Compat, GdsBackend, GdsOptions};

use crate::error::Failure;
use crate::memory::MemoryPlace;

/// A data path that somebody asked for.
#[derive(Clone, Copy)]
pub(super) enum DataPath {
    /// One of the engine's.
    Engine(PathChoice),
    /// cuFile's: `gds`, and `gds-compat`, by which it may go through host memory.
    Gds(Compat),
}

impl DataPath {
    pub(super) fn named(name: &str) -> Result<Self, Failure> {
        match name {
            "gds" => Ok(Self::Gds(Compat::Forbidden)),
            "gds-compat" => Ok(Self::Gds(Compat::Named)),
            name => name.parse().map(Self::Engine).map_err(|error| {
                Failure::pool(format!("{error}; for a GPU also gds and gds-compat"))
            }),
        }
    }

    /// Returns whether a pool that is open by a path of this kind is open by the one that was asked
    /// for.
    pub(super) fn is(self, kind: PathKind) -> bool {
        match self {
            Self::Engine(PathChoice::Auto) => true,
            Self::Engine(PathChoice::Uring) => kind == PathKind::Uring,
            Self::Engine(PathChoice::UringCmd) => kind == PathKind::UringCmd,
            Self::Engine(PathChoice::Posix) => kind == PathKind::Posix,
            Self::Engine(PathChoice::Spdk) => kind == PathKind::Spdk,
            Self::Gds(_) => kind == PathKind::Gds,
        }
    }

    /// Opens the data path that the engine chooses, or the one that is not the engine's. What lies
    /// in the arena is read and written in place.
    pub(super) fn open(
        self,
        place: MemoryPlace,
        arena: Option<CallerRegion>,
    ) -> Result<(PathChoice, Option<Arc<dyn Backend>>), Failure> {
        let compat = match self {
            Self::Engine(_) if arena.is_some() => {
                let why =
                    "only the data paths gds and gds-compat read and write a GPU's memory in place";
                return Err(Failure::pool(format!("arena: {why}; leave it 0")));
            }
            Self::Engine(choice) => return Ok((choice, None)),
            Self::Gds(compat) => compat,
        };
        let MemoryPlace::Gpu(number) = place else {
            let why = "the data path gds moves a GPU's memory: name the GPU, or take another path";
            return Err(Failure::pool(why));
        };
        let registered = arena.into_iter().collect();
        let options = GdsOptions { gpu: number.into(), library: None, compat, registered };
        Ok((PathChoice::Auto, Some(Arc::new(GdsBackend(options)))))
    }
}
