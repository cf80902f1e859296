//! The directions in which operations move bytes.

/// Direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// Device to memory.
    Read = 0,
    /// Memory to device.
    Write = 1,
    /// Trim: nobody needs the bytes any more.
    Trim = 2,
}
