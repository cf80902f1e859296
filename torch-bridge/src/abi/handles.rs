//! Numbers that stand for objects across the C ABI.
//!
//! A handle is never reused, so one that was closed, or made up, is found out. Each process has
//! tables of its own: in a child of fork the parent's handles are dead and say so, and no lock that
//! a thread of the parent held is waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use tidelog_engine::memory::process::PerProcess;

use crate::error::{Failure, FailureKind};

/// The next handle, of whatever kind.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// The first that this process can have given out: those before it are of processes of which it is
/// a fork.
static FIRST: PerProcess<u64> = PerProcess::new(|| NEXT.load(Ordering::Relaxed));

/// The open objects of one kind.
pub(super) struct HandleTable<T: 'static> {
    kind: &'static str,
    open: PerProcess<RwLock<FxHashMap<u64, Arc<T>>>>,
}

impl<T: Send + Sync> HandleTable<T> {
    /// An empty table of objects that errors call `kind`.
    pub(super) const fn new(kind: &'static str) -> Self {
        Self { kind, open: PerProcess::new(RwLock::default) }
    }

    /// Adds an object and returns its handle.
    pub(super) fn insert(&'static self, object: T) -> u64 {
        FIRST.get();
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.get().write().unwrap_or_else(PoisonError::into_inner);
        open.insert(handle, Arc::new(object));
        handle
    }

    /// The object behind a handle.
    pub(super) fn get(&'static self, handle: u64) -> Result<Arc<T>, Failure> {
        let open = self.open.get().read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle).cloned().ok_or_else(|| self.missing(handle))
    }

    /// The objects behind handles, as they were at one moment.
    pub(super) fn get_all(&'static self, handles: &[u64]) -> Result<Vec<Arc<T>>, Failure> {
        let open = self.open.get().read().unwrap_or_else(PoisonError::into_inner);
        let get = |&handle| open.get(&handle).cloned().ok_or_else(|| self.missing(handle));
        handles.iter().map(get).collect()
    }

    /// Removes an object; its handle is stale from now on.
    pub(super) fn remove(&'static self, handle: u64) -> Result<Arc<T>, Failure> {
        let mut open = self.open.get().write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&handle).ok_or_else(|| self.missing(handle))
    }

    fn missing(&self, handle: u64) -> Failure {
        let first = FIRST.get();
        match first.inherited_from() {
            Some(opener) if (1..**first).contains(&handle) => self.forked(opener),
            _ => self.stale(handle),
        }
    }

    fn forked(&self, opener: u32) -> Failure {
        Failure::new(
            FailureKind::Forked,
            format!(
                "this {} was opened by process {opener} and is dead in its forked child; open \
                 another pool or share here",
                self.kind
            ),
        )
    }

    fn stale(&self, handle: u64) -> Failure {
        Failure::new(
            FailureKind::StaleHandle,
            format!("no {} has the handle {handle}: it was closed, or never opened", self.kind),
        )
    }
}
