//! What an operation was, to those who count it.

use crate::direction::DataDirection;

/// What an operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operated {
    /// Which way its bytes went.
    pub direction: DataDirection,
    /// Where it began, if a log wants to know.
    pub offset: u64,
    /// How many bytes it moved.
    pub bytes: u64,
    /// Its priority as the kernel writes it, if a log wants to know.
    pub priority: u16,
}
