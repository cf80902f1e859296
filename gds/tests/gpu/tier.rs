//! Tensors to page-locked host memory and back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{GpuDestination, GpuSource};
use tidelog_engine::schedule::{CompletionQueue, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::DeviceMemory;
use tidelog_gds::{Gpu, HostTier};

use super::{Cost, cost, gpu, pattern};

const TENSORS: u64 = 16;
const BYTES: usize = 64 << 20;

#[test]
fn tensors_on_the_gpu_go_to_host_memory_and_come_back() {
    let test = "tensors_on_the_gpu_go_to_host_memory_and_come_back";
    let Some(gpu) = gpu(test) else { return };
    let whole = ByteCount(TENSORS * BYTES as u64);
    let begun = Instant::now();
    let tier = HostTier::open(&gpu, whole).unwrap();
    let locked = begun.elapsed();
    let ended = CompletionQueue::new();
    let mut memories = filled(&gpu, &pattern(BYTES));
    let out = transfers(&ended, |number| {
        let notify = (ended.clone(), number);
        drop(tier.put(id(number), source(&memories, number), Urgency::Ahead, notify).unwrap());
    });
    assert_eq!(tier.stats().used, whole, "any byte can be used");
    let checked = transfers(&ended, |number| {
        let notify = (ended.clone(), number);
        drop(tier.verify(id(number), source(&memories, number), notify).unwrap());
    });
    for memory in &mut memories {
        memory.write(0, &vec![0; BYTES]).unwrap();
    }
    let back = transfers(&ended, |number| {
        let base = memories[number as usize].base().0;
        // SAFETY: the memory outlives the transfer, and nobody else touches it meanwhile.
        let to = unsafe { GpuDestination::new(base, BYTES, None, None) };
        drop(tier.get(id(number), to, Urgency::Urgent, (ended.clone(), number)).unwrap());
    });
    let mut found = vec![0; BYTES];
    for memory in &memories {
        memory.read(0, &mut found).unwrap();
        assert!(found == pattern(BYTES), "other bytes came back to the GPU");
    }
    println!(
        "FACT host memory: 1 GiB page-locked in {:.2} s, to it at {out}, from it at {back}, compared with its checksums at {checked}",
        locked.as_secs_f64()
    );
}

fn filled(gpu: &Arc<Gpu>, bytes: &[u8]) -> Vec<DeviceMemory> {
    let memories = (0..TENSORS).map(|_| {
        let mut memory = DeviceMemory::new(gpu, BYTES).unwrap();
        memory.write(0, bytes).unwrap();
        memory
    });
    memories.collect()
}

fn id(number: u64) -> TensorId {
    TensorId(number.into())
}

fn source(memories: &[DeviceMemory], number: u64) -> GpuSource {
    // SAFETY: the memory outlives the transfer, and nobody writes it meanwhile.
    unsafe { GpuSource::new(memories[number as usize].base().0, BYTES, None) }
}

/// Begins a transfer of every tensor and waits for all.
fn transfers(ended: &CompletionQueue, transfer: impl Fn(u64)) -> Cost {
    cost(TENSORS as usize * BYTES, || {
        (0..TENSORS).for_each(transfer);
        for _ in 0..TENSORS {
            let told = ended.wait_pop(Duration::from_secs(60));
            let (_, outcome) = told.expect("a transfer never ended");
            assert!(outcome.unwrap().matched);
        }
    })
}
