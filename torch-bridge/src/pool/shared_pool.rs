//! Pools that the sessions of a process share.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use tidelog_engine::memory::process::PerProcess;
use tidelog_engine::pool::Pool;

use super::data_path::DataPath;
use super::{OpenedPool, PoolConfig, open_pool};
use crate::error::Failure;
use crate::memory::MemoryPlace;

/// A pool that the sessions of a process share: a block that follows another on the same devices
/// finds what the first left there, and the share is given back when the last session ends.
pub(crate) struct SharedPool {
    /// Key by which other sessions find it; `None`: no other does.
    key: Option<(String, u32)>,
    pool: Pool,
    /// Notice on a pool that was made for this session.
    pub(crate) made: Option<String>,
}

struct Shared {
    pool: Pool,
    place: MemoryPlace,
    sessions: u32,
}

impl Shared {
    /// One GPU, or none, is whose memory a pool moves.
    fn check_place(&self, wanted: MemoryPlace) -> Result<(), Failure> {
        if wanted == self.place {
            return Ok(());
        }
        let (wanted, serves) = (describe(wanted), describe(self.place));
        Err(Failure::pool(format!(
            "this process has the pool open already, for {serves}: close that session before one \
             for {wanted}"
        )))
    }

    /// A path that was asked for by name is the one that serves, or an error.
    fn check_path(&self, wanted: &str) -> Result<(), Failure> {
        let wanted = DataPath::named(wanted)?;
        let stats = self.pool.stats();
        let stats = stats.map_err(Failure::pool)?;
        let serves = stats.reactor.capabilities.kind;
        if wanted.is(serves) {
            return Ok(());
        }
        Err(Failure::pool(format!(
            "this process has the pool open already, by the data path {serves}: ask for \
                 that one or for auto, or close the other session first"
        )))
    }
}

/// Locked while a pool is opened or closed, which takes a while: a child of fork has a table of its
/// own.
static SHARED: PerProcess<Mutex<HashMap<(String, u32), Shared>>> = PerProcess::new(Mutex::default);

impl SharedPool {
    /// A pool that is open already, of which no other session knows.
    pub(crate) fn of(pool: Pool) -> Self {
        Self { key: None, pool, made: None }
    }

    /// Opens the pool, or takes part in one that a session of this process has open.
    pub(crate) fn take(config: &PoolConfig<'_>) -> Result<Self, Failure> {
        let key = (config.devices.to_owned(), config.share);
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = shared.get_mut(&key) {
            open.check_path(config.data_path)?;
            open.check_place(config.place)?;
            open.sessions += 1;
            return Ok(Self { key: Some(key), pool: open.pool.clone(), made: None });
        }
        let OpenedPool { pool, made } = open_pool(config)?;
        let open = Shared { pool: pool.clone(), place: config.place, sessions: 1 };
        shared.insert(key.clone(), open);
        Ok(Self { key: Some(key), pool, made })
    }

    pub(crate) fn release(&self) -> Result<(), Failure> {
        let mut shared = SHARED.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = &self.key {
            let Some(open) = shared.get_mut(key) else { return Ok(()) };
            open.sessions -= 1;
            if open.sessions > 0 {
                return Ok(());
            }
            shared.remove(key);
        }
        self.pool.close().map_err(Failure::pool)
    }
}

impl Deref for SharedPool {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

fn describe(place: MemoryPlace) -> String {
    match place {
        MemoryPlace::Host => "host memory".into(),
        MemoryPlace::Gpu(number) => format!("GPU {number}"),
    }
}
