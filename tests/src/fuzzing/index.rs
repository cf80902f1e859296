//! Change records and index checkpoints.

use arbitrary::{Result, Unstructured};
use tidelog_engine::layout::{
    BLOCK_BYTES, BlockFormat, Change, ChangeRecord, Checkpoint, Copies, HeldVersion, IndexParts,
    LifetimeClass, LogImage, RECORD_HEADER_BYTES, Run, Runs, Seal, TensorEntry, TensorId,
    blocks_for, encode_change,
};
use tidelog_engine::log::StripeMap;

use super::frame::{self, CheckpointHead, RecordHead};

/// The first byte says what the others are: a record as it stands there, the payload of a sealed
/// one, or a description of changes that are encoded into one.
pub(super) fn run_record(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let head = RecordHead { pool: 5, share: 1, epoch: 3, sequence: 2 };
    match kind % 3 {
        0 => check_record(bytes),
        1 => check_record(&frame::record(&head, bytes)),
        _ => {
            let changes = changes(&mut Unstructured::new(bytes), None).unwrap_or_default();
            let record =
                ChangeRecord { pool: 5, share: 1, epoch: 3, sequence: 2, changes: changes.clone() };
            let encoded = record.encode();
            assert_eq!(encoded, frame::record(&head, &payload(&changes)), "as the format says");
            check_record(&encoded);
        }
    }
}

fn check_record(bytes: &[u8]) {
    let decoded = ChangeRecord::decode(bytes);
    let mut log = LogImage::new(bytes.to_vec());
    assert_eq!(log.record(0), decoded, "either way");
    let Ok(record) = decoded else { return };
    let head = log.claim(0).expect("what is decoded claims to be there");
    assert_eq!(head.epoch, record.epoch);
    assert!(head.bytes() <= bytes.len() as u64, "it ends where the bytes do");
    assert_eq!(head.bytes(), ChangeRecord::bytes_for(&record.changes));
    let again = record.encode();
    assert_eq!(again.len() as u64, head.bytes());
    assert_eq!(ChangeRecord::decode(&in_blocks_and_back(again)), Ok(record));
}

/// A structure as it comes back from blocks with checksums, which are as the format says.
fn in_blocks_and_back(structure: Vec<u8>) -> Vec<u8> {
    let (format, seal) = (BlockFormat::Checked, BlockFormat::seal(&structure));
    assert_eq!(BlockFormat::Plain.lay_out(structure.clone()), frame::blocks(&structure, false));
    let expected = frame::blocks(&structure, true);
    let blocks = format.lay_out(structure);
    assert_eq!(blocks, expected);
    let mut each = (0..).zip(blocks.chunks(BLOCK_BYTES as usize));
    assert!(each.all(|(number, block)| format.is_whole(block, number, seal)));
    format.take_out(blocks)
}

/// Runs a checkpoint, as [`run_record`] runs a record; the second byte is the number of tensors
/// that it claims.
pub(super) fn run_checkpoint(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match (kind % 3, bytes.split_first()) {
        (0, _) => check_checkpoint(bytes),
        (1, Some((tensors, payload))) => {
            // The low bits of the same byte also say in how many segments it claims to go on.
            let (tensors, segments) =
                (u64::from(*tensors), (9..9 + u32::from(tensors % 8)).collect());
            let head = CheckpointHead { pool: 5, share: 1, epoch: 3, tensors, segments };
            check_checkpoint(&frame::checkpoint(&head, payload));
        }
        _ => {
            let changes = changes(&mut Unstructured::new(bytes), None).unwrap_or_default();
            let mut index = IndexParts::default();
            for change in &changes {
                match change {
                    Change::Put(entry) => index.tensors.push(entry),
                    Change::Hold(held) => index.held.push((held.number, &held.entry)),
                    Change::Seal(seal) => index.seals.push(seal),
                    Change::Delete(_) | Change::Drop(_) => (),
                }
            }
            check_checkpoint(&Checkpoint::encode(5, 1, 3, (&[], 0), &index));
        }
    }
}

