//! The locks and atomics of the ticket protocol: the standard library's, or loom's where `--cfg
//! loom` asks for them. Loom then runs the protocol's real code in every order that threads could
//! (`make loom`).

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};
