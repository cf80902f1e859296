//! Guarantees of every data path, asked of each: simulated disks, `io_uring` and threads, the
//! latter two on real files without the page cache.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::sim::{SimDisk, SimDisks};
use super::*;
use crate::memory::peer::tests::region_without_a_device;
use crate::memory::{DmaBuffer, DmaPool};
use crate::units::DeviceIndex;

const SIZE: ByteCount = ByteCount::mib(1);
const BLOCK: u64 = 4096;
const READ_ONLY: OpenMode = OpenMode { buffered: false, exclusive: false, read_only: true };

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/var/tmp/tidelog-path-{}-{number}", std::process::id());
        std::fs::create_dir(&path).unwrap();
        Self(path.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn spec(&self, name: &str) -> DeviceSpec {
        DeviceSpec::new(self.0.join(name))
    }

    fn device(&self, name: &str) -> Device {
        Device::create(&self.spec(name), SIZE, false, OpenMode::default()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kernel(directory: &Directory, choice: PathChoice) -> OpenedPath {
    let devices = vec![directory.device("a"), directory.device("b")];
    Box::new(KernelDevices::new(devices, choice)).open(4).unwrap()
}

/// `io_uring` whose submissions a thread of the kernel takes.
fn with_submission_thread(directory: &Directory) -> OpenedPath {
    let devices = vec![directory.device("a"), directory.device("b")];
    let submission = Some(SubmissionThread { processor: Some(0) });
    let kernel = KernelDevices { submission, ..KernelDevices::new(devices, PathChoice::Uring) };
    Box::new(kernel).open(4).unwrap()
}

/// Runs `check` on each path with two devices of 1 MiB and room for 8 operations.
fn on_each(check: impl Fn(&mut dyn DataPath, &DmaPool)) {
    let directories = [Directory::new(), Directory::new(), Directory::new()];
    let sims = Box::new(SimDisks(vec![SimDisk::new(SIZE), SimDisk::new(SIZE)]));
    let paths = [
        sims.open(4).unwrap(),
        kernel(&directories[0], PathChoice::Posix),
        kernel(&directories[1], PathChoice::Uring),
        with_submission_thread(&directories[2]),
    ];
    for opened in paths {
        let mut path: Box<dyn DataPath> = Box::new(checked::Checked::new(opened.path));
        let pool = DmaPool::new(ByteCount::kib(256), false).unwrap();
        path.register(&pool);
        check(path.as_mut(), &pool);
        assert_eq!(path.in_flight(), 0, "{}: the check waited for everything", name(path.as_ref()));
        drop(path);
        assert!(pool.take(256 << 10).is_some(), "every buffer came back");
    }
}

fn name(path: &dyn DataPath) -> PathKind {
    path.capabilities().kind
}

fn operation(tag: u64, device: u8, extent: Extent, action: Action) -> Operation {
    Operation::new(tag, DeviceIndex(device), extent, action)
}

pub(super) fn collect(path: &mut dyn DataPath, count: usize) -> Vec<Completion> {
    let begun = Instant::now();
    let mut completions = Vec::new();
    while completions.len() < count {
        if path.poll(&mut completions) == 0 {
            path.wait(Some(Duration::from_secs(1))).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(600), "{}: it hangs", name(path));
    }
    completions
}

/// Does one operation and waits for it.
fn run(path: &mut dyn DataPath, device: u8, extent: Extent, action: Action) -> Completion {
    path.submit(operation(1, device, extent, action)).unwrap();
    collect(path, 1).pop().unwrap()
}

fn filled(pool: &DmaPool, length: u64, byte: u8) -> DmaBuffer {
    let mut buffer = pool.take(length as usize).unwrap();
    buffer.fill(byte);
    buffer
}

fn read(path: &mut dyn DataPath, pool: &DmaPool, device: u8, extent: Extent) -> Vec<u8> {
    let action = Action::read(filled(pool, extent.length.0, 0xEE));
    let completion = run(path, device, extent, action);
    completion.result.unwrap();
    completion.into_buffer().unwrap()[..extent.length.0 as usize].to_vec()
}

/// Operations on three blocks of a file, of each of which the kernel has done the first block.
#[cfg(not(loom))]
pub(super) struct HalfDone {
    directory: Directory,
    pub(super) memory: DmaPool,
}

#[cfg(not(loom))]
impl HalfDone {
    pub(super) fn new() -> Self {
        let memory = DmaPool::new(ByteCount::kib(64), false).unwrap();
        Self { directory: Directory::new(), memory }
    }

    pub(super) fn device(&self) -> Device {
        self.directory.device("a")
    }

    /// Goes on with a write and with a read by `go_on`, which is given how many bytes are done, and
    /// returns the buffer.
    pub(super) fn check(&self, fua: bool, mut go_on: impl FnMut(Operation, u32) -> DmaBuffer) {
        let block = BLOCK as usize;
        let blocks = |bytes: [u8; 3]| bytes.map(|byte| [byte; BLOCK as usize]).concat();
        let file = self.directory.0.join("a");
        let mut go_on = |action| {
            let extent = Extent::new(BLOCK, 3 * BLOCK);
            go_on(operation(1, 0, extent, action), BLOCK as u32)
        };
        let mut buffer = filled(&self.memory, 3 * BLOCK, 1);
        buffer[block..].copy_from_slice(&blocks([1, 2, 3])[block..]);
        go_on(Action::write(buffer, fua));
        let written = std::fs::read(&file).unwrap();
        assert!(written[block..4 * block] == blocks([0, 2, 3]), "the first block is done");
        assert!(written[4 * block..].iter().all(|&byte| byte == 0), "nothing is behind it");
        let read = go_on(Action::read(filled(&self.memory, 3 * BLOCK, 9)));
        assert!(read[..] == blocks([9, 2, 3]), "the first block is there");
    }
}

#[test]
fn what_is_written_is_read_back_and_nothing_else_changes() {
    on_each(|path, pool| {
        let extent = Extent::new(2 * BLOCK, 3 * BLOCK);
        for fua in [false, true] {
            let action = Action::write(filled(pool, 3 * BLOCK, 7), fua);
            run(path, 1, extent, action).result.unwrap();
        }
        run(path, 1, Extent::NOTHING, Action::Flush).result.unwrap();
        let whole = read(path, pool, 1, Extent::new(0, 8 * BLOCK));
        let block = BLOCK as usize;
        let expected = [vec![0; 2 * block], vec![7; 3 * block], vec![0; 3 * block]].concat();
        assert!(whole == expected, "{}", name(path));
        assert!(read(path, pool, 0, extent).iter().all(|&byte| byte == 0), "the other device");
    });
}

#[test]
fn a_buffer_longer_than_its_extent_is_used_from_its_start() {
    on_each(|path, pool| {
        let mut buffer = filled(pool, 2 * BLOCK, 1);
        buffer[BLOCK as usize..].fill(2);
        let extent = Extent::new(0, BLOCK);
        run(path, 0, extent, Action::write(buffer, false)).result.unwrap();
        let both = read(path, pool, 0, Extent::new(0, 2 * BLOCK));
        assert!(both[..4096].iter().all(|&byte| byte == 1), "{}", name(path));
        assert!(both[4096..].iter().all(|&byte| byte == 0), "{}", name(path));
    });
}

#[test]
fn as_much_as_the_depth_is_in_flight_and_each_completion_carries_its_tag_and_buffer() {
    on_each(|path, pool| {
        let write = |tag: u64| {
            let buffer = filled(pool, BLOCK, tag as u8);
            let extent = Extent::new((tag / 2) * BLOCK, BLOCK);
            operation(tag, (tag % 2) as u8, extent, Action::write(buffer, false))
        };
        for tag in 0..8 {
            path.submit(write(tag)).unwrap();
        }
        let refused = path.submit(write(8)).unwrap_err();
        assert_eq!(refused.reason, Refusal::Full, "{}", name(path));
        assert_eq!(refused.operation.tag, 8);
        assert_eq!(refused.operation.action.into_buffer().unwrap()[0], 8, "it comes back whole");
        let mut completions = collect(path, 8);
        completions.sort_by_key(|completion| completion.tag);
        for (tag, completion) in completions.into_iter().enumerate() {
            assert_eq!(completion.tag, tag as u64);
            completion.result.unwrap();
            assert_eq!(completion.into_buffer().unwrap()[0], tag as u8);
        }
        path.submit(write(9)).unwrap();
        collect(path, 1)[0].result.unwrap();
    });
}

#[test]
fn zeroes_are_written_without_a_buffer() {
    on_each(|path, pool| {
        let buffer = filled(pool, 4 * BLOCK, 9);
        let action = Action::write(buffer, false);
        run(path, 0, Extent::new(0, 4 * BLOCK), action).result.unwrap();
        let completion = run(path, 0, Extent::new(BLOCK, 2 * BLOCK), Action::WriteZeroes);
        completion.result.unwrap();
        assert!(completion.memory.is_none());
        let bytes = read(path, pool, 0, Extent::new(0, 4 * BLOCK));
        let expected = [[9; 4096], [0; 4096], [0; 4096], [9; 4096]].concat();
        assert!(bytes == expected, "{}", name(path));
    });
}

#[test]
fn operations_that_break_the_rules_come_back_untouched() {
    on_each(|path, pool| {
        let read = |length| Action::read(filled(pool, length, 5));
        let end = SIZE.0;
        let broken = [
            operation(1, 2, Extent::new(0, BLOCK), read(BLOCK)),
            operation(1, 0, Extent::new(512, BLOCK), read(BLOCK)),
            operation(1, 0, Extent::new(0, 512), read(BLOCK)),
            operation(1, 0, Extent::new(0, 0), read(BLOCK)),
            operation(1, 0, Extent::new(end, BLOCK), read(BLOCK)),
            operation(1, 0, Extent::new(u64::MAX - 4095, BLOCK), read(BLOCK)),
            operation(1, 0, Extent::new(0, 2 * BLOCK), read(BLOCK)),
            operation(u64::MAX, 0, Extent::new(0, BLOCK), read(BLOCK)),
            operation(1, 0, Extent::new(0, BLOCK), Action::Flush),
        ];
        for operation in broken {
            let shown = format!("{}: {operation:?}", name(path));
            let Refused { reason, operation } = path.submit(operation).unwrap_err();
            assert!(matches!(reason, Refusal::Invalid(_)), "{shown} was refused as {reason}");
            if let Some(buffer) = operation.action.into_buffer() {
                assert!(buffer.iter().all(|&byte| byte == 5), "{shown}");
            }
        }
    });
}

#[test]
fn another_devices_memory_is_refused_with_the_reason_and_comes_back_untouched() {
    on_each(|path, _| {
        if path.capabilities().kind == PathKind::Sim {
            // It copies such memory as a controller would, and here is none.
            return;
        }
        let region = region_without_a_device(16 << 10);
        let why = path.register_peer(&region).unwrap_err().to_string();
        let kind = name(path);
        assert!(why.contains(&format!("the {kind} data path moves bytes by way of")), "{why}");
        let (extent, buffer) = (Extent::new(0, BLOCK), || region.take(4096).unwrap());
        for action in [Action::read(buffer()), Action::write(buffer(), false)] {
            let refused = path.submit(operation(1, 0, extent, action)).unwrap_err();
            assert!(matches!(refused.reason, Refusal::Invalid(_)), "{kind}: {}", refused.reason);
            assert!(refused.operation.action.into_memory().is_some(), "{kind}");
        }
    });
}

#[test]
fn files_are_never_deallocated() {
    for choice in [PathChoice::Posix, PathChoice::Uring] {
        let directory = Directory::new();
        let mut path = kernel(&directory, choice).path;
        let deallocate = operation(1, 0, Extent::new(0, BLOCK), Action::Deallocate);
        let refused = path.submit(deallocate).unwrap_err();
        assert!(matches!(refused.reason, Refusal::Invalid(_)));
    }
}

#[test]
fn a_file_that_shrank_under_the_pool_fails_the_read_as_short_and_nothing_else() {
    for choice in [PathChoice::Posix, PathChoice::Uring] {
        let directory = Directory::new();
        let mut path = kernel(&directory, choice).path;
        let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(directory.0.join("a")).unwrap();
        file.set_len(2 * BLOCK).unwrap();
        let action = Action::read(filled(&pool, 2 * BLOCK, 0));
        let error =
            run(path.as_mut(), 0, Extent::new(BLOCK, 2 * BLOCK), action).result.unwrap_err();
        assert_eq!(error.status, Status::Short { moved: 4096 }, "{choice:?}");
        read(path.as_mut(), &pool, 0, Extent::new(0, BLOCK));
    }
}

#[test]
fn a_failing_write_latches_its_device_on_all_paths_and_keeps_the_kernels_number() {
    for choice in [PathChoice::Posix, PathChoice::Uring] {
        let directory = Directory::new();
        drop(directory.device("a"));
        // Opened for reading only, so that the kernel refuses the write itself.
        let device = Device::open(&directory.spec("a"), READ_ONLY).unwrap();
        let open = |device| {
            let provider = Box::new(KernelDevices::new(vec![device], choice));
            provider.open(4).unwrap().path
        };
        let (mut other, mut path) = (open(device.try_clone().unwrap()), open(device));
        let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
        let write = || Action::write(filled(&pool, BLOCK, 1), false);
        let error = run(path.as_mut(), 0, Extent::new(0, BLOCK), write()).result.unwrap_err();
        assert_eq!(error.status, Status::Errno(libc::EBADF), "{choice:?}");
        for path in [&mut path, &mut other] {
            let again = path.submit(operation(2, 0, Extent::new(0, BLOCK), write())).unwrap_err();
            assert_eq!(again.reason, Refusal::Latched(error), "{choice:?}");
            read(path.as_mut(), &pool, 0, Extent::new(0, BLOCK));
        }
    }
}

#[test]
fn a_priority_goes_to_the_kernel_or_is_refused() {
    on_each(|path, pool| {
        let priority = IoPriority::new(PriorityClass::Idle, 0);
        let action = Action::write(filled(pool, BLOCK, 1), false);
        let plain = operation(1, 0, Extent::new(0, BLOCK), action);
        let submitted = path.submit(Operation { priority, ..plain });
        if name(path) == PathKind::Uring {
            submitted.unwrap();
            collect(path, 1).pop().unwrap().result.unwrap();
        } else {
            let refused = submitted.unwrap_err();
            assert_eq!(refused.reason, Refusal::Invalid("the data path passes no priority on"));
        }
    });
}

#[test]
fn a_wake_ends_the_wait_of_an_idle_path() {
    on_each(|path, _| {
        for _ in 0..3 {
            let waker = path.waker();
            waker.arm();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                waker.wake();
            });
            let begun = Instant::now();
            path.wait(Some(Duration::from_secs(600))).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(300), "{} slept on", name(path));
            path.waker().disarm();
            thread.join().unwrap();
            path.poll(&mut Vec::new());
        }
    });
}

