//! Power cuts of a real machine's disk: what QEMU's `blklogwrites` driver recorded becomes the
//! images that a cut at any moment could have left.

mod images;
mod log;
mod unflushed;

pub use images::{Layout, Rebuilder};
pub use log::{Entry, WriteLog};
pub use unflushed::Unflushed;
