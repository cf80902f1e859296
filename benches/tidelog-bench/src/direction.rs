//! The directions in which operations move bytes.

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// Device to memory.
    Read = 0,
    /// Memory to device.
    Write = 1,
    /// Nobody needs the bytes any more.
    Trim = 2,
}
