//! A change to the index as bytes: a tensor that appears, or one that disappears. Checkpoints and
//! change-log records are both sequences of these.

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;
use thiserror::Error;

use super::endian::{U16, U32, U64, U128};
use super::seal::{
    self, HeldVersion, KIND_DROP, KIND_HOLD, KIND_SEAL, Seal, decode_drop, decode_seal,
};
use super::tensor::{Copies, LifetimeClass, NAME_BYTES_MAX, Run, TensorId, TensorKey};
use super::{BLOCK_BYTES, blocks_for};

const KIND_PUT: u8 = 1;
const KIND_DELETE: u8 = 2;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct EntryOnMedia {
    pub(super) id: U128,
    pub(super) length: U64,
    /// The whole entry: this structure, runs, checksums, name, padding to eight bytes.
    pub(super) entry_bytes: U32,
    pub(super) runs: U32,
    pub(super) checksums: U32,
    pub(super) name_bytes: U16,
    pub(super) kind: u8,
    pub(super) class: u8,
    /// Number of a held version; when a seal was made; zero in puts and deletions.
    pub(super) number: U64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RunOnMedia {
    pub(super) segment: U32,
    pub(super) block: U32,
    pub(super) blocks: U32,
    /// Number of copies besides the first.
    pub(super) mirrors: u8,
    /// Number of the set of devices.
    pub(super) set: u8,
    pub(super) reserved: [u8; 2],
}

const _: () = assert!(size_of::<EntryOnMedia>() == 48);
const _: () = assert!(size_of::<RunOnMedia>() == 16);

/// Runs of a tensor, in order; most are in one piece, and then it takes no memory of its own.
pub type Runs = SmallVec<[Run; 1]>;

/// CRC32C of the valid bytes of each piece of a tensor; a few of them take no memory of their own.
pub type Checksums = SmallVec<[u32; 4]>;

/// A tensor as the index holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Id of the tensor.
    pub id: TensorId,
    /// The name behind the id, where the caller gave one.
    pub name: Option<Box<str>>,
    /// The length in bytes.
    pub length: u64,
    /// Lifetime class of the tensor.
    pub class: LifetimeClass,
    /// Runs of the tensor's bytes, in order.
    pub runs: Runs,
    /// CRC32C of the valid bytes of each piece: of each stripe unit, or part of one, that the runs
    /// touch.
    pub checksums: Checksums,
}

impl TensorEntry {
    /// Returns whether the tensor entry lies where another does. What has no bytes lies nowhere.
    pub fn is_at(&self, other: &Self) -> bool {
        !self.runs.is_empty() && self.runs == other.runs
    }

    /// Returns the tensor's name and id, for errors.
    pub fn key(&self) -> TensorKey {
        TensorKey { id: self.id, name: self.name.clone() }
    }
}

/// One step of the index from one state to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The tensor appears, or takes the place of an older version.
    Put(TensorEntry),
    /// The tensor disappears.
    Delete(TensorId),
    /// A version that seals hold, or where it lies from now on.
    Hold(HeldVersion),
    /// The seal appears, or takes the place of an older one of its name.
    Seal(Seal),
    /// The seal of this name disappears, and what it alone holds.
    Drop(Box<str>),
}

/// The reason why bytes are not a sequence of changes.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the index entry at byte {offset} is not valid: {what}")]
pub struct EntryError {
    /// Offset of the entry within the sequence.
    pub offset: usize,
    /// A description of the error.
    pub what: &'static str,
}

/// Returns the number of bytes that `encode_change` appends.
pub fn encoded_bytes(change: &Change) -> usize {
    match change {
        Change::Delete(_) => size_of::<EntryOnMedia>(),
        Change::Put(entry) | Change::Hold(HeldVersion { entry, .. }) => put_bytes(entry),
        Change::Seal(seal) => seal.encoded_bytes(),
        Change::Drop(name) => seal::drop_bytes(name),
    }
}