#[test]
fn the_wait_of_an_idle_path_lasts_its_time() {
    on_each(|path, _| {
        for _ in 0..2 {
            let begun = Instant::now();
            path.waker().arm();
            path.wait(Some(Duration::from_millis(30))).unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(25), "{} came early", name(path));
            path.waker().disarm();
            path.poll(&mut Vec::new());
        }
    });
}

#[test]
fn what_is_in_flight_when_a_path_is_drained_comes_back() {
    on_each(|path, pool| {
        for tag in 0..6 {
            let buffer = filled(pool, BLOCK, 1);
            let action = Action::write(buffer, false);
            path.submit(operation(tag, 0, Extent::new(tag * BLOCK, BLOCK), action)).unwrap();
        }
        path.abort(3);
        let mut completions = Vec::new();
        assert_eq!(path.drain(Instant::now() + Duration::from_secs(600), &mut completions), 0);
        assert_eq!(completions.len(), 6, "{}", name(path));
        for completion in completions {
            // The abort may have come in time or not, of the one operation that it named.
            let aborted = completion.result.is_err_and(|error| error.status.is_aborted());
            let fair = completion.result.is_ok() || (aborted && completion.tag == 3);
            assert!(fair, "{}: {completion:?}", name(path));
            assert!(completion.memory.is_some());
        }
    });
}

