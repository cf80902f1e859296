//! Writing the superblocks of a pool again.

use crate::layout::{SUPERBLOCK_OFFSET, Superblock};
use crate::log::LogMedia;

/// Writes both copies of every device's superblock with a change, as the next generation of all.
/// One copy after the other, so that a whole one is there all the time.
pub(super) fn rewrite<M: LogMedia>(
    media: &M,
    superblocks: &[Superblock],
    change: impl Fn(&mut Superblock),
) -> Result<(), M::Error> {
    let generation = superblocks.iter().map(|it| it.generation).max().unwrap_or_default() + 1;
    for (device, superblock) in (0..).zip(superblocks) {
        let mut superblock = Superblock { generation, ..*superblock };
        change(&mut superblock);
        for offset in [superblock.geometry.second_superblock_offset(), SUPERBLOCK_OFFSET] {
            media.write(device, offset, superblock.encode())?;
            media.flush(device)?;
        }
    }
    Ok(())
}
