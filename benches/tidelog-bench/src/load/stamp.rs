//! Stamps: what a block says of itself, so that a wrong, old or torn one is found out.

use std::fmt;

/// Magic with which every stamp begins.
const MAGIC: [u8; 8] = *b"TIDEBNCH";
/// Magic; CRC32C of what follows it, to the block's end; length; place; run; writer; pass.
pub const STAMP_BYTES: usize = 56;
/// Offset of the checksummed part.
const COVERED: usize = 16;

/// Origin of a block: its writer, and the time of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Tells one run from every other.
    pub run: u64,
    /// Tells the jobs of a run, and the clones of a job, from each other.
    pub writer: u64,
    /// Number of times that the writer had been through all of its blocks.
    pub pass: u64,
}

/// Stamps a block that goes to `place`.
pub fn stamp(block: &mut [u8], place: u64, origin: Origin) {
    block[..8].copy_from_slice(&MAGIC);
    let length = block.len() as u64;
    let Origin { run, writer, pass } = origin;
    let values = [length, place, run, writer, pass];
    for (field, value) in block[COVERED..STAMP_BYTES].chunks_exact_mut(8).zip(values) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    let checksum = u64::from(crc32c::crc32c(&block[COVERED..]));
    block[8..COVERED].copy_from_slice(&checksum.to_le_bytes());
}

/// Checks that a block that was read from `place` is one that was written there; by this run, and
/// by its writer in no earlier a pass, where an origin is given. Jobs that share blocks cannot tell
/// which of them wrote last.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check(block: &[u8], place: u64, oldest: Option<Origin>) -> Result<(), BlockDefect> {
    if block[..8] != MAGIC {
        return Err(BlockDefect::NoStamp);
    }
    let field = |index: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&block[8 * index..8 * (index + 1)]);
        u64::from_le_bytes(bytes)
    };
    let found = u64::from(crc32c::crc32c(&block[COVERED..]));
    let differs = |what, expected, found| {
        if expected == found { Ok(()) } else { Err(BlockDefect::Differs { what, expected, found }) }
    };
    differs("crc32c", field(1), found)?;
    differs("length", block.len() as u64, field(2))?;
    differs("place", place, field(3))?;
    let Some(Origin { run, writer, pass }) = oldest else { return Ok(()) };
    differs("run", run, field(4))?;
    if writer == field(5) && field(6) < pass {
        return differs("pass", pass, field(6));
    }
    Ok(())
}

/// Defect of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockDefect {
    /// The block was never stamped.
    NoStamp,
    /// The stamp says one thing, the block is another.
    Differs {
        /// Part of the stamp.
        what: &'static str,
        /// Expected value.
        expected: u64,
        /// Value that was found.
        found: u64,
    },
}

impl fmt::Display for BlockDefect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStamp => out.write_str(
                "expected a stamp, found other bytes (was it written with verify=crc32c?)",
            ),
            Self::Differs { what, expected, found } => {
                write!(out, "{what} expected {expected:#x}, found {found:#x}")
            }
        }
    }
}

/// A block that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// The file or device, or the tensor.
    pub file: String,
    /// The byte at which it begins.
    pub offset: u64,
    /// The bytes.
    pub length: u64,
    /// Defect of the block.
    pub fault: BlockDefect,
}

impl fmt::Display for BadBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, length, fault } = self;
        write!(out, "verify: bad block at byte {offset} of {file} ({length} bytes): {fault}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin { run: 5, writer: 1, pass: 3 };

    fn stamped() -> Vec<u8> {
        let mut block: Vec<u8> = (0..4096_u32).map(|index| index as u8).collect();
        stamp(&mut block, 8192, ORIGIN);
        block
    }

    #[test]
    fn what_was_stamped_is_right() {
        assert_eq!(check(&stamped(), 8192, Some(ORIGIN)), Ok(()));
        assert_eq!(check(&stamped(), 8192, None), Ok(()));
    }

    #[test]
    fn every_bit_counts() {
        for byte in (0..4096).step_by(61).chain(0..STAMP_BYTES) {
            let mut block = stamped();
            block[byte] ^= 0x10;
            assert!(check(&block, 8192, Some(ORIGIN)).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn another_place_an_old_run_and_a_part_are_found_out() {
        let what = |answer: Result<(), BlockDefect>| match answer {
            Err(BlockDefect::Differs { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(check(&stamped(), 4096, None)), "place");
        assert_eq!(what(check(&stamped(), 8192, Some(Origin { run: 6, ..ORIGIN }))), "run");
        assert_eq!(what(check(&stamped(), 8192, Some(Origin { pass: 4, ..ORIGIN }))), "pass");
        assert_eq!(
            check(&stamped(), 8192, Some(Origin { pass: 2, ..ORIGIN })),
            Ok(()),
            "a later one is no loss"
        );
        let another = Origin { writer: 2, pass: 9, ..ORIGIN };
        assert_eq!(
            check(&stamped(), 8192, Some(another)),
            Ok(()),
            "who shares a block may find another's"
        );
        assert_eq!(what(check(&stamped()[..2048], 8192, None)), "crc32c");
        assert_eq!(check(&[0; 4096], 0, None), Err(BlockDefect::NoStamp));
    }
}
