//! Device memory that the controllers reach: through the IOMMU where SPDK drives it, else by its
//! bus addresses.

use tidelog_spdk_sys as sys;

use super::environment::Environment;
use super::queue::{self, QueuePair};
use crate::memory::peer::PeerRegion;
use crate::memory::{ALIGNMENT, DmaBuffer, Memory};
use crate::path::{PeerReach, PeerUnreachable};
use crate::units::ByteCount;

/// Bytes behind an entry of a PRP list: the controller's memory page, which SPDK leaves at 4 KiB.
const PAGE: usize = ALIGNMENT;
/// Entries in one page of a PRP list.
const ENTRIES: usize = PAGE / size_of::<u64>();
/// Size that one command by bus addresses can move: so many entries lie in one page of one of the
/// two tables.
pub(super) const BY_BUS_MAX: ByteCount = ByteCount((ENTRIES / 2 * PAGE) as u64);

/// The regions that were registered.
pub(super) struct SpdkPeers(Vec<Peer>);

struct Peer {
    region: PeerRegion,
    way: AddressTranslation,
}

/// Translation of a region's addresses for controllers.
enum AddressTranslation {
    /// Virtual addresses, which SPDK translates.
    Translated,
    /// Bus addresses, which this module writes into the command.
    Bus(PageLists),
}

/// Addresses of a command's memory.
#[derive(Clone, Copy)]
pub(super) enum CommandAddresses<'a> {
    /// Virtual addresses, which SPDK translates.
    Translated,
    /// Bus addresses: those of the region, and where in it the memory begins.
    Bus { lists: &'a PageLists, offset: usize },
}

impl SpdkPeers {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the addresses of memory for a command; not that of a region which was not
    /// registered.
    pub(super) fn way_to(&self, memory: &Memory) -> Option<CommandAddresses<'_>> {
        match memory {
            Memory::Host(_) => Some(CommandAddresses::Translated),
            Memory::Peer(buffer) => {
                let peer = self.0.iter().find(|peer| peer.region.holds(buffer))?;
                Some(match &peer.way {
                    AddressTranslation::Translated => CommandAddresses::Translated,
                    AddressTranslation::Bus(lists) => {
                        CommandAddresses::Bus { lists, offset: buffer.offset() }
                    }
                })
            }
            Memory::Gpu(_) => None,
        }
    }

    /// Makes a region reachable for the controllers of these queues.
    pub(super) fn register(
        &mut self,
        region: &PeerRegion,
        queues: &[QueuePair],
    ) -> Result<PeerReach, PeerUnreachable> {
        if let Some(remote) = queues.iter().find(|it| !it.is_on_the_bus()) {
            let name = remote.name();
            return Err(PeerUnreachable(format!("{name} is not on this machine's bus")));
        }
        let memory = region.memory();
        let (base, length) = memory.span();
        // SAFETY: the environment has started, as there are queues; the call only asks.
        let (way, reach) = if unsafe { sys::spdk_iommu_is_enabled() } {
            queue::register(base.as_ptr(), length, queues).map_err(|why| {
                PeerUnreachable(format!("the IOMMU does not map {}: {why}", memory.describe()))
            })?;
            (AddressTranslation::Translated, PeerReach::Iommu)
        } else {
            let bus = memory.bus_address().ok_or_else(|| {
                let what = memory.describe();
                PeerUnreachable(format!("there is no IOMMU, and {what} has no known bus address"))
            })?;
            (AddressTranslation::Bus(PageLists::new(bus, length)?), PeerReach::BusAddresses)
        };
        self.0.push(Peer { region: region.clone(), way });
        Ok(reach)
    }

    /// Takes the registrations back. Nothing is in flight any more.
    pub(super) fn unregister(&mut self) {
        for peer in self.0.drain(..) {
            if matches!(peer.way, AddressTranslation::Translated) {
                let (base, length) = peer.region.memory().span();
                queue::unregister((base.as_ptr(), length));
            }
        }
    }
}

/// The bus addresses of a region's pages as a controller reads them, for every run of pages that a
/// command may name.
///
/// A list may not cross a page of memory without a link, and a link that is the last entry would be
/// taken for an address. So there are two tables without links, the second half a page further on:
/// any run of half a page of entries lies within a page of one of them. They are written once;
/// commands in flight share them.
pub(super) struct PageLists {
    bus: u64,
    /// Memory of both tables, one behind the other.
    tables: DmaBuffer,
    pages: usize,
}