pub(super) fn put_bytes(entry: &TensorEntry) -> usize {
    entry.encoded_bytes(entry.runs.len(), entry.checksums.len())
}

impl TensorEntry {
    /// Returns the bytes that it uses in the index if it has `runs` runs and `checksums` checksums.
    pub fn encoded_bytes(&self, runs: usize, checksums: usize) -> usize {
        let name = self.name.as_ref().map_or(0, |name| name.len());
        let lists = runs * size_of::<RunOnMedia>() + checksums * size_of::<U32>();
        (size_of::<EntryOnMedia>() + lists + name).next_multiple_of(8)
    }
}

/// Appends a change to `out`.
pub fn encode_change(change: &Change, out: &mut Vec<u8>) {
    match change {
        Change::Put(entry) => encode_put(entry, out),
        Change::Delete(id) => {
            let mut head = EntryOnMedia::zeroed();
            head.id = id.0.into();
            head.entry_bytes = (size_of::<EntryOnMedia>() as u32).into();
            head.kind = KIND_DELETE;
            out.extend_from_slice(bytemuck::bytes_of(&head));
        }
        Change::Hold(HeldVersion { number, entry }) => encode_hold(*number, entry, out),
        Change::Seal(seal) => seal::encode_seal(seal, out),
        Change::Drop(name) => seal::encode_drop(name, out),
    }
}

/// Appends the change that brings `entry` to `out`.
pub(super) fn encode_put(entry: &TensorEntry, out: &mut Vec<u8>) {
    encode_tensor(KIND_PUT, 0, entry, out);
}

/// Appends the change that brings a held version to `out`.
pub(super) fn encode_hold(number: u64, entry: &TensorEntry, out: &mut Vec<u8>) {
    encode_tensor(KIND_HOLD, number, entry, out);
}

fn encode_tensor(kind: u8, number: u64, entry: &TensorEntry, out: &mut Vec<u8>) {
    let end = out.len() + put_bytes(entry);
    let name = entry.name.as_deref().unwrap_or_default();
    let mut head = EntryOnMedia::zeroed();
    head.id = entry.id.0.into();
    head.length = entry.length.into();
    head.entry_bytes = (put_bytes(entry) as u32).into();
    head.runs = (entry.runs.len() as u32).into();
    head.checksums = (entry.checksums.len() as u32).into();
    head.name_bytes = (name.len() as u16).into();
    head.kind = kind;
    head.class = entry.class as u8;
    head.number = number.into();
    out.extend_from_slice(bytemuck::bytes_of(&head));
    for run in &entry.runs {
        out.extend_from_slice(bytemuck::bytes_of(&RunOnMedia {
            segment: run.segment.into(),
            block: run.block.into(),
            blocks: run.blocks.into(),
            mirrors: run.copies as u8 - 1,
            set: run.set,
            reserved: [0; 2],
        }));
    }
    for checksum in &entry.checksums {
        out.extend_from_slice(&checksum.to_le_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.resize(end, 0);
}

/// Reads a whole sequence of changes.
///
/// # Errors
/// See `changes_in`.
pub fn decode_changes(bytes: &[u8]) -> Result<Vec<Change>, EntryError> {
    changes_in(bytes).collect()
}

/// The changes of a sequence of which the end, or more, may be missing: those in front of what
/// cannot be decoded.
pub fn decodable_changes(bytes: &[u8]) -> Vec<Change> {
    changes_in(bytes).map_while(Result::ok).collect()
}

/// The changes of a sequence one by one, up to the first entry that is cut, contradicts itself or
/// is of an unknown kind. Whether the runs lie inside the share is for recovery to say, which knows
/// the geometry.
pub(super) fn changes_in(bytes: &[u8]) -> impl Iterator<Item = Result<Change, EntryError>> + '_ {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        match decode_change(rest) {
            Ok((change, length)) => {
                offset += length;
                Some(Ok(change))
            }
            Err(what) => {
                let error = EntryError { offset, what };
                offset = bytes.len();
                Some(Err(error))
            }
        }
    })
}

