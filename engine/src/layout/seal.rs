//! Seals as bytes: a name for a set of tensor versions, and the versions that it holds.
//!
//! All three are index entries, beside the puts and deletions of [`super::entry`]: a version that
//! seals hold, a seal, and the end of a seal.

use bytemuck::Zeroable as _;

use super::entry::{EntryOnMedia, TensorEntry};
use super::tensor::NAME_BYTES_MAX;

pub(super) const KIND_HOLD: u8 = 3;
pub(super) const KIND_SEAL: u8 = 4;
pub(super) const KIND_DROP: u8 = 5;

/// A version of a tensor that seals hold, whatever stands under the tensor's id now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldVersion {
    /// Number by which seals refer to the version. No two versions that seals hold have the same.
    pub number: u64,
    /// The tensor as it was.
    pub entry: TensorEntry,
}

/// A set of tensor versions under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The name.
    pub name: Box<str>,
    /// Time at which the seal was made, in seconds since 1970.
    pub sealed_at: u64,
    /// Place of the seal among the commits of seals of the share, from 1; 0 until it is committed,
    /// and where older software made it.
    pub order: u64,
    /// The numbers of the versions.
    pub versions: Vec<u64>,
}

impl Seal {
    /// The bytes that it uses in the index.
    pub fn encoded_bytes(&self) -> usize {
        Self::bytes_for(self.versions.len(), self.name.len())
    }

    /// Returns the bytes that a seal of `versions` versions uses in the index, with a name of
    /// `name_bytes` bytes.
    pub fn bytes_for(versions: usize, name_bytes: usize) -> usize {
        let body = size_of::<u64>() * versions + name_bytes;
        (size_of::<EntryOnMedia>() + body).next_multiple_of(8)
    }
}

/// The bytes that the end of this seal uses in a record.
pub(super) fn drop_bytes(name: &str) -> usize {
    Seal::bytes_for(0, name.len())
}

pub(super) fn encode_seal(seal: &Seal, out: &mut Vec<u8>) {
    let Seal { name, sealed_at, order, versions } = seal;
    let mut head = EntryOnMedia::zeroed();
    head.kind = KIND_SEAL;
    head.length = (versions.len() as u64).into();
    head.number = (*sealed_at).into();
    head.id = u128::from(*order).into();
    encode_named(head, versions, name, out);
}

pub(super) fn encode_drop(name: &str, out: &mut Vec<u8>) {
    let mut head = EntryOnMedia::zeroed();
    head.kind = KIND_DROP;
    encode_named(head, &[], name, out);
}

fn encode_named(mut head: EntryOnMedia, versions: &[u64], name: &str, out: &mut Vec<u8>) {
    let bytes = Seal::bytes_for(versions.len(), name.len());
    let end = out.len() + bytes;
    head.entry_bytes = (bytes as u32).into();
    head.name_bytes = (name.len() as u16).into();
    out.extend_from_slice(bytemuck::bytes_of(&head));
    out.extend(versions.iter().flat_map(|number| number.to_le_bytes()));
    out.extend_from_slice(name.as_bytes());
    out.resize(end, 0);
}

/// The seal of this header and what follows it.
pub(super) fn decode_seal(head: &EntryOnMedia, body: &[u8]) -> Result<Seal, &'static str> {
    let cut = "its parts are longer than the entry";
    let bytes = usize::try_from(head.length.get()).ok().and_then(|it| it.checked_mul(8));
    let (versions, rest) = bytes.and_then(|it| body.split_at_checked(it)).ok_or(cut)?;
    let (versions, _) = versions.as_chunks::<8>();
    let versions = versions.iter().map(|number| u64::from_le_bytes(*number)).collect();
    // Older software has zeroes there, and passes over what it finds.
    let order = head.id.get() as u64;
    Ok(Seal { name: decode_name(head, rest)?, sealed_at: head.number.get(), order, versions })
}

/// The name of the seal that ends.
pub(super) fn decode_drop(head: &EntryOnMedia, body: &[u8]) -> Result<Box<str>, &'static str> {
    if head.length.get() != 0 {
        return Err("the end of a seal names versions");
    }
    decode_name(head, body)
}

fn decode_name(head: &EntryOnMedia, rest: &[u8]) -> Result<Box<str>, &'static str> {
    let name_bytes = usize::from(head.name_bytes.get());
    if head.runs.get() != 0 || head.checksums.get() != 0 {
        return Err("a seal has runs or checksums");
    }
    if name_bytes == 0 || name_bytes > NAME_BYTES_MAX {
        return Err("a seal's name has 1 to 1024 bytes");
    }
    let (name, padding) =
        rest.split_at_checked(name_bytes).ok_or("its parts are longer than the entry")?;
    if padding.len() >= 8 || padding.iter().any(|&byte| byte != 0) {
        return Err("its padding is not zero up to a multiple of 8 bytes");
    }
    Ok(std::str::from_utf8(name).map_err(|_| "its name is not UTF-8")?.into())
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::{encoded, entry};
    use super::super::{Change, decode_changes};
    use super::*;

    fn changes() -> Vec<Change> {
        let seal = |name: &str, versions: &[u64]| Seal {
            name: name.into(),
            sealed_at: 1_700_000_000,
            order: 3,
            versions: versions.into(),
        };
        vec![
            Change::Hold(HeldVersion { number: 7, entry: entry(3) }),
            Change::Seal(seal("step 10", &[7, u64::MAX])),
            Change::Put(entry(4)),
            Change::Seal(seal("nothing", &[])),
            Change::Drop("step 10".into()),
        ]
    }

    #[test]
    fn seals_and_what_they_hold_are_read_back_in_order() {
        assert_eq!(decode_changes(&encoded(&changes())), Ok(changes()));
    }

    #[test]
    fn no_mangled_entry_is_accepted_in_silence_or_panics() {
        let good = encoded(&changes());
        for length in 0..good.len() {
            if let Ok(read) = decode_changes(&good[..length]) {
                assert!(read.len() < changes().len(), "{length} bytes were the whole sequence");
            }
        }
        for byte in 0..good.len() {
            for mask in [0xFF, 1, 0x80] {
                let mut bad = good.clone();
                bad[byte] ^= mask;
                if let Ok(read) = decode_changes(&bad) {
                    assert_eq!(read.len(), changes().len(), "byte {byte}");
                    assert_eq!(encoded(&read).len(), good.len(), "byte {byte}");
                }
            }
        }
    }

    #[test]
    fn a_seal_without_a_name_or_with_more_versions_than_bytes_is_refused() {
        let seal = Seal { name: "".into(), sealed_at: 0, order: 0, versions: vec![1] };
        let error = decode_changes(&encoded(&[Change::Seal(seal.clone())])).unwrap_err();
        assert_eq!(error.what, "a seal's name has 1 to 1024 bytes");
        let mut bytes = encoded(&[Change::Seal(Seal { name: "x".into(), ..seal })]);
        bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = decode_changes(&bytes).unwrap_err();
        assert_eq!(error.what, "its parts are longer than the entry");
    }
}
