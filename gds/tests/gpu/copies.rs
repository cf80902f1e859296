//! What the two kinds of staging cost: chunks of the GPU's own memory, and chunks of page-locked host memory, each beside
//! the plain copy of the same bytes. The mark is four fifths of it.

use tidelog_engine::memory::{DmaPool, GpuCopy, GpuDirection, GpuMemory};
use tidelog_engine::units::ByteCount;
use tidelog_gds::StagedGpu;
use tidelog_gds::cuda::{DeviceMemory, Event, Stream};

use super::{Cost, cost, gpu};

/// Of a plain copy's rate.
const MARK: f64 = 0.8;

/// The best of four rounds with pieces of each size, in turn: others may use the machine, and the first round wakes the GPU.
fn best_in_turn(sizes: [usize; 2], mut cost_of: impl FnMut(usize) -> Cost) -> [Cost; 2] {
    let best = |a: Cost, b: Cost| if a.rate() >= b.rate() { a } else { b };
    (0..3).fold(sizes.map(&mut cost_of), |[one, other], _| {
        [best(one, cost_of(sizes[0])), best(other, cost_of(sizes[1]))]
    })
}

#[test]
fn copies_to_chunks_on_the_gpu_reach_the_mark() {
    let test = "copies_to_chunks_on_the_gpu_reach_the_mark";
    const WHOLE: usize = 512 << 20;
    const CHUNK: usize = 4 << 20;
    let Some(gpu) = gpu(test) else { return };
    let stream = Stream::new(&gpu).unwrap();
    let (from, to) =
        (DeviceMemory::new(&gpu, WHOLE).unwrap(), DeviceMemory::new(&gpu, WHOLE).unwrap());
    let event = Event::new(&gpu).unwrap();
    let time = |piece: usize| {
        let rounds = 8;
        cost(rounds * WHOLE, || {
            for at in (0..rounds).flat_map(|_| (0..WHOLE).step_by(piece)) {
                let at = at as u64;
                // SAFETY: both allocations outlive the synchronisation below.
                unsafe { stream.copy(from.base().offset(at), to.base().offset(at), piece) }
                    .unwrap();
                event.record(&stream).unwrap();
            }
            stream.synchronize().unwrap();
        })
    };
    let [plain, staged] = best_in_turn([WHOLE, CHUNK], time);
    println!("FACT copies in chunks of 4 MiB: {staged}, at once: {plain}");
    assert!(staged.rate() >= MARK * plain.rate(), "{staged}, plain {plain}");
}

#[test]
fn copies_to_page_locked_chunks_reach_the_mark() {
    const WHOLE: usize = 1 << 30;
    const STAGING: usize = 64 << 20;
    // The stripe unit that pools have if nobody says another.
    const CHUNK: usize = 256 << 10;
    let test = "copies_to_page_locked_chunks_reach_the_mark";
    let Some(gpu) = gpu(test) else { return };
    // One that bytes come from and one that they go to.
    let memories = [(); 2].map(|()| DeviceMemory::new(&gpu, WHOLE).unwrap());
    let staging = DmaPool::new(ByteCount(STAGING as u64), true).unwrap();
    let opened = StagedGpu(gpu).open((STAGING / CHUNK) as u32, &staging).unwrap();
    assert_eq!(opened.why_unlocked, None, "ulimit -l bounds what may be locked");
    let (mut copies, base) = (opened.copies, staging.span().0);
    // All of the GPU's memory through the staging memory, as many pieces under way as fit there.
    let mut through = |directions: &[GpuDirection], piece: usize| -> Cost {
        let slots = STAGING / piece;
        cost(WHOLE * directions.len(), || {
            for (number, at) in (0..WHOLE).step_by(piece).enumerate() {
                for (lane, &direction) in directions.iter().enumerate() {
                    let slot = (number * directions.len() + lane) % slots;
                    if number * directions.len() + lane >= slots {
                        while !copies.is_done(slot as u32).unwrap() {
                            std::hint::spin_loop();
                        }
                    }
                    // SAFETY: the chunk lies within the staging memory.
                    let chunk = unsafe { base.add(slot * piece) };
                    let staging = std::ptr::NonNull::new(chunk).unwrap();
                    let memory = &memories[usize::from(matches!(direction, GpuDirection::In))];
                    let gpu = memory.base().0 + at as u64;
                    let copy = GpuCopy { direction, gpu, staging, length: piece, after: None };
                    // SAFETY: both ends outlive `wait` below; the slot's last copy is done.
                    unsafe { copies.begin(slot as u32, &copy) }.unwrap();
                }
            }
            copies.wait();
        })
    };
    for (name, directions) in [
        ("from the GPU", &[GpuDirection::Out][..]),
        ("to the GPU", &[GpuDirection::In]),
        ("both ways at once", &[GpuDirection::Out, GpuDirection::In]),
    ] {
        let [plain, staged] =
            best_in_turn([STAGING / 2, CHUNK], |piece| through(directions, piece));
        println!(
            "FACT {name} in page-locked chunks of 256 KiB: {staged}, in pieces of 32 MiB: {plain}"
        );
        assert!(staged.rate() >= MARK * plain.rate(), "{name}: {staged}, plain {plain}");
    }
}
