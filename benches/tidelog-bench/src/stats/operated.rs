//! Operation as counters see it.

use crate::direction::DataDirection;

/// Operation as counters see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operated {
    /// Direction of its bytes.
    pub direction: DataDirection,
    /// Offset of the operation, if a log wants to know.
    pub offset: u64,
    /// Number of bytes that it moved.
    pub bytes: u64,
    /// Priority as the kernel writes it, if a log wants to know.
    pub priority: u16,
}
