//! Numbers that stand for objects across the C ABI.
//!
//! A handle is never reused, so one that was closed, or made up, is found out. The table remembers
//! which process opened a handle: after a fork the child's copies are dead and say so.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::abi::{Failure, Status};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// The open objects of one kind.
pub(crate) struct Table<T> {
    kind: &'static str,
    /// The process that put something in last; 0: none did.
    filled_by: AtomicU32,
    open: LazyLock<RwLock<HashMap<u64, Entry<T>>>>,
}

struct Entry<T> {
    process: u32,
    object: Arc<T>,
}

impl<T> Table<T> {
    /// An empty table of objects that errors call `kind`.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, filled_by: AtomicU32::new(0), open: LazyLock::new(RwLock::default) }
    }

    /// Takes an object in and answers its handle.
    pub(crate) fn insert(&self, object: T) -> u64 {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        self.filled_by.store(std::process::id(), Ordering::Relaxed);
        let entry = Entry { process: std::process::id(), object: Arc::new(object) };
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, entry);
        handle
    }

    /// The object behind a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        // A fork may have inherited the lock in a locked state, so what can be told without it is.
        let filled_by = self.filled_by.load(Ordering::Relaxed);
        if filled_by != 0
            && filled_by != std::process::id()
            && handle < NEXT.load(Ordering::Relaxed)
        {
            return Err(self.forked(filled_by));
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let entry = open.get(&handle).ok_or_else(|| self.stale(handle))?;
        if entry.process == std::process::id() {
            Ok(Arc::clone(&entry.object))
        } else {
            Err(self.forked(entry.process))
        }
    }

    /// Takes an object out; its handle is stale from now on.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let object = self.get(handle)?;
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
        Ok(object)
    }

    fn forked(&self, opener: u32) -> Failure {
        Failure::new(
            Status::Forked,
            format!(
                "this {} was opened by process {opener} and is dead in its forked child; open \
                 another pool or share here",
                self.kind
            ),
        )
    }

    fn stale(&self, handle: u64) -> Failure {
        Failure::new(
            Status::StaleHandle,
            format!("no {} has the handle {handle}: it was closed, or never opened", self.kind),
        )
    }
}
