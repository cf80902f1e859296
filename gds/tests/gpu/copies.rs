//! Costs of the two kinds of staging, each beside what it is held against.
//!
//! Chunks of page-locked host memory carry every byte between the GPU and the host: the mark is
//! four fifths of the rate of plain copies between the two. Chunks of the GPU's own memory are
//! copied to beside a transfer by cuFile, which comes over the GPU's link: the mark is that link's
//! rate, which the copies must not hold up. Against a plain copy within the GPU no mark could be
//! fair: at terabytes a second a chunk takes as long as its launch. That ratio is told, for four
//! sizes.

use tidelog_engine::memory::{
    ChunkPlace, DmaPool, GpuBytes, GpuCopy, GpuDirection, GpuMemory, GpuRange,
};
use tidelog_engine::units::ByteCount;
use tidelog_gds::StagedGpu;
use tidelog_gds::cuda::{DeviceMemory, Event, Stream};

use super::log::plain_copies;
use super::{Cost, cost, gpu};

/// Share of the rate of a plain copy between the GPU and page-locked memory.
const MARK: f64 = 0.8;
/// The stripe unit that pools have if nobody says another.
const CHUNK: usize = 256 << 10;

/// The best of four rounds with pieces of each size, in turn: others may use the machine, and the
/// first round wakes the GPU.
fn best_in_turn(sizes: [usize; 2], mut cost_of: impl FnMut(usize) -> Cost) -> [Cost; 2] {
    let best = |a: Cost, b: Cost| if a.rate() >= b.rate() { a } else { b };
    (0..3).fold(sizes.map(&mut cost_of), |[one, other], _| {
        [best(one, cost_of(sizes[0])), best(other, cost_of(sizes[1]))]
    })
}

#[test]
fn copies_to_chunks_on_the_gpu_are_faster_than_its_link() {
    let test = "copies_to_chunks_on_the_gpu_are_faster_than_its_link";
    const WHOLE: usize = 512 << 20;
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
    let piece = DeviceMemory::new(&gpu, 64 << 20).unwrap();
    let (out, into) = plain_copies(&gpu, &piece, 2 * WHOLE);
    let link = out.rate().max(into.rate());
    for chunk in [CHUNK, 1 << 20, 4 << 20, 16 << 20] {
        let [plain, staged] = best_in_turn([WHOLE, chunk], time);
        println!(
            "FACT copies within the GPU in chunks of {}: {staged}, {:.2} of {:.0} GB/s at once, {:.1} x its link's {link:.1} GB/s",
            ByteCount(chunk as u64),
            staged.rate() / plain.rate(),
            plain.rate(),
            staged.rate() / link,
        );
        if chunk == 1 << 20 {
            assert!(staged.rate() >= link, "{staged}, the link: {out} from the GPU, {into} to it");
        }
    }
}

#[test]
fn copies_to_page_locked_chunks_reach_the_mark() {
    const WHOLE: usize = 1 << 30;
    const STAGING: usize = 64 << 20;
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
                    let chunk = ChunkPlace::Host(std::ptr::NonNull::new(chunk).unwrap());
                    let memory = &memories[usize::from(direction == GpuDirection::Drain)];
                    let address = memory.base().0 + at as u64;
                    let memory = GpuRange { address, length: piece, after: None };
                    let none = GpuBytes::default();
                    let copy = GpuCopy { direction, memory, chunk, zeroes: none, checked: none };
                    // SAFETY: both ends outlive `stop` below; the slot's last copy is done.
                    unsafe { copies.begin(slot as u32, &copy) }.unwrap();
                }
            }
            assert!(copies.stop());
        })
    };
    for (name, directions) in [
        ("from the GPU", &[GpuDirection::Fill][..]),
        ("to the GPU", &[GpuDirection::Drain]),
        ("both ways at once", &[GpuDirection::Fill, GpuDirection::Drain]),
    ] {
        let [plain, staged] =
            best_in_turn([STAGING / 2, CHUNK], |piece| through(directions, piece));
        println!(
            "FACT {name} in page-locked chunks of 256 KiB: {staged}, in pieces of 32 MiB: {plain}"
        );
        assert!(staged.rate() >= MARK * plain.rate(), "{name}: {staged}, plain {plain}");
    }
}
