//! Memory of a GPU for an arena: made when it is first wanted, and mapped at other addresses where
//! the arena says so.

use std::ops::Range;
use std::sync::Arc;

use super::mapped::{Handle, NO_MEMORY, give_access, reserve, unreserve};
use super::{CudaError, DevicePointer, Gpu, VirtualMemory};

/// Addresses of an arena, and the memory that is mapped there now, both in granules. Given back on
/// drop.
///
/// After an error what is mapped is not what the arena believes: it must not be asked any more.
#[derive(Debug)]
pub struct ArenaMemory {
    gpu: Arc<Gpu>,
    granule: usize,
    /// Number of addresses of each reservation.
    reserved: usize,
    reservations: Vec<DevicePointer>,
    /// Handle of what is mapped at each address.
    mapped: Vec<Option<Handle>>,
}

impl ArenaMemory {
    /// Reserves addresses, in granules, at which there is no memory yet.
    pub fn new(gpu: &Arc<Gpu>, addresses: usize) -> Result<Self, CudaError> {
        let granule = VirtualMemory::granule(gpu)?;
        let mut arena = Self {
            gpu: Arc::clone(gpu),
            granule,
            reserved: addresses,
            reservations: Vec::new(),
            mapped: Vec::new(),
        };
        arena.reserve()?;
        Ok(arena)
    }

    /// Reserves as many addresses again, behind all that there are.
    pub fn reserve(&mut self) -> Result<(), CudaError> {
        let _entered = self.gpu.enter()?;
        self.reservations.push(reserve(self.reserved * self.granule)?);
        self.mapped.resize_with(self.mapped.len() + self.reserved, || None);
        Ok(())
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the number of addresses.
    pub fn addresses(&self) -> usize {
        self.mapped.len()
    }

    /// Returns the number of granules of memory that there are.
    pub fn made(&self) -> usize {
        self.mapped.iter().flatten().count()
    }

    /// Returns where an address of the arena is on the GPU.
    pub fn address(&self, at: usize) -> DevicePointer {
        let base = self.reservations[at / self.reserved];
        base.offset((at % self.reserved * self.granule) as u64)
    }

    /// Makes memory at those addresses of one reservation at which there is none. Its bytes are
    /// undefined. Returns the number of granules; `None`: the GPU has no memory left, and what was
    /// made stays.
    pub fn make(&mut self, at: Range<usize>) -> Result<Option<usize>, CudaError> {
        if self.mapped[at.clone()].iter().all(Option::is_some) {
            return Ok(Some(0));
        }
        let missing: Vec<usize> = at.filter(|at| self.mapped[*at].is_none()).collect();
        let gpu = Arc::clone(&self.gpu);
        let _entered = gpu.enter()?;
        let mut made = 0;
        for at in &missing {
            match Handle::new(&gpu, self.granule) {
                Ok(handle) => self.map(*at, handle)?,
                Err(error) if error.code == NO_MEMORY => break,
                Err(error) => return Err(error),
            }
            made += 1;
        }
        for run in missing[..made].chunk_by(|one, next| one + 1 == *next) {
            self.give_access(run[0], run.len())?;
        }
        Ok((made == missing.len()).then_some(made))
    }

    /// Maps what memory there is in these granules at other addresses of one reservation. Its bytes
    /// are undefined from then on. Returns the number of granules.
    ///
    /// # Safety
    /// Nothing that was launched uses the memory any more.
    pub unsafe fn remap(
        &mut self,
        from: usize,
        to: usize,
        count: usize,
    ) -> Result<usize, CudaError> {
        let gpu = Arc::clone(&self.gpu);
        let _entered = gpu.enter()?;
        let mut moved = Vec::new();
        for index in 0..count {
            // SAFETY: by this function's contract.
            if let Some(handle) = unsafe { self.unmap(from + index) }? {
                self.map(to + index, handle)?;
                moved.push(to + index);
            }
        }
        for run in moved.chunk_by(|one, next| one + 1 == *next) {
            self.give_access(run[0], run.len())?;
        }
        Ok(moved.len())
    }

    /// Gives what memory there is in these granules back to the GPU.
    ///
    /// # Safety
    /// As for [`ArenaMemory::remap`].
    pub unsafe fn release(&mut self, at: Range<usize>) -> Result<(), CudaError> {
        let gpu = Arc::clone(&self.gpu);
        let _entered = gpu.enter()?;
        for at in at {
            // SAFETY: by this function's contract.
            drop(unsafe { self.unmap(at) }?);
        }
        Ok(())
    }

    /// Unmaps a granule, whose memory is returned, if there is some. The context was entered.
    ///
    /// # Safety
    /// Nothing uses it.
    unsafe fn unmap(&mut self, at: usize) -> Result<Option<Handle>, CudaError> {
        let address = self.address(at);
        if let Some(handle) = &self.mapped[at] {
            // SAFETY: memory is mapped there as one piece, which nothing uses, as the caller says.
            unsafe { handle.unmap(address) }?;
        }
        Ok(self.mapped[at].take())
    }

    fn map(&mut self, at: usize, handle: Handle) -> Result<(), CudaError> {
        assert!(self.mapped[at].is_none(), "memory is mapped there");
        // SAFETY: the addresses are reserved, and nothing is mapped there.
        unsafe { handle.map(self.address(at)) }?;
        self.mapped[at] = Some(handle);
        Ok(())
    }

    fn give_access(&self, first: usize, count: usize) -> Result<(), CudaError> {
        // SAFETY: memory is mapped for the whole range, which lies in one reservation.
        unsafe { give_access(&self.gpu, self.address(first), count * self.granule) }
    }
}

impl Drop for ArenaMemory {
    /// Frees the memory, which no launched work uses any more, as for all memory of a GPU.
    fn drop(&mut self) {
        let gpu = Arc::clone(&self.gpu);
        let Ok(_entered) = gpu.enter() else { return };
        for at in 0..self.mapped.len() {
            // SAFETY: nothing uses it. A failure means that the context is gone, and the memory
            // with it.
            let _ = unsafe { self.unmap(at) };
        }
        for base in &self.reservations {
            // SAFETY: reserved above, freed once, and nothing is mapped there.
            let _ = unsafe { unreserve(*base, self.reserved * self.granule) };
        }
    }
}
