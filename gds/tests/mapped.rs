//! Memory of a GPU of which parts are unmapped and mapped again, on a GPU whose copies are late.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use tidelog_gds::Gpu;
use tidelog_gds::cuda::VirtualMemory;
use tidelog_tests::machine::FakeGpu;

const MIB: usize = 1 << 20;
const GRANULE: usize = 2 * MIB;

fn memory_of(gpu: &Arc<Gpu>, length: usize) -> VirtualMemory {
    VirtualMemory::new(gpu, length).unwrap().expect("the GPU has as much memory")
}

fn unmap(memory: &mut VirtualMemory, part: Range<usize>) {
    // SAFETY: nothing was launched that uses it but what a test has launched to be found.
    unsafe { memory.unmap(part) }.unwrap();
}

#[test]
fn a_part_goes_and_comes_at_its_address_and_others_keep_their_bytes() {
    let fake = FakeGpu::start(3, 2);
    let gpu = fake.gpu();
    let length = 4 * GRANULE + 5;
    let mut memory = memory_of(&gpu, length);
    assert_eq!((memory.len(), VirtualMemory::granule(&gpu).unwrap()), (5 * GRANULE, GRANULE));
    assert_eq!(fake.count("mapped_bytes"), 5 * GRANULE as u64);
    let base = memory.base().0;
    let written: Vec<u8> = (0..length).map(|at| (at / 4093) as u8).collect();
    assert_eq!(fake.copy_in(&gpu, base, &written), 0);
    let mut read = vec![0; length];
    for part in [0..2 * GRANULE, 2 * GRANULE..3 * GRANULE, 4 * GRANULE..length] {
        unmap(&mut memory, part.clone());
        let gone = part.len().next_multiple_of(GRANULE);
        assert_eq!(fake.count("mapped_bytes"), (5 * GRANULE - gone) as u64);
        assert_ne!(fake.copy_out(&gpu, base + part.start as u64, &mut read[..1]), 0);
        assert!(memory.map(part.clone()).unwrap());
        assert_eq!((memory.base().0, fake.count("mapped_bytes")), (base, 5 * GRANULE as u64));
        assert_eq!(fake.copy_in(&gpu, base + part.start as u64, &written[part]), 0);
        assert_eq!(fake.copy_out(&gpu, base, &mut read), 0);
        assert!(read == written);
    }
    unmap(&mut memory, GRANULE..2 * GRANULE);
    drop(memory);
    assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0));
    fake.assert_lawful();
}

#[test]
fn where_the_gpu_has_no_memory_left_nothing_changes() {
    let fake = FakeGpu::start(3, 0);
    let gpu = fake.gpu();
    let set_capacity: unsafe extern "C" fn(u64) = fake.get("fake_capacity");
    // SAFETY: declared so in mapping.c.
    unsafe { set_capacity(5 * GRANULE as u64) };
    let mut memory = memory_of(&gpu, 4 * GRANULE);
    assert!(VirtualMemory::new(&gpu, 2 * GRANULE).unwrap().is_none());
    assert_eq!(fake.count("mapped_bytes"), 4 * GRANULE as u64);
    unmap(&mut memory, GRANULE..4 * GRANULE);
    let other = memory_of(&gpu, 3 * GRANULE);
    assert!(!memory.map(GRANULE..3 * GRANULE).unwrap());
    assert!(memory.map(GRANULE..2 * GRANULE).unwrap(), "a part of it has room");
    drop(other);
    assert!(memory.map(2 * GRANULE..4 * GRANULE).unwrap());
    drop(memory);
    assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0));
    fake.assert_lawful();
}

#[test]
fn what_the_driver_refuses_is_said_and_leaves_nothing_behind() {
    let fake = FakeGpu::start(3, 0);
    let gpu = fake.gpu();
    for call in ["reserve", "create", "map", "access"] {
        let after = i32::from(call == "create" || call == "map");
        fake.plan(call, after, 999, 1);
        let error = VirtualMemory::new(&gpu, 3 * GRANULE).unwrap_err();
        assert_eq!(error.code, 999, "{call}");
        assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0), "{call}");
        let mut memory = memory_of(&gpu, 3 * GRANULE);
        unmap(&mut memory, 0..2 * GRANULE);
        if call != "reserve" {
            fake.plan(call, after, 999, 1);
            assert_eq!(memory.map(0..2 * GRANULE).unwrap_err().code, 999, "{call}");
        }
        assert_eq!(fake.count("mapped_bytes"), GRANULE as u64, "{call}");
        assert!(memory.map(0..2 * GRANULE).unwrap(), "{call}");
    }
    fake.assert_lawful();
}

#[test]
fn the_fake_finds_what_is_unmapped_while_a_copy_uses_it() {
    let fake = FakeGpu::start(3, 1000);
    let gpu = fake.gpu();
    let mut memory = memory_of(&gpu, 2 * GRANULE);
    let copy: unsafe extern "C" fn(u64, u64, usize, *mut c_void) -> i32 =
        fake.get("cuMemcpyDtoDAsync_v2");
    {
        let _entered = gpu.enter().unwrap();
        let (to, from) = (memory.base().0, memory.base().offset(GRANULE as u64).0);
        fake.hold(true);
        // SAFETY: both ranges lie in the memory, of which the fake finds out below.
        assert_eq!(unsafe { copy(to, from, 4096, std::ptr::null_mut()) }, 0);
    }
    unmap(&mut memory, GRANULE..2 * GRANULE);
    let (count, first) = fake.violations();
    assert!(count == 1 && first.starts_with("memory is unmapped that something"), "{first}");
    let give_up: unsafe extern "C" fn(i32) = fake.get("fake_break");
    // SAFETY: declared so in plan.c: what was launched never happens.
    unsafe { give_up(700) };
}

#[test]
#[should_panic(expected = "a part that is none of its memory's")]
fn a_part_begins_where_a_granule_does() {
    let fake = FakeGpu::start(3, 0);
    let mut memory = memory_of(&fake.gpu(), 2 * GRANULE);
    unmap(&mut memory, MIB..GRANULE);
}
