//! Priority in the kernel's I/O scheduler, or on the device.

/// Urgency of an operation for the kernel, in the terms of `ioprio_set(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoPriority {
    class: PriorityClass,
    level: u8,
}

/// The kernel's classes of priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorityClass {
    /// Real time: before all others. The kernel lets only privileged threads name it.
    RealTime = 1,
    /// Best effort, as operations have that name no class.
    BestEffort = 2,
    /// Idle: when nothing else is to be done.
    Idle = 3,
}

impl IoPriority {
    /// The highest level is 0, and this is the lowest.
    pub const LEVEL_MAX: u8 = 7;

    /// A priority of this class and level, which is at most [`LEVEL_MAX`](Self::LEVEL_MAX).
    pub fn new(class: PriorityClass, level: u8) -> Option<Self> {
        (level <= Self::LEVEL_MAX).then_some(Self { class, level })
    }

    /// Returns the priority as the kernel encodes it: the class in the upper three bits, the level
    /// in the lower ones.
    pub fn number(self) -> u16 {
        const CLASS_SHIFT: u32 = 13;
        (self.class as u16) << CLASS_SHIFT | u16::from(self.level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_written_as_the_kernel_writes_it() {
        let number = |class, level| IoPriority::new(class, level).map(IoPriority::number);
        assert_eq!(number(PriorityClass::RealTime, 0), Some(0x2000));
        assert_eq!(number(PriorityClass::Idle, 7), Some(0x6007));
        assert_eq!(number(PriorityClass::BestEffort, 8), None);
    }
}
