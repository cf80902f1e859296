//! Memory of GPUs for the caller's storages, of which parts are given back and come again where
//! they were: the framework's allocator has none such.
//!
//! It is a framework's storage's until that lets go of it, which may be from any thread, and while
//! kernels that use it have not run. Then it is dead. Somebody who can tell when they have run
//! takes what is dead, and frees it; where nobody does, whoever lets go of it waits for the GPU.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidelog_engine::memory::process::PerProcess;
use tidelog_gds::Gpu;
use tidelog_gds::cuda::{CudaError, CudaUnavailable, VirtualMemory};

/// Storages of this process. In a child of fork CUDA is of no use, and nothing is freed.
static ALL: PerProcess<MappedStorages> = PerProcess::new(MappedStorages::default);

pub(crate) fn mapped_storages() -> &'static MappedStorages {
    ALL.get()
}

#[derive(Default)]
pub(crate) struct MappedStorages(Mutex<State>);

#[derive(Default)]
struct State {
    gpus: HashMap<u8, Arc<Gpu>>,
    /// Live memory by address.
    live: BTreeMap<u64, VirtualMemory>,
    dead: Vec<VirtualMemory>,
    /// Taken memory that was dead together.
    taken: HashMap<u64, Vec<VirtualMemory>>,
    takings: u64,
    /// True if somebody takes what is dead.
    is_taken_care_of: bool,
}

impl MappedStorages {
    /// The bytes of which parts are multiples.
    pub(crate) fn granule(&self, gpu: u8) -> Result<u64, CudaUnavailable> {
        Ok(VirtualMemory::granule(&*self.gpu(gpu)?)? as u64)
    }

    /// Memory of this GPU for a storage; where it begins. `None`: the GPU has no memory left.
    pub(crate) fn allocate(&self, gpu: u8, size: usize) -> Result<Option<u64>, CudaUnavailable> {
        let Some(memory) = VirtualMemory::new(&self.gpu(gpu)?, size)? else { return Ok(None) };
        let base = memory.base().0;
        self.lock().live.insert(base, memory);
        Ok(Some(base))
    }

    /// Returns whether memory begins there that a storage has.
    pub(crate) fn is_live(&self, base: u64) -> bool {
        self.lock().live.contains_key(&base)
    }

    /// The storage that had it has it no longer.
    pub(crate) fn let_go(&self, base: u64) {
        let mut state = self.lock();
        // What a child of fork inherited is not among its own.
        let Some(memory) = state.live.remove(&base) else { return };
        if state.is_taken_care_of {
            state.dead.push(memory);
            return;
        }
        drop(state);
        // A failure is one for good, and nothing runs any more then.
        let _ = memory.gpu().synchronize();
    }

    /// Sets whether somebody takes dead memory.
    pub(crate) fn take_care(&self, on: bool) {
        let mut state = self.lock();
        state.is_taken_care_of = on;
        if on {
            return;
        }
        let mut rest = std::mem::take(&mut state.dead);
        rest.extend(std::mem::take(&mut state.taken).into_values().flatten());
        drop(state);
        for memory in rest {
            let _ = memory.gpu().synchronize();
        }
    }

    /// Takes what is dead by now. Returns its number for `free`; 0: there is nothing.
    pub(crate) fn take_dead(&self) -> u64 {
        let mut state = self.lock();
        if state.dead.is_empty() {
            return 0;
        }
        state.takings += 1;
        let (number, dead) = (state.takings, std::mem::take(&mut state.dead));
        state.taken.insert(number, dead);
        number
    }

    /// Frees what was taken under this number.
    ///
    /// # Safety
    /// What was launched before it was taken has happened.
    pub(crate) unsafe fn free(&self, taken: u64) {
        let memory = self.lock().taken.remove(&taken);
        drop(memory);
    }

    /// Gives back the memory of a part. Of what is dead nothing is done.
    ///
    /// # Safety
    /// Nothing that was launched uses it any more, and nothing does before `recommit`.
    pub(crate) unsafe fn decommit(&self, address: u64, length: usize) -> Result<(), CudaError> {
        let mut state = self.lock();
        match state.part(address, length) {
            // SAFETY: by this function's contract.
            Some((memory, part)) => unsafe { memory.unmap(part) },
            None => Ok(()),
        }
    }

    /// The part is about to be written again. `false`: the GPU has no memory left.
    pub(crate) fn recommit(&self, address: u64, length: usize) -> Result<bool, CudaError> {
        let mut state = self.lock();
        state.part(address, length).map_or(Ok(true), |(memory, part)| memory.map(part))
    }

    fn gpu(&self, number: u8) -> Result<Arc<Gpu>, CudaUnavailable> {
        let mut state = self.lock();
        if let Some(gpu) = state.gpus.get(&number) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = Gpu::open(number.into())?;
        state.gpus.insert(number, Arc::clone(&gpu));
        Ok(gpu)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The memory that a part is of, and where it is there.
    fn part(&mut self, address: u64, length: usize) -> Option<(&mut VirtualMemory, Range<usize>)> {
        let (base, memory) = self.live.range_mut(..=address).next_back()?;
        let begin = (address - base) as usize;
        let end = begin.checked_add(length)?;
        (end <= memory.len()).then_some((memory, begin..end))
    }
}