#[test]
fn auto_takes_uring_where_it_works_and_otherwise_says_why_not() {
    let directory = Directory::new();
    let opened = kernel(&directory, PathChoice::Auto);
    match name(opened.path.as_ref()) {
        PathKind::Uring => assert!(opened.why_not.is_empty()),
        kind => {
            assert_eq!(kind, PathKind::Posix);
            assert!(opened.why_not[0].contains("uring"), "{:?}", opened.why_not);
        }
    }
}

#[test]
fn bytes_written_by_one_path_are_read_by_another() {
    let directory = Directory::new();
    let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
    let mut path = kernel(&directory, PathChoice::Uring).path;
    let action = Action::write(filled(&pool, BLOCK, 3), false);
    run(path.as_mut(), 0, Extent::new(BLOCK, BLOCK), action).result.unwrap();
    drop(path);
    let device = Device::open(&directory.spec("a"), OpenMode::default()).unwrap();
    let provider = Box::new(KernelDevices::new(vec![device], PathChoice::Posix));
    let mut path = provider.open(1).unwrap().path;
    let bytes = read(path.as_mut(), &pool, 0, Extent::new(BLOCK, BLOCK));
    assert!(bytes.iter().all(|&byte| byte == 3));
}

#[test]
fn memory_beyond_the_memlock_limit_goes_unregistered_and_the_reason_names_the_limit() {
    /// `CAP_IPC_LOCK`, which lifts the limit, as `capset` wants it.
    const CAP_IPC_LOCK: u32 = 1 << 14;
    // Capabilities belong to the thread: the rest of the tests keep theirs.
    let outcome = std::thread::spawn(|| {
        #[repr(C)]
        struct Header(u32, i32);
        let header = Header(0x2008_0522, 0);
        let mut sets = [0_u32; 6];
        // SAFETY: version 3 of the call reads the header and reads or writes six 32-bit words.
        let dropped = unsafe {
            libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr());
            sets[0] &= !CAP_IPC_LOCK;
            sets[1] &= !CAP_IPC_LOCK;
            libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr())
        };
        assert_eq!(dropped, 0, "{}", io::Error::last_os_error());
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call writes one rlimit, which is ours.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) }, 0);
        if limit.rlim_cur > 256 << 20 {
            return None;
        }
        let directory = Directory::new();
        let mut path = kernel(&directory, PathChoice::Uring).path;
        let pool = DmaPool::new(ByteCount(limit.rlim_cur + (4 << 20)), false).unwrap();
        path.register(&pool);
        let action = Action::write(filled(&pool, BLOCK, 3), false);
        run(path.as_mut(), 0, Extent::new(0, BLOCK), action).result.unwrap();
        let bytes = read(path.as_mut(), &pool, 0, Extent::new(0, BLOCK));
        assert!(bytes.iter().all(|&byte| byte == 3), "it works all the same");
        Some((path.capabilities().registered_buffers.clone(), ByteCount(limit.rlim_cur)))
    });
    let Some((feature, limit)) = outcome.join().unwrap() else { return };
    let Feature::Off(why) = feature else { panic!("the kernel let more than {limit} be pinned") };
    assert!(why.contains(&format!("memlock limit of {limit}")), "{why}");
}

#[test]
fn memory_within_the_limits_is_registered() {
    let directory = Directory::new();
    let mut path = kernel(&directory, PathChoice::Uring).path;
    assert!(matches!(path.capabilities().registered_buffers, Feature::Off(_)));
    let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
    path.register(&pool);
    assert_eq!(path.capabilities().registered_buffers, Feature::On);
    assert_eq!(path.capabilities().registered_files, Feature::On);
    let other = DmaPool::new(ByteCount::kib(64), false).unwrap();
    let action = Action::write(filled(&other, BLOCK, 3), false);
    run(path.as_mut(), 0, Extent::new(0, BLOCK), action).result.unwrap();
    let bytes = read(path.as_mut(), &pool, 0, Extent::new(0, BLOCK));
    assert!(bytes.iter().all(|&byte| byte == 3), "memory of another pool works too");
}