fn check_checkpoint(bytes: &[u8]) {
    let claim = Checkpoint::claim(bytes);
    let Ok(found) = Checkpoint::decode(bytes) else { return };
    let Checkpoint { pool, share, epoch, segments, set, .. } = &found;
    let index = IndexParts::from(&found);
    let again = Checkpoint::encode(*pool, *share, *epoch, (segments, *set), &index);
    let next = Checkpoint::encode(*pool, *share, epoch.wrapping_add(1), (segments, *set), &index);
    assert!(Checkpoint::is_copy(bytes, bytes) && !Checkpoint::is_copy(&next, bytes));
    let claim = claim.expect("what is decoded claims to be there");
    assert_eq!((claim.epoch, claim.bytes), (*epoch, again.len() as u64));
    assert_eq!(Checkpoint::claimed_segments(bytes).as_ref(), Some(segments));
    assert_eq!(Checkpoint::decode(&in_blocks_and_back(again)), Ok(found));
}

/// The bytes that stand for changes.
pub(super) fn payload(changes: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in changes {
        encode_change(change, &mut bytes);
    }
    bytes
}

/// A few changes, mostly such as could be. With `stripes`, most have as many checksums as pieces.
pub(super) fn changes(
    words: &mut Unstructured<'_>,
    stripes: Option<&StripeMap>,
) -> Result<Vec<Change>> {
    let count = words.int_in_range(0..=6)?;
    (0..count).map(|_| change(words, stripes)).collect()
}

fn change(words: &mut Unstructured<'_>, stripes: Option<&StripeMap>) -> Result<Change> {
    let name = *words.choose(&["", "a", "bb", "layer.0.weight", "\u{e9}"])?;
    let id = if name.is_empty() {
        TensorId(words.int_in_range(0..=3_u128)?)
    } else {
        TensorId::from_name(name)
    };
    match words.int_in_range(0..=15)? {
        0..=2 => return Ok(Change::Delete(id)),
        3 => return Ok(Change::Drop(seal_name(words)?)),
        4 | 5 => {
            let versions = (0..words.int_in_range(0..=3)?).map(|_| words.int_in_range(1..=4_u64));
            let versions = versions.collect::<Result<_>>()?;
            let (name, sealed_at) = (seal_name(words)?, words.arbitrary()?);
            return Ok(Change::Seal(Seal { name, sealed_at, order: 0, versions }));
        }
        _ => (),
    }
    let mut copies = *words.choose(&Copies::ALL)?;
    let runs = (0..words.int_in_range(0..=3)?)
        .map(|_| {
            let wild = words.ratio(1, 16)?;
            let mut word = |usual: u32| {
                if wild { words.arbitrary() } else { words.int_in_range(0..=usual) }
            };
            let run = Run::single(word(12)?, word(8)?, word(4)?.max(1));
            let fits = run.block.max(run.blocks) < u32::MAX / 2;
            // Runs of one tensor that differ are nobody's.
            if words.ratio(1, 16)? || !fits {
                copies = if fits { *words.choose(&Copies::ALL)? } else { Copies::One };
            }
            let (block, blocks) = (run.block * copies.count(), run.blocks * copies.count());
            Ok(Run { block, blocks, copies, ..run })
        })
        .collect::<Result<Runs>>()?;
    let blocks: u64 = runs.iter().map(Run::tensor_blocks).sum();
    let length = (blocks * BLOCK_BYTES).saturating_sub(words.int_in_range(0..=4095)?);
    let pieces = stripes.map_or(3, |stripes| stripes.count(&runs).min(1000));
    let checksums = if words.ratio(1, 8)? { pieces + 1 } else { pieces };
    let entry = TensorEntry {
        id,
        name: (!name.is_empty()).then(|| name.into()),
        length: if blocks_for(length) == blocks { length } else { blocks * BLOCK_BYTES },
        class: *words.choose(&LifetimeClass::ALL)?,
        runs,
        checksums: vec![crc32c::crc32c(&[0; BLOCK_BYTES as usize]); checksums].into(),
    };
    if words.ratio(1, 4)? {
        return Ok(Change::Hold(HeldVersion { number: words.int_in_range(1..=4)?, entry }));
    }
    Ok(Change::Put(entry))
}

fn seal_name(words: &mut Unstructured<'_>) -> Result<Box<str>> {
    Ok((*words.choose(&["a", "step 10", "\u{e9}"])?).into())
}

const _: () = assert!(RECORD_HEADER_BYTES == 64, "frames are written with headers of 64 bytes");
