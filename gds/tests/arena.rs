//! Memory of a GPU that is mapped where an arena says, on a GPU whose copies are late.
#![allow(unsafe_code)]

use std::sync::Arc;

use tidelog_gds::Gpu;
use tidelog_gds::cuda::ArenaMemory;
use tidelog_tests::machine::FakeGpu;

const GRANULE: usize = 2 << 20;

fn arena_of(gpu: &Arc<Gpu>, memory: usize) -> ArenaMemory {
    let mut arena = ArenaMemory::new(gpu, 2 * memory).unwrap();
    assert_eq!(arena.make(0..memory).unwrap(), Some(memory));
    arena
}

fn remap(memory: &mut ArenaMemory, from: usize, to: usize, count: usize) -> usize {
    // SAFETY: nothing was launched that uses it but what a test has launched to be found.
    unsafe { memory.remap(from, to, count) }.unwrap()
}

#[test]
fn granules_are_mapped_elsewhere_and_others_keep_their_bytes() {
    let fake = FakeGpu::start(3, 2);
    let gpu = fake.gpu();
    let mut memory = arena_of(&gpu, 4);
    assert_eq!((memory.addresses(), memory.made()), (8, 4));
    let kept: Vec<u8> = (0..2 * GRANULE).map(|at| (at / 4093) as u8).collect();
    assert_eq!(fake.copy_in(&gpu, memory.address(1).0, &kept), 0);
    assert_eq!(remap(&mut memory, 0, 4, 1), 1);
    assert_eq!(remap(&mut memory, 3, 5, 1), 1);
    assert_eq!(fake.count("mapped_bytes"), 4 * GRANULE as u64, "it is the same memory");
    assert_ne!(fake.copy_out(&gpu, memory.address(0).0, &mut [0]), 0, "nothing is there");
    let written = vec![7; 2 * GRANULE];
    assert_eq!(fake.copy_in(&gpu, memory.address(4).0, &written), 0);
    let mut read = vec![0; 2 * GRANULE];
    for (at, expected) in [(1, &kept), (4, &written)] {
        assert_eq!(fake.copy_out(&gpu, memory.address(at).0, &mut read), 0);
        assert!(read == *expected, "at granule {at}");
    }
    memory.reserve().unwrap();
    assert_eq!(remap(&mut memory, 4, 15, 1), 1);
    assert_eq!(fake.copy_in(&gpu, memory.address(15).0, &written[..GRANULE]), 0);
    drop(memory);
    assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0));
    fake.assert_lawful();
}

#[test]
fn memory_is_made_when_it_is_wanted_and_goes_when_it_is_not() {
    let fake = FakeGpu::start(3, 0);
    let gpu = fake.gpu();
    let mut memory = ArenaMemory::new(&gpu, 8).unwrap();
    assert_eq!(fake.count("mapped_bytes"), 0);
    assert_eq!(memory.make(2..4).unwrap(), Some(2));
    assert_eq!(memory.make(1..5).unwrap(), Some(2), "two of them were there");
    assert_eq!(memory.make(1..5).unwrap(), Some(0));
    assert_eq!(remap(&mut memory, 4, 6, 2), 1, "there is one");
    // SAFETY: nothing was launched.
    unsafe { memory.release(0..3) }.unwrap();
    assert_eq!((memory.made(), fake.count("mapped_bytes")), (2, 2 * GRANULE as u64));
    assert_eq!(fake.copy_in(&gpu, memory.address(6).0, &vec![1; GRANULE]), 0);
    drop(memory);
    assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0));
    fake.assert_lawful();
}

#[test]
fn where_the_gpu_has_less_memory_what_there_is_stays() {
    let fake = FakeGpu::start(3, 0);
    let gpu = fake.gpu();
    let set_capacity: unsafe extern "C" fn(u64) = fake.get("fake_capacity");
    // SAFETY: declared so in mapping.c.
    unsafe { set_capacity(5 * GRANULE as u64) };
    let mut memory = ArenaMemory::new(&gpu, 12).unwrap();
    assert_eq!(memory.make(0..6).unwrap(), None);
    assert_eq!(memory.made(), 5);
    assert_eq!(fake.copy_in(&gpu, memory.address(4).0, &vec![1; GRANULE]), 0);
    // SAFETY: as above.
    unsafe { set_capacity(6 * GRANULE as u64) };
    assert_eq!(memory.make(0..6).unwrap(), Some(1));
    drop(memory);
    assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0));
    fake.assert_lawful();
}

#[test]
fn what_the_driver_refuses_is_said_and_leaves_nothing_behind() {
    let fake = FakeGpu::start(3, 0);
    let gpu = fake.gpu();
    fake.plan("reserve", 0, 999, 1);
    assert_eq!(ArenaMemory::new(&gpu, 6).unwrap_err().code, 999);
    for call in ["create", "map", "access"] {
        let mut memory = ArenaMemory::new(&gpu, 6).unwrap();
        fake.plan(call, i32::from(call != "access"), 999, 1);
        assert_eq!(memory.make(0..3).unwrap_err().code, 999, "{call}");
        drop(memory);
        assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0), "{call}");
    }
    for call in ["unmap", "map", "access"] {
        let mut memory = arena_of(&gpu, 3);
        fake.plan(call, 0, 999, 1);
        // SAFETY: nothing uses it.
        let error = unsafe { memory.remap(0, 3, 2) }.unwrap_err();
        assert_eq!(error.code, 999, "{call}");
        drop(memory);
        assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0), "{call}");
    }
    fake.assert_lawful();
}
