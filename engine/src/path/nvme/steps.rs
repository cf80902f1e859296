//! Cutting an operation into the commands that the controller takes.

use super::identify::BlockCommandFacts;

/// Write zeroes counts blocks in 16 bits, and 0 stands for one.
const ZEROES_BLOCKS_MAX: u64 = 1 << 16;

/// Limits of one command of each kind, in the namespace's blocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::path) struct Limits {
    /// Bytes in a block: a power of two (NVMe NVM command set, LBA data size).
    pub(in crate::path) block: u32,
    /// Blocks in a read or write: the controller's maximum data transfer size.
    pub(in crate::path) transfer: u64,
    /// Blocks that are zeroed at once.
    zeroes: u64,
    /// Blocks that are deallocated at once, in one range.
    range: u64,
}

impl Limits {
    /// Returns the limits of a namespace with blocks of `block` bytes, which moves at most
    /// `transfer` bytes at once.
    pub(in crate::path) fn new(block: u32, transfer: u32) -> Self {
        debug_assert!(block.is_power_of_two());
        let (zeroes, range) = (ZEROES_BLOCKS_MAX, u32::MAX.into());
        Self { block, transfer: u64::from(transfer / block).max(1), zeroes, range }
    }

    /// Applies the limits of a controller that zeroes and deallocates no more than this at once.
    pub(in crate::path) fn within_limits_of(self, facts: &BlockCommandFacts) -> Self {
        let zeroes = facts.zeroes.map_or(u64::MAX, |bytes| bytes / u64::from(self.block));
        let range = u64::from(facts.range_blocks.unwrap_or(u32::MAX));
        Self {
            zeroes: self.zeroes.min(zeroes).max(1),
            // A command has one range.
            range: self.range.min(range).min(facts.ranges_blocks.unwrap_or(u64::MAX)).max(1),
            ..self
        }
    }

    /// The most bytes that a read or write moves.
    pub(in crate::path) fn bytes(self) -> u64 {
        self.transfer * u64::from(self.block)
    }

    /// The commands that move the bytes from `offset` on.
    pub(in crate::path) fn transfer(self, offset: u64, length: u64) -> Steps {
        self.steps(offset, length, self.transfer)
    }

    /// Limits transfers to `bytes`.
    #[cfg(feature = "spdk")]
    pub(in crate::path) fn at_most(self, bytes: u64) -> Self {
        let transfer = self.transfer.min(bytes / u64::from(self.block)).max(1);
        Self { transfer, ..self }
    }

    /// The commands that zero them.
    pub(in crate::path) fn zeroes(self, offset: u64, length: u64) -> Steps {
        self.steps(offset, length, self.zeroes)
    }

    /// The commands that deallocate them, one range each.
    pub(in crate::path) fn deallocate(self, offset: u64, length: u64) -> Steps {
        self.steps(offset, length, self.range)
    }

    fn steps(self, offset: u64, length: u64, longest: u64) -> Steps {
        let blocks = |bytes: u64| bytes >> self.block.trailing_zeros();
        let first = blocks(offset);
        Steps { first, next: first, end: first + blocks(length), longest, once: false }
    }
}

/// The commands of an operation that were not sent yet.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::path) struct Steps {
    first: u64,
    next: u64,
    end: u64,
    longest: u64,
    /// A single command without an extent.
    once: bool,
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::path) struct CommandStep {
    /// The first block.
    pub(in crate::path) lba: u64,
    pub(in crate::path) blocks: u32,
    /// Offset of the data in the operation's buffer, in blocks.
    pub(in crate::path) skipped: u64,
}

impl Steps {
    /// A command without an extent: a flush.
    pub(in crate::path) const fn flush() -> Self {
        Self { first: 0, next: 0, end: 0, longest: 0, once: true }
    }

    /// The next command, if any is left.
    pub(in crate::path) fn peek(&self) -> Option<CommandStep> {
        let blocks = (self.end - self.next).min(self.longest);
        let step =
            CommandStep { lba: self.next, blocks: blocks as u32, skipped: self.next - self.first };
        (self.once || blocks > 0).then_some(step)
    }

    /// Returns the remainder after `step`.
    pub(in crate::path) fn after(self, step: CommandStep) -> Self {
        Self { next: step.lba + u64::from(step.blocks), once: false, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut steps: Steps) -> Vec<(u64, u32, u64)> {
        let mut found = Vec::new();
        while let Some(step) = steps.peek() {
            found.push((step.lba, step.blocks, step.skipped));
            steps = steps.after(step);
        }
        found
    }

    #[test]
    fn a_transfer_is_cut_at_what_the_controller_takes_at_once() {
        let limits = Limits::new(512, 128 << 10);
        let cut = all(limits.transfer(4096, 300 << 10));
        assert_eq!(cut, [(8, 256, 0), (264, 256, 256), (520, 88, 512)]);
        assert_eq!(all(limits.transfer(0, 128 << 10)), [(0, 256, 0)]);
        assert_eq!(all(limits.transfer(8192, 0)), []);
    }

    #[test]
    fn blocks_of_4096_bytes_count_as_such() {
        let limits = Limits::new(4096, 8192);
        assert_eq!(all(limits.transfer(4096, 5 * 4096)), [(1, 2, 0), (3, 2, 2), (5, 1, 4)]);
    }

    #[test]
    fn a_controller_that_takes_less_than_a_block_is_given_blocks() {
        assert_eq!(all(Limits::new(4096, 512).transfer(0, 8192)), [(0, 1, 0), (1, 1, 1)]);
    }

    #[test]
    fn zeroes_and_deallocation_have_limits_of_their_own() {
        let limits = Limits::new(512, 4096);
        let blocks = (1_u64 << 16) + 8;
        assert_eq!(all(limits.zeroes(0, blocks * 512)), [(0, 65536, 0), (65536, 8, 65536)]);
        assert_eq!(all(limits.deallocate(0, blocks * 512)), [(0, blocks as u32, 0)]);
    }

    #[test]
    fn a_controllers_own_limits_of_zeroes_and_deallocation_are_obeyed() {
        let facts = BlockCommandFacts {
            zeroes: Some(16 << 10),
            range_blocks: Some(100),
            ranges_blocks: Some(64),
        };
        let limits = Limits::new(4096, 8192).within_limits_of(&facts);
        assert_eq!(all(limits.zeroes(0, 5 * 4096)), [(0, 4, 0), (4, 1, 4)]);
        assert_eq!(all(limits.deallocate(0, 65 * 4096)), [(0, 64, 0), (64, 1, 64)]);
        assert_eq!(all(limits.transfer(0, 8192)), [(0, 2, 0)], "data has its own limit");
        let tiny = BlockCommandFacts { zeroes: Some(512), range_blocks: Some(3), ..facts };
        let limits = Limits::new(4096, 8192).within_limits_of(&tiny);
        assert_eq!(all(limits.zeroes(0, 8192)), [(0, 1, 0), (1, 1, 1)], "never less than a block");
        assert_eq!(all(limits.deallocate(0, 4 * 4096)), [(0, 3, 0), (3, 1, 3)]);
    }

    #[test]
    fn a_flush_is_one_command() {
        assert_eq!(all(Steps::flush()), [(0, 0, 0)]);
    }
}
