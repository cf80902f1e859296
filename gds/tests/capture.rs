//! A program captures a CUDA graph, on the thread that uses a pool, while the pool goes on. What is
//! unsafe in a capture is forbidden to all threads that have not said otherwise, and spoils it.
#![allow(unsafe_code)]

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use common::tensors::{WAYS, bytes_of, get, id, on_gpu, pattern, pool, put, source};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{GpuDestination, GpuSource};
use tidelog_engine::schedule::{CompletionQueue, Urgency};
use tidelog_engine::units::ByteCount;
use tidelog_gds::HostTier;
use tidelog_gds::cuda::DeviceMemory;
use tidelog_tests::machine::FakeGpu;

const GLOBAL: c_int = 0;
const INVALIDATED: c_int = 901;

/// A capture in CUDA's default mode, of a stream that nobody else has.
struct Capture<'a> {
    fake: &'a FakeGpu,
    stream: *mut c_void,
}

impl<'a> Capture<'a> {
    fn begin(fake: &'a FakeGpu) -> Self {
        type Create = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Begin = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        fake.go_to(0);
        let mut stream = ptr::null_mut();
        // SAFETY: declared so in cuda.c and capture.c; the handle is written to a place of ours.
        unsafe {
            assert_eq!(fake.get::<Create>("cuStreamCreate")(&raw mut stream, 0), 0);
            assert_eq!(fake.get::<Begin>("cuStreamBeginCapture_v2")(stream, GLOBAL), 0);
        }
        Self { fake, stream }
    }

    /// Returns the result of ending the capture.
    fn end(self) -> c_int {
        type End = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
        let mut graph = ptr::null_mut();
        // SAFETY: declared so in capture.c; the stream was made in `begin`.
        unsafe { self.fake.get::<End>("cuStreamEndCapture")(self.stream, &raw mut graph) }
    }
}

#[test]
fn a_capture_goes_on_beside_transfers_and_they_beside_it() {
    for (seed, way) in WAYS.into_iter().enumerate() {
        let fake = FakeGpu::start(seed as u64, 3);
        let (_media, pool) = pool(&fake, 4, way);
        let bytes = pattern(100_000, seed);
        let (tensor, back) = (on_gpu(&fake, &bytes), on_gpu(&fake, &vec![0; bytes.len()]));
        let capture = Capture::begin(&fake);
        put(&pool, &tensor, None).wait().unwrap();
        get(&pool, 0, &back, None, None).wait().unwrap();
        assert!(pool.verify(id(), source(&back, None), None).unwrap().wait().unwrap().matched);
        pool.close().unwrap();
        assert_eq!(capture.end(), 0, "{way:?}");
        assert!(bytes_of(&back) == bytes);
        fake.assert_lawful();
    }
}

#[test]
fn a_capture_goes_on_beside_host_memory() {
    let fake = FakeGpu::start(1, 3);
    let tier = HostTier::open(&fake.gpu(), ByteCount::mib(8)).unwrap();
    // So large that it needs more room for checksums than there is at first.
    let bytes = pattern(6 << 20, 1);
    let (tensor, back) = (on_gpu(&fake, &bytes), on_gpu(&fake, &vec![0; bytes.len()]));
    let (queue, name) = (CompletionQueue::new(), TensorId::from_name("a"));
    let capture = Capture::begin(&fake);
    let of = |memory: &DeviceMemory| (memory.base().0, memory.len());
    let ((from, length), (to, _)) = (of(&tensor), of(&back));
    // SAFETY: both stay, untouched, until the ends were told.
    let (source, destination) = unsafe {
        (GpuSource::new(from, length, None), GpuDestination::new(to, length, None, None))
    };
    tier.put(name, source, Urgency::Urgent, (queue.clone(), 1)).unwrap();
    queue.wait_pop(Duration::from_secs(60)).unwrap().1.unwrap();
    tier.get(name, destination, Urgency::Urgent, (queue.clone(), 2)).unwrap();
    queue.wait_pop(Duration::from_secs(60)).unwrap().1.unwrap();
    tier.close();
    assert_eq!(capture.end(), 0);
    assert!(bytes_of(&back) == bytes);
    fake.assert_lawful();
}

/// Counter-test.
#[test]
fn what_is_unsafe_spoils_a_capture() {
    type Synchronize = unsafe extern "C" fn() -> c_int;
    let fake = FakeGpu::start(1, 0);
    let capture = Capture::begin(&fake);
    // SAFETY: declared so in cuda.c.
    assert_ne!(unsafe { fake.get::<Synchronize>("cuCtxSynchronize")() }, 0);
    assert_eq!(capture.end(), INVALIDATED);
}

/// Checks that no call waits for the GPU by itself: an op beside them would be held up.
#[test]
fn no_call_of_a_transfer_waits_for_the_gpu_by_itself() {
    for (seed, way) in WAYS.into_iter().enumerate() {
        let fake = FakeGpu::start(seed as u64, 3);
        let (_media, pool) = pool(&fake, 4, way);
        let bytes = pattern(100_000, seed);
        let (tensor, back) = (on_gpu(&fake, &bytes), on_gpu(&fake, &vec![0; bytes.len()]));
        let before = fake.count("waits");
        for _ in 0..4 {
            put(&pool, &tensor, None).wait().unwrap();
            get(&pool, 0, &back, None, None).wait().unwrap();
            assert!(pool.verify(id(), source(&back, None), None).unwrap().wait().unwrap().matched);
        }
        assert_eq!(fake.count("waits"), before, "{way:?}");
        pool.close().unwrap();
    }
}