fn decode_change(bytes: &[u8]) -> Result<(Change, usize), &'static str> {
    let (head, _) = bytes.split_at_checked(size_of::<EntryOnMedia>()).ok_or("it is cut")?;
    let head: EntryOnMedia = bytemuck::pod_read_unaligned(head);
    let length = head.entry_bytes.get() as usize;
    let body = bytes.get(size_of::<EntryOnMedia>()..length).ok_or("its length is impossible")?;
    let change = match head.kind {
        KIND_PUT => Change::Put(decode_tensor(&head, body)?),
        KIND_DELETE if body.is_empty() => Change::Delete(TensorId(head.id.get())),
        KIND_DELETE => return Err("a deletion carries data"),
        KIND_HOLD => {
            let number = head.number.get();
            Change::Hold(HeldVersion { number, entry: decode_tensor(&head, body)? })
        }
        KIND_SEAL => Change::Seal(decode_seal(&head, body)?),
        KIND_DROP => Change::Drop(decode_drop(&head, body)?),
        _ => return Err("its kind is unknown"),
    };
    if head.kind != KIND_DELETE && !length.is_multiple_of(8) {
        return Err("its length is no multiple of 8 bytes");
    }
    Ok((change, length))
}

fn decode_tensor(head: &EntryOnMedia, body: &[u8]) -> Result<TensorEntry, &'static str> {
    let class = LifetimeClass::from_media(head.class).ok_or("its lifetime class is unknown")?;
    let name_bytes = usize::from(head.name_bytes.get());
    if name_bytes > NAME_BYTES_MAX {
        return Err("its name is too long");
    }
    let cut = "its parts are longer than the entry";
    let runs_bytes = head.runs.get() as usize * size_of::<RunOnMedia>();
    let (runs, rest) = body.split_at_checked(runs_bytes).ok_or(cut)?;
    let checksums_bytes = head.checksums.get() as usize * size_of::<U32>();
    let (checksums, rest) = rest.split_at_checked(checksums_bytes).ok_or(cut)?;
    let (name, padding) = rest.split_at_checked(name_bytes).ok_or(cut)?;
    if padding.len() >= 8 || padding.iter().any(|&byte| byte != 0) {
        return Err("its padding is not zero up to a multiple of 8 bytes");
    }
    let name = std::str::from_utf8(name).map_err(|_| "its name is not UTF-8")?;
    let runs: Runs = runs
        .chunks_exact(size_of::<RunOnMedia>())
        .map(bytemuck::pod_read_unaligned::<RunOnMedia>)
        .map(decode_run)
        .collect::<Result<_, _>>()?;
    if runs.windows(2).any(|pair| pair[0].copies != pair[1].copies) {
        return Err("its runs differ in their copies");
    }
    let length_bytes = head.length.get();
    let blocks = runs.iter().fold(0, |sum, run| sum + run.tensor_blocks());
    if length_bytes > u64::MAX - BLOCK_BYTES || blocks != blocks_for(length_bytes) {
        return Err("its runs do not hold its length");
    }
    if runs.iter().any(|run| run.blocks == 0) {
        return Err("it has an empty run");
    }
    Ok(TensorEntry {
        id: TensorId(head.id.get()),
        name: (!name.is_empty()).then(|| name.into()),
        length: length_bytes,
        class,
        runs,
        checksums: checksums
            .chunks_exact(size_of::<U32>())
            .map(|bytes| bytemuck::pod_read_unaligned::<U32>(bytes).get())
            .collect(),
    })
}

