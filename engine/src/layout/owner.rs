//! The owner block: which host writes a namespace that more than one host can reach.
//!
//! Locks end at the host's border; this block is what the next host sees. Unlike a holder it
//! counts: what another host has not given back is not written.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use super::endian::{U32, U64, U128};
use super::holder::utc;
use super::{BLOCK_BYTES, checksum_of};

const MAGIC: [u8; 8] = *b"TIDEOWNR";
const HOST_BYTES: usize = 256;
const GIVEN_BACK: u32 = 0;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct OwnerOnMedia {
    pub(super) magic: [u8; 8],
    /// CRC32C over the block with this field as zero.
    pub(super) checksum: U32,
    pub(super) state: U32,
    pub(super) pool: U128,
    pub(super) claim: U128,
    pub(super) generation: U64,
    pub(super) since: U64,
    pub(super) host_bytes: U32,
    pub(super) host: [u8; HOST_BYTES],
    pub(super) fenced: U32,
    pub(super) reserved: [u8; 3768],
}

const _: () = assert!(size_of::<OwnerOnMedia>() == BLOCK_BYTES as usize);

/// The host that owns a namespace, or owned it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the host by itself, cut at 256 bytes.
    pub host: String,
    /// True if the owner has not given the namespace back.
    pub owns: bool,
    /// Counts the claims on this namespace.
    pub generation: u64,
    /// Tells this claim from all others.
    pub claim: u128,
    /// Time at which the claim was made, in seconds since 1970.
    pub since: u64,
    /// True if the namespace refuses the writes of other hosts: it is reserved for this one.
    pub fenced: bool,
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fenced = if self.fenced { ", by a reservation" } else { "" };
        write!(out, "host {} since {}{fenced}", self.host, utc(self.since))
    }
}

impl Owner {
    /// Returns whether a block begins as a owner block does, though it be damaged.
    pub fn is_marked(block: &[u8]) -> bool {
        super::is_marked(block, MAGIC)
    }

    /// The block that stands on the media.
    pub fn encode(&self, pool: u128) -> Vec<u8> {
        let mut block = OwnerOnMedia::zeroed();
        let ends = (0..=HOST_BYTES.min(self.host.len())).rev();
        let length = ends.into_iter().find(|&end| self.host.is_char_boundary(end)).unwrap_or(0);
        block.magic = MAGIC;
        block.state = u32::from(self.owns).into();
        block.pool = pool.into();
        block.claim = self.claim.into();
        block.generation = self.generation.into();
        block.since = self.since.into();
        block.fenced = u32::from(self.fenced).into();
        block.host_bytes = (length as u32).into();
        block.host[..length].copy_from_slice(&self.host.as_bytes()[..length]);
        block.checksum = checksum_of(&[bytemuck::bytes_of(&block)]).into();
        bytemuck::bytes_of(&block).to_vec()
    }

    /// Reads a block; `None` if no owner stands there.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut block: OwnerOnMedia = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        let checksum = block.checksum.get();
        block.checksum = 0.into();
        let whole = block.magic == MAGIC && checksum == checksum_of(&[bytemuck::bytes_of(&block)]);
        let host = block.host.get(..block.host_bytes.get() as usize)?;
        whole.then(|| Self {
            host: String::from_utf8_lossy(host).into_owned(),
            // A state that this version does not know gives nothing back.
            owns: block.state.get() != GIVEN_BACK,
            generation: block.generation.get(),
            claim: block.claim.get(),
            since: block.since.get(),
            fenced: block.fenced.get() != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        let (host, claim) = ("a".into(), 1 << 90);
        Owner { host, owns: true, generation: 3, claim, since: 12, fenced: false }
    }

    #[test]
    fn the_owner_is_read_back_and_a_long_name_is_cut_at_a_character() {
        let owner = owner();
        assert_eq!(Owner::decode(&owner.encode(1)), Some(owner.clone()));
        let fenced = Owner { fenced: true, ..owner.clone() };
        assert_eq!(Owner::decode(&fenced.encode(1)), Some(fenced));
        let mut unknown: OwnerOnMedia = bytemuck::pod_read_unaligned(&owner.encode(1));
        unknown.state = 2.into();
        unknown.checksum = 0.into();
        unknown.checksum = checksum_of(&[bytemuck::bytes_of(&unknown)]).into();
        assert!(Owner::decode(bytemuck::bytes_of(&unknown)).unwrap().owns, "not known, not free");
        let left = Owner { owns: false, ..owner.clone() };
        assert_eq!(Owner::decode(&left.encode(1)), Some(left));
        let long = Owner { host: "é".repeat(200), ..owner };
        assert_eq!(Owner::decode(&long.encode(1)).unwrap().host, "é".repeat(128));
    }

    #[test]
    fn a_damaged_or_blank_block_names_nobody() {
        let mut block = owner().encode(1);
        block[4000] ^= 1;
        assert_eq!(Owner::decode(&block), None);
        assert_eq!(Owner::decode(&[0; 4096]), None);
        assert_eq!(Owner::decode(&[]), None);
    }
}