impl PageLists {
    fn new(bus: u64, length: usize) -> Result<Self, PeerUnreachable> {
        let pages = length / PAGE;
        let bytes = table_pages(pages) * 2 * PAGE;
        let no_memory =
            |why: String| PeerUnreachable(format!("no memory for its page lists: {why}"));
        let pool = Environment::get()
            .map_err(|error| no_memory(error.to_string()))?
            .allocate(ByteCount(bytes as u64))
            .map_err(|error| no_memory(error.to_string()))?;
        let mut tables =
            pool.take(bytes).ok_or_else(|| no_memory("the pool is too small".into()))?;
        fill(&mut tables, bus, pages);
        Ok(Self { bus, tables, pages })
    }

    /// The two PRP fields of a command that moves `bytes` from byte `offset` of the region on;
    /// `None` where that is not the beginning of a page, or the lists themselves cannot be reached.
    pub(super) fn fields(&self, offset: usize, bytes: usize) -> Option<(u64, u64)> {
        if !offset.is_multiple_of(PAGE) {
            return None;
        }
        let address = |page: usize| self.bus + (page * PAGE) as u64;
        let (first, count) = (offset / PAGE, bytes.div_ceil(PAGE));
        match count {
            0 | 1 => Some((address(first), 0)),
            2 => Some((address(first), address(first + 1))),
            _ => {
                let place = place_of(first + 1, count - 1, self.pages);
                let at = self.tables.as_ptr().wrapping_add(place * size_of::<u64>());
                // SAFETY: the address lies in the tables, which are the environment's memory; it is
                // looked up only.
                let list = unsafe { sys::spdk_vtophys(at.cast(), std::ptr::null_mut()) };
                let found = list != i64::from(sys::SPDK_VTOPHYS_ERROR).cast_unsigned();
                found.then_some((address(first), list))
            }
        }
    }
}

/// Pages of memory that one table takes.
fn table_pages(pages: usize) -> usize {
    pages.div_ceil(ENTRIES)
}

/// Returns the place of the entry of page `first`, in a table where the `count` entries from there
/// on lie in one page of memory.
fn place_of(first: usize, count: usize, pages: usize) -> usize {
    debug_assert!(count <= ENTRIES / 2, "a command moves BY_BUS_MAX at most");
    if first % ENTRIES + count <= ENTRIES {
        first
    } else {
        table_pages(pages) * ENTRIES + first - ENTRIES / 2
    }
}

/// Writes both tables.
fn fill(tables: &mut [u8], bus: u64, pages: usize) {
    let address = |page: usize| bus + (page * PAGE) as u64;
    let (whole, shifted) = tables.split_at_mut(table_pages(pages) * PAGE);
    for (table, first) in [(whole, 0), (shifted, ENTRIES / 2)] {
        for (entry, page) in table.chunks_exact_mut(size_of::<u64>()).zip(first..pages) {
            entry.copy_from_slice(&address(page).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::DmaPool;

    #[test]
    fn what_does_not_begin_with_a_page_has_no_fields() {
        let tables = DmaPool::new(ByteCount(PAGE as u64), false).unwrap().take(PAGE).unwrap();
        let lists = PageLists { bus: 0x1000_0000, tables, pages: 4 };
        assert_eq!(lists.fields(PAGE, 2 * PAGE), Some((0x1000_1000, 0x1000_2000)));
        assert_eq!(lists.fields(PAGE + 512, PAGE), None);
    }

    #[test]
    fn every_run_of_half_a_page_of_entries_lies_in_one_page_and_names_its_pages() {
        let (bus, pages) = (0xc0_0000_0000_u64, 3 * ENTRIES + 7);
        let mut tables = vec![0; table_pages(pages) * 2 * PAGE];
        fill(&mut tables, bus, pages);
        let entry = |place: usize| {
            let bytes = &tables[place * 8..place * 8 + 8];
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        for count in [1, 2, 100, ENTRIES / 2] {
            for first in 0..=pages - count {
                let place = place_of(first, count, pages);
                assert_eq!(place / ENTRIES, (place + count - 1) / ENTRIES, "{first} + {count}");
                for at in [0, count - 1] {
                    assert_eq!(entry(place + at), bus + ((first + at) * PAGE) as u64);
                }
            }
        }
    }
}