fn decode_run(run: RunOnMedia) -> Result<Run, &'static str> {
    let (mirrors, set) = (u32::from(run.mirrors), run.set);
    let copies =
        Copies::ALL.into_iter().find(|copies| copies.count().checked_sub(1) == Some(mirrors));
    let copies = copies.filter(|_| run.reserved == [0; 2]);
    let copies = copies.ok_or("a run has more copies than two")?;
    let (segment, block, blocks) = (run.segment.get(), run.block.get(), run.blocks.get());
    if !block.is_multiple_of(copies.count()) || !blocks.is_multiple_of(copies.count()) {
        return Err("a run has a part of its copies");
    }
    Ok(Run { segment, block, blocks, copies, set })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn entry(id: u128) -> TensorEntry {
        TensorEntry {
            id: TensorId(id),
            name: (id % 2 == 1).then(|| format!("tensor {id}").into()),
            length: 3 * BLOCK_BYTES - 5,
            class: LifetimeClass::Persistent,
            runs: Runs::from_slice(&[Run::single(1, 2, 1), Run::single(9, 0, 2)]),
            checksums: Checksums::from_slice(&[7, 8, 9]),
        }
    }

    pub(crate) fn encoded(changes: &[Change]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for change in changes {
            let before = bytes.len();
            encode_change(change, &mut bytes);
            assert_eq!(bytes.len() - before, encoded_bytes(change));
        }
        bytes
    }

    #[test]
    fn changes_are_read_back_in_order() {
        let empty = TensorEntry {
            length: 0,
            runs: Runs::from_slice(&[]),
            checksums: Checksums::from_slice(&[]),
            name: None,
            ..entry(4)
        };
        let changes = vec![
            Change::Put(entry(1)),
            Change::Delete(TensorId(u128::MAX)),
            Change::Put(entry(2)),
            Change::Put(empty),
        ];
        assert_eq!(decode_changes(&encoded(&changes)), Ok(changes));
        assert_eq!(decode_changes(&[]), Ok(vec![]));
    }

    #[test]
    fn runs_with_two_copies_hold_half_of_their_blocks() {
        let mut mirrored = entry(1);
        for (run, block) in mirrored.runs.iter_mut().zip([4, 0]) {
            *run = Run { block, blocks: 2 * run.blocks, copies: Copies::Two, ..*run };
        }
        let changes = vec![Change::Put(mirrored.clone())];
        assert_eq!(decode_changes(&encoded(&changes)), Ok(changes));
        for run in [Run { block: 3, ..mirrored.runs[0] }, Run { blocks: 3, ..mirrored.runs[0] }] {
            let mut bad = mirrored.clone();
            bad.runs[0] = run;
            let error = decode_changes(&encoded(&[Change::Put(bad)])).unwrap_err();
            assert_eq!(error.what, "a run has a part of its copies");
        }
        let mut mixed = entry(1);
        mixed.runs[1] = mirrored.runs[1];
        let error = decode_changes(&encoded(&[Change::Put(mixed)])).unwrap_err();
        assert_eq!(error.what, "its runs differ in their copies");
        let mut bytes = encoded(&[Change::Put(mirrored)]);
        bytes[size_of::<EntryOnMedia>() + 12] = 2;
        assert_eq!(decode_changes(&bytes).unwrap_err().what, "a run has more copies than two");
    }

    #[test]
    fn no_mangled_entry_is_accepted_in_silence_or_panics() {
        let changes = vec![Change::Put(entry(1)), Change::Delete(TensorId(3))];
        let good = encoded(&changes);
        for length in 0..good.len() {
            if let Ok(read) = decode_changes(&good[..length]) {
                assert!(read.len() < changes.len(), "a cut sequence of {length} bytes was whole");
            }
        }
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 0xFF;
            // Only values that have no redundancy of their own may change; the structure must hold.
            if let Ok(read) = decode_changes(&bad) {
                assert_eq!(read.len(), changes.len(), "byte {byte}");
            }
        }
    }

    #[test]
    fn runs_that_do_not_hold_the_length_are_refused() {
        let mut bad = entry(1);
        bad.length += BLOCK_BYTES;
        let error = decode_changes(&encoded(&[Change::Put(bad)])).unwrap_err();
        assert_eq!(error.what, "its runs do not hold its length");
    }
}
