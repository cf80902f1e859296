//! Tensors of a GPU in page-locked host memory, on a GPU whose copies are late.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{GpuDestination, GpuEvent, GpuSource};
use tidelog_engine::schedule::{CompletionQueue, TransferError, TransferOutcome, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::{DeviceMemory, Event, Stream};
use tidelog_gds::{HostTier, HostTierError, TimedCopies};
use tidelog_tests::machine::FakeGpu;
use tidelog_tests::sim::Random;

const MIB: usize = 1 << 20;
/// The number of the tensor that is put by events alone.
const ORDERED: u64 = 50;

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|at| (at * 31 / 7 + at / 4093 + seed) as u8).collect()
}

fn on_gpu(fake: &FakeGpu, bytes: &[u8]) -> DeviceMemory {
    let mut memory = DeviceMemory::new(&fake.gpu(), bytes.len()).unwrap();
    memory.write(0, bytes).unwrap();
    memory
}

fn bytes_of(memory: &DeviceMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

fn id(number: u64) -> TensorId {
    TensorId(number.into())
}

/// A tier, and the queue that tells of its transfers.
struct Stage {
    tier: HostTier,
    ended: CompletionQueue,
}

impl Stage {
    fn new(fake: &FakeGpu, bytes: usize) -> Self {
        let tier = HostTier::open(&fake.gpu(), ByteCount(bytes as u64)).unwrap();
        Self { tier, ended: CompletionQueue::new() }
    }

    fn put(&self, number: u64, memory: &DeviceMemory, after: Option<&Event>) {
        let source = source(memory, after);
        let notify = (self.ended.clone(), number);
        drop(self.tier.put(id(number), source, Urgency::Ahead, notify).unwrap());
    }

    fn get(&self, number: u64, memory: &DeviceMemory, after: Option<&Event>) {
        let after = after.and_then(|event| GpuEvent::from_raw(event.as_raw()));
        // SAFETY: the tests keep memory and event, untouched, until the end is told.
        let to = unsafe { GpuDestination::new(memory.base().0, memory.len(), after, None) };
        let notify = (self.ended.clone(), number);
        drop(self.tier.get(id(number), to, Urgency::Urgent, notify).unwrap());
    }

    /// `released` is recorded behind all that was launched.
    fn put_ordered(&self, memory: &DeviceMemory, after: Option<&Event>, released: &Event) {
        self.try_put_ordered(memory, after, released).unwrap();
    }

    fn try_put_ordered(
        &self,
        memory: &DeviceMemory,
        after: Option<&Event>,
        released: &Event,
    ) -> Result<(), HostTierError> {
        let released = GpuEvent::from_raw(released.as_raw()).unwrap();
        let notify = (self.ended.clone(), ORDERED);
        self.tier.put_ordered(id(ORDERED), &source(memory, after), released, notify)
    }

    fn verify(&self, number: u64, memory: &DeviceMemory) -> bool {
        let notify = (self.ended.clone(), number);
        drop(self.tier.verify(id(number), source(memory, None), notify).unwrap());
        self.next().1.unwrap().matched
    }

    fn next(&self) -> (u64, TransferOutcome) {
        self.ended.wait_pop(Duration::from_secs(60)).expect("a transfer never ended")
    }
}

fn source(memory: &DeviceMemory, after: Option<&Event>) -> GpuSource {
    let after = after.and_then(|event| GpuEvent::from_raw(event.as_raw()));
    // SAFETY: the tests keep memory and event, and write nothing, until the end is told.
    unsafe { GpuSource::new(memory.base().0, memory.len(), after) }
}

/// Checks the time of copies, which is the link's alone: what one waits for in its stream, and the
/// time until the host looks, are none of it. A host that is slow to put them into the stream may
/// add to it, so of several one shows the link.
#[test]
fn the_time_of_copies_is_that_of_the_link() {
    let fake = FakeGpu::start(3, 0);
    let stage = Stage::new(&fake, 4 * MIB);
    let memory = on_gpu(&fake, &pattern(MIB, 7));
    let event = || Event::new(&fake.gpu()).unwrap();
    let (after, released) = (event(), event());
    for rate in [4000, 2000] {
        fake.clock(Duration::from_micros(5), rate);
        let one = Duration::from_micros(5) + Duration::from_nanos(MIB as u64 * 1000 / rate);
        let mut least = [Duration::MAX; 3];
        for _ in 0..20 {
            let out = || stage.tier.stats().out;
            let measured = |link: &dyn Fn() -> TimedCopies, copy: &dyn Fn()| {
                let before = link();
                copy();
                stage.next().1.unwrap();
                let now = link();
                assert_eq!(now.bytes - before.bytes, MIB as u64);
                now.time.saturating_sub(before.time)
            };
            let times = [
                measured(&out, &|| stage.put(1, &memory, Some(&after))),
                measured(&out, &|| stage.put_ordered(&memory, Some(&after), &released)),
                measured(&|| stage.tier.stats().back, &|| stage.get(1, &memory, None)),
            ];
            for (least, time) in least.iter_mut().zip(times) {
                *least = (*least).min(time);
            }
            if least.iter().all(|time| *time < one + one / 50) {
                break;
            }
        }
        for time in least {
            assert!(time.abs_diff(one) < one / 50, "{least:?}, not {one:?}");
        }
    }
}

#[test]
fn tensors_of_any_size_come_back_as_they_left_while_others_come_and_go() {
    for seed in 0..6 {
        let fake = FakeGpu::start(seed, (seed % 4) as u32 * 3);
        let stage = Stage::new(&fake, 2 * MIB);
        let mut random = Random::new(seed);
        let mut held: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for number in 0..120 {
            let bytes = pattern(1 + random.below(600_000) as usize, random.draw());
            let memory = on_gpu(&fake, &bytes);
            let free = 2 * MIB - held.values().map(Vec::len).sum::<usize>();
            if bytes.len() <= free {
                stage.put(number, &memory, None);
                assert_eq!(stage.next().1.unwrap().bytes, bytes.len() as u64);
                held.insert(number, bytes);
            } else {
                let refused = stage.tier.put(
                    id(number),
                    source(&memory, None),
                    Urgency::Ahead,
                    (stage.ended.clone(), number),
                );
                let (wanted, free) = (ByteCount(bytes.len() as u64), ByteCount(free as u64));
                assert_eq!(refused.unwrap_err(), HostTierError::NoRoom { wanted, free });
                let numbers: Vec<u64> = held.keys().copied().collect();
                let one = numbers[random.below(numbers.len() as u64) as usize];
                let bytes = held.remove(&one).unwrap();
                let memory = on_gpu(&fake, &pattern(bytes.len(), 0));
                stage.get(one, &memory, None);
                assert_eq!(stage.next().1.unwrap().bytes, bytes.len() as u64);
                assert!(bytes_of(&memory) == bytes, "seed {seed}: other bytes came back");
                assert!(stage.tier.delete(id(one)) && !stage.tier.delete(id(one)));
            }
            let used = held.values().map(Vec::len).sum::<usize>();
            assert_eq!(stage.tier.stats().used, ByteCount(used as u64));
        }
        let stats = stage.tier.stats();
        assert!(stats.peak > ByteCount::mib(1) && stats.peak <= stats.capacity, "{stats:?}");
        assert!(stats.bytes_out > stats.bytes_back && stats.bytes_back > ByteCount(0), "{stats:?}");
        assert_eq!(fake.count("pageable"), 0, "a copy went by memory that is not page-locked");
        assert_eq!(fake.count("host_bytes"), stats.bytes_out.0 + stats.bytes_back.0);
        drop(stage);
        fake.assert_lawful();
    }
}

#[test]
fn closing_gives_the_page_locked_memory_back() {
    let fake = FakeGpu::start(1, 3);
    let before = fake.count("host_memory");
    let stage = Stage::new(&fake, 3 * MIB);
    assert!(fake.count("host_memory") >= before + 3 * MIB as u64);
    let memory = on_gpu(&fake, &pattern(MIB, 1));
    stage.put(1, &memory, None);
    stage.put(2, &memory, None);
    drop(stage.tier);
    let mut ended = 0;
    while let Some((_, outcome)) = stage.ended.try_pop() {
        assert!(matches!(outcome, Ok(_) | Err(TransferError::Cancelled)), "{outcome:?}");
        ended += 1;
    }
    assert_eq!(ended, 2, "each end is told");
    assert_eq!(fake.count("host_memory"), before);
    drop(memory);
    fake.assert_lawful();
}

#[test]
fn copies_are_ordered_with_kernels_by_events_alone() {
    for seed in 0..6 {
        let fake = FakeGpu::start(seed, 20);
        let stage = Stage::new(&fake, MIB);
        let bytes = pattern(MIB, seed);
        let made = on_gpu(&fake, &bytes);
        let (tensor, seen) = (on_gpu(&fake, &pattern(MIB, 77)), on_gpu(&fake, &pattern(MIB, 78)));
        let kernels = Stream::new(&fake.gpu()).unwrap();
        let [after, free] = [(); 2].map(|()| Event::new(&fake.gpu()).unwrap());
        // SAFETY: all memory and events stay until the stream has been waited for; copies of a
        // stream are in order.
        unsafe { kernels.copy(made.base(), tensor.base(), MIB) }.unwrap();
        after.record(&kernels).unwrap();
        stage.put(1, &tensor, Some(&after));
        stage.next().1.unwrap();
        // What is there now is still looked at when the bytes are asked for again.
        // SAFETY: as above.
        unsafe { kernels.copy(tensor.base(), seen.base(), MIB) }.unwrap();
        free.record(&kernels).unwrap();
        stage.get(1, &tensor, Some(&free));
        stage.next().1.unwrap();
        kernels.synchronize().unwrap();
        assert!(bytes_of(&seen) == bytes && bytes_of(&tensor) == bytes, "seed {seed}");
        drop(stage);
        fake.assert_lawful();
    }
}

#[test]
fn a_check_sees_a_change_and_copies_nothing() {
    let fake = FakeGpu::start(3, 2);
    let stage = Stage::new(&fake, MIB);
    let mut memory = on_gpu(&fake, &pattern(300_001, 5));
    stage.put(1, &memory, None);
    stage.next().1.unwrap();
    let copied = fake.count("host_bytes");
    assert!(stage.verify(1, &memory));
    memory.write(300_000, &[1]).unwrap();
    assert!(!stage.verify(1, &memory));
    assert_eq!(fake.count("host_bytes"), copied);
}

#[test]
fn a_bit_that_was_lost_on_the_way_is_an_error_and_never_another_tensor() {
    let fake = FakeGpu::start(4, 1);
    let stage = Stage::new(&fake, MIB);
    let bytes = pattern(200_000, 9);
    let memory = on_gpu(&fake, &bytes);
    stage.put(1, &memory, None);
    stage.next().1.unwrap();
    let came = on_gpu(&fake, &pattern(200_000, 1));
    fake.plan("flip", 0, 1, 1);
    stage.get(1, &came, None);
    let told = stage.next().1.unwrap_err().to_string();
    assert!(told.contains("bytes 0 to 65536") && told.contains("is damaged"), "{told}");
    // The copy itself was good.
    stage.get(1, &came, None);
    stage.next().1.unwrap();
    assert!(bytes_of(&came) == bytes);
}

#[test]
fn what_the_gpu_refuses_takes_no_room_and_leaves_the_tier_usable() {
    for (call, code) in [("copy_out", 700), ("launch", 719), ("record", 700)] {
        let fake = FakeGpu::start(5, 1);
        let stage = Stage::new(&fake, MIB);
        let bytes = pattern(MIB, 2);
        let memory = on_gpu(&fake, &bytes);
        fake.plan(call, 0, code, 1);
        stage.put(1, &memory, None);
        let told = stage.next().1.unwrap_err().to_string();
        assert!(told.contains(&format!("error {code}")), "{call}: {told}");
        assert_eq!(stage.tier.stats().used, ByteCount(0), "{call}");
        stage.put(2, &memory, None);
        stage.next().1.unwrap();
        drop(stage);
        fake.assert_lawful();
    }
    let fake = FakeGpu::start(5, 1);
    fake.plan("host_alloc", 0, 2, 1);
    let refused = HostTier::open(&fake.gpu(), ByteCount::gib(1)).unwrap_err().to_string();
    assert!(refused.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{refused}");
}

#[test]
fn what_has_not_begun_can_be_cancelled_and_what_is_urgent_overtakes() {
    let fake = FakeGpu::start(6, 0);
    let stage = Stage::new(&fake, 8 * MIB);
    let memory = on_gpu(&fake, &pattern(MIB, 3));
    // The GPU comes to no end, and so at most two begin.
    fake.hold(true);
    let put = |number, urgency| {
        let notify = (stage.ended.clone(), number);
        stage.tier.put(id(number), source(&memory, None), urgency, notify).unwrap()
    };
    let tickets: Vec<_> = (0..6).map(|number| put(number, Urgency::Ahead)).collect();
    tickets[3].cancel();
    tickets[5].expedite();
    assert!(matches!(stage.next(), (3, Err(TransferError::Cancelled))));
    fake.hold(false);
    let mut order: Vec<u64> = (0..5).map(|_| stage.next().0).collect();
    let urgent = order.iter().position(|number| *number == 5).unwrap();
    assert!(urgent <= 2, "{order:?}");
    order.remove(urgent);
    assert_eq!(order, [0, 1, 2, 4]);
    assert_eq!(stage.tier.stats().used, ByteCount::mib(5));
    tickets[0].cancel();
}

#[test]
fn what_is_not_there_is_refused_with_its_reason() {
    let fake = FakeGpu::start(7, 0);
    let stage = Stage::new(&fake, MIB);
    let memory = on_gpu(&fake, &pattern(1000, 3));
    let notify = || (stage.ended.clone(), 9);
    let verify = |memory| stage.tier.verify(id(1), source(memory, None), notify());
    assert_eq!(verify(&memory).unwrap_err(), HostTierError::Unknown);
    stage.put(1, &memory, None);
    stage.next().1.unwrap();
    let other = on_gpu(&fake, &pattern(999, 3));
    let (held, asked) = (ByteCount(1000), ByteCount(999));
    assert_eq!(verify(&other).unwrap_err(), HostTierError::Length { held, asked });
    stage.tier.close();
    assert_eq!(verify(&memory).unwrap_err(), HostTierError::Closed);
}

#[test]
fn checksums_go_before_other_kernels() {
    let fake = FakeGpu::start(12, 1);
    let stage = Stage::new(&fake, MIB);
    // Of each direction, and before and behind the copies that are ordered.
    assert_eq!(fake.count("urgent_streams"), 4);
    drop(stage);
}

#[test]
fn memory_is_used_again_without_the_host_where_that_is_ordered() {
    for seed in 0..8 {
        let fake = FakeGpu::start(seed, 20);
        let stage = Stage::new(&fake, 2 * MIB);
        let [first, second] = [1, 2].map(|number| pattern(MIB, seed + number));
        let (made, next) = (on_gpu(&fake, &first), on_gpu(&fake, &second));
        let (tensor, came) = (on_gpu(&fake, &pattern(MIB, 77)), on_gpu(&fake, &pattern(MIB, 78)));
        let kernels = Stream::new(&fake.gpu()).unwrap();
        let [after, released] = [(); 2].map(|()| Event::new(&fake.gpu()).unwrap());
        // SAFETY: all memory and events stay until the stream has been waited for; copies of a
        // stream are in order.
        unsafe { kernels.copy(made.base(), tensor.base(), MIB) }.unwrap();
        after.record(&kernels).unwrap();
        released.record(&kernels).unwrap();
        stage.put_ordered(&tensor, Some(&after), &released);
        kernels.wait_for(&released).unwrap();
        // SAFETY: as above.
        unsafe { kernels.copy(next.base(), tensor.base(), MIB) }.unwrap();
        // It is on its way, and so is what is asked for.
        stage.get(ORDERED, &came, None);
        for _ in 0..2 {
            assert_eq!(stage.next().1.unwrap().bytes, MIB as u64);
        }
        kernels.synchronize().unwrap();
        assert!(bytes_of(&came) == first && bytes_of(&tensor) == second, "seed {seed}");
        assert_eq!(fake.count("host_bytes"), 2 * MIB as u64, "seed {seed}");
        drop(stage);
        fake.assert_lawful();
    }
}

/// Launches on a stream before something that does not end, and after.
struct Late {
    kernels: Stream,
    before: Event,
    unended: Event,
    all: Event,
}

impl Late {
    /// The launches after are put into the stream by `launch`.
    fn start(fake: &FakeGpu, launch: impl FnOnce(&Stream)) -> Self {
        let kernels = Stream::new(&fake.gpu()).unwrap();
        let [before, unended, all] = [(); 3].map(|()| Event::new(&fake.gpu()).unwrap());
        before.record(&kernels).unwrap();
        unended.record(&kernels).unwrap();
        fake.hold_event(Some(&unended));
        launch(&kernels);
        all.record(&kernels).unwrap();
        Self { kernels, before, unended, all }
    }

    fn end(&self, fake: &FakeGpu) {
        fake.hold_event(None);
        self.kernels.synchronize().unwrap();
        assert!(self.unended.has_happened().unwrap());
    }
}

fn await_bytes(fake: &FakeGpu, bytes: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while fake.count("host_bytes") < bytes as u64 {
        assert!(Instant::now() < until, "it waits for what it does not need");
        std::thread::yield_now();
    }
}

#[test]
fn a_copy_waits_for_no_later_kernel_and_the_last_look_does() {
    let fake = FakeGpu::start(8, 3);
    let stage = Stage::new(&fake, 2 * MIB);
    let bytes = pattern(MIB, 1);
    let memory = on_gpu(&fake, &bytes);
    let later = Late::start(&fake, |_| {});
    stage.put_ordered(&memory, Some(&later.before), &later.all);
    await_bytes(&fake, MIB);
    assert!(stage.ended.try_pop().is_none(), "it was not compared with what may have been written");
    later.end(&fake);
    stage.next().1.unwrap();
    assert!(later.all.has_happened().unwrap());
    drop(stage);
    fake.assert_lawful();
}

#[test]
fn what_a_kernel_wrote_that_nobody_knew_of_is_an_error_and_its_copy_of_no_use() {
    let fake = FakeGpu::start(9, 3);
    let stage = Stage::new(&fake, 3 * MIB);
    let (memory, other) = (on_gpu(&fake, &pattern(MIB, 1)), on_gpu(&fake, &pattern(MIB, 2)));
    // SAFETY: all memory stays until the stream has been waited for.
    let later = Late::start(&fake, |kernels| unsafe {
        kernels.copy(other.base(), memory.base(), MIB).unwrap();
    });
    stage.put_ordered(&memory, Some(&later.before), &later.all);
    await_bytes(&fake, MIB);
    let came = on_gpu(&fake, &pattern(MIB, 3));
    stage.get(ORDERED, &came, None);
    later.end(&fake);
    for _ in 0..2 {
        let told = stage.next().1.unwrap_err().to_string();
        assert!(told.contains("bytes 0 to 65536 were written while"), "{told}");
    }
    assert!(!stage.verify(ORDERED, &memory), "the copy is of older bytes");
    stage.put(ORDERED, &memory, None);
    stage.next().1.unwrap();
    stage.get(ORDERED, &came, None);
    stage.next().1.unwrap();
    assert!(bytes_of(&came) == pattern(MIB, 2));
    drop(stage);
    fake.assert_lawful();
}

#[test]
fn room_that_a_copy_on_its_way_has_is_waited_for() {
    let fake = FakeGpu::start(10, 3);
    let stage = Stage::new(&fake, MIB);
    let memory = on_gpu(&fake, &pattern(MIB, 1));
    let later = Late::start(&fake, |_| {});
    stage.put_ordered(&memory, Some(&later.before), &later.all);
    assert!(stage.tier.delete(id(ORDERED)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            fake.hold_event(None);
        });
        stage.put(1, &memory, None);
    });
    for _ in 0..2 {
        stage.next().1.unwrap();
    }
    later.end(&fake);
    assert!(stage.verify(1, &memory));
    let refused = stage.try_put_ordered(&memory, None, &later.all).unwrap_err();
    assert!(matches!(refused, HostTierError::NoRoom { .. }), "{refused}");
}

#[test]
fn what_the_gpu_refuses_of_an_ordered_put_takes_no_room() {
    for (call, code) in [("copy_out", 700), ("launch", 719), ("record", 700)] {
        let fake = FakeGpu::start(11, 1);
        let stage = Stage::new(&fake, MIB);
        let memory = on_gpu(&fake, &pattern(MIB, 2));
        let released = Event::new(&fake.gpu()).unwrap();
        fake.plan(call, 0, code, 1);
        let told = stage.try_put_ordered(&memory, None, &released).unwrap_err().to_string();
        assert!(told.contains(&format!("error {code}")), "{call}: {told}");
        assert_eq!(stage.tier.stats().used, ByteCount(0), "{call}");
        stage.put_ordered(&memory, None, &released);
        stage.tier.close();
        stage.next().1.unwrap();
        assert!(stage.tier.delete(id(ORDERED)));
        let refused = stage.try_put_ordered(&memory, None, &released).unwrap_err();
        assert_eq!(refused, HostTierError::Closed);
        drop(stage);
        fake.assert_lawful();
    }
}
