//! Arguments that make no sense are errors with a text, and change nothing.

use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};

use tidelog::abi::*;

use tidelog_tests::abi::{
    CallerBehaviour, Folder, Framework, STAGING, last_error, open_pool, pool_options,
    statuses_of_a_stale, try_open_pool_with,
};

const POOL_SIZE: u64 = 64 << 20;

/// No handle was ever given out under these.
const STALE: [u64; 3] = [0, 1 << 40, u64::MAX];
const NOT_UTF8: &[u8] = b"\xFF\xFE\0";

fn assert_refused(status: i32, mentions: &str) {
    assert_eq!(status, TIDE_INVALID_ARGUMENT, "{}", last_error());
    assert!(last_error().contains(mentions), "{:?} does not mention {mentions:?}", last_error());
}

fn not_utf8() -> *const c_char {
    NOT_UTF8.as_ptr().cast()
}

fn session_options(devices: *const c_char) -> tide_session_options {
    tide_session_options {
        size: size_of::<tide_session_options>() as u64,
        devices,
        data_path: c"auto".as_ptr(),
        budget: 4 << 20,
        staging: STAGING,
        host_memory: 0,
        pool_size: POOL_SIZE,
        share: 0,
        buffered: 1,
        reactive: 0,
        policy: 0,
        gpu: 0,
        must_exist: 0,
        share_count: 0,
        sparse: 0,
        degraded: 0,
    }
}

fn open_session(options: &tide_session_options) -> Result<u64, i32> {
    let mut session = 0;
    // SAFETY: the options' texts are null or NUL-terminated; the result is ours.
    let status = unsafe { tide_session_open(options, &raw mut session) };
    if status == TIDE_READY { Ok(session) } else { Err(status) }
}

#[test]
fn options_of_other_versions_are_told_by_their_size() {
    #[repr(C)]
    struct Newer {
        options: tide_session_options,
        more: u64,
    }
    let folder = Folder::new("versions");
    let devices = folder.text();
    let good = || session_options(devices.as_ptr());
    let oldest = std::mem::offset_of!(tide_session_options, must_exist) as u64;
    for size in [0, 7, oldest - 1, 1 << 20, u64::MAX] {
        let status = open_session(&tide_session_options { size, ..good() });
        assert_eq!(status, Err(TIDE_INVALID_ARGUMENT), "{size}");
        assert!(last_error().contains("sizeof(tide_session_options)"), "{}", last_error());
    }
    // What lies behind an older caller's options is not looked at.
    let older = tide_session_options { size: oldest, must_exist: 1, ..good() };
    let session = open_session(&older).unwrap_or_else(|_| panic!("{}", last_error()));
    assert_eq!(tide_session_close(session), TIDE_READY);
    let mut newer = Newer { options: good(), more: 0 };
    newer.options.size = size_of::<Newer>() as u64;
    let open = |newer: &Newer| {
        let mut session = 0;
        // SAFETY: as many bytes are there as `size` says; the texts are NUL-terminated; the result
        // is ours.
        (unsafe { tide_session_open((&raw const *newer).cast(), &raw mut session) }, session)
    };
    let (status, session) = open(&newer);
    assert_eq!(status, TIDE_READY, "{}", last_error());
    assert_eq!(tide_session_close(session), TIDE_READY);
    newer.more = 1;
    assert_refused(open(&newer).0, "newer");
}

#[test]
fn a_pool_that_must_exist_is_not_made_and_one_that_was_made_is_told() {
    let folder = Folder::new("must-exist");
    let devices = folder.text();
    let good = || session_options(devices.as_ptr());
    assert_eq!(
        open_session(&tide_session_options { must_exist: 1, ..good() }),
        Err(TIDE_POOL_FAILED)
    );
    assert!(last_error().contains("mount its file system"), "{}", last_error());
    let options =
        tide_pool_options { must_exist: 1, ..pool_options(&devices, POOL_SIZE, 0, c"auto") };
    // SAFETY: the texts live across the call; there is no arena.
    assert_eq!(unsafe { try_open_pool_with(&options) }, Err(TIDE_POOL_FAILED));
    let directory = devices.to_str().unwrap();
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "nothing was made");
    let made = |options: &tide_session_options| {
        let session = open_session(options).unwrap_or_else(|_| panic!("{}", last_error()));
        let mut text = vec![0_u8; 1 << 16];
        // SAFETY: the buffer has as many bytes.
        let length = unsafe { tide_session_stats(session, text.as_mut_ptr().cast(), text.len()) };
        assert_eq!(tide_session_close(session), TIDE_READY);
        let stats: serde_json::Value = serde_json::from_slice(&text[..length]).unwrap();
        stats["made"].as_str().map(str::to_owned)
    };
    let told = made(&good()).unwrap();
    assert!(told.contains("made a new one") && told.contains(directory), "{told}");
    assert_eq!(made(&tide_session_options { must_exist: 1, ..good() }), None);
}

#[test]
fn the_files_of_a_pool_that_is_made_have_their_space_unless_they_shall_be_sparse() {
    use std::os::unix::fs::MetadataExt;
    for sparse in [0, 1] {
        let folder = Folder::new("sparse");
        let devices = folder.text();
        let stored = || {
            let file = std::path::Path::new(devices.to_str().unwrap()).join("tidelog.device");
            let bytes = file.metadata().unwrap().blocks() * 512;
            std::fs::remove_file(file).unwrap();
            bytes >= POOL_SIZE
        };
        let session = tide_session_options { sparse, ..session_options(devices.as_ptr()) };
        let session = open_session(&session).unwrap_or_else(|_| panic!("{}", last_error()));
        assert_eq!(tide_session_close(session), TIDE_READY);
        assert_eq!(stored(), sparse == 0);
        let pool = tide_pool_options { sparse, ..pool_options(&devices, POOL_SIZE, 0, c"auto") };
        // SAFETY: the texts live across the call; there is no arena.
        let pool = unsafe { try_open_pool_with(&pool) }.unwrap();
        assert_eq!(tide_pool_close(pool), TIDE_READY);
        assert_eq!(stored(), sparse == 0);
    }
}

#[test]
fn a_file_that_was_half_made_is_no_pool_that_is_there() {
    use tidelog_engine::layout::{SUPERBLOCK_OFFSET, UnfinishedFormat};
    for marked in [false, true] {
        let folder = Folder::new("half-made");
        let devices = folder.text();
        let path = std::path::Path::new(devices.to_str().unwrap()).join("tidelog.device");
        let mut left = vec![0; 9 << 20];
        if marked {
            let mark = UnfinishedFormat { pool: 7 }.encode();
            left[SUPERBLOCK_OFFSET as usize..][..mark.len()].copy_from_slice(&mark);
        }
        std::fs::write(&path, left).unwrap();
        assert_eq!(tide_pool_close(open_pool(&folder, POOL_SIZE)), TIDE_READY);
        assert_eq!(path.metadata().unwrap().len(), POOL_SIZE);
    }
    // What anybody else has there is not made a pool of.
    let folder = Folder::new("not-half-made");
    let devices = folder.text();
    std::fs::write(std::path::Path::new(devices.to_str().unwrap()).join("tidelog.device"), "notes")
        .unwrap();
    let options = pool_options(&devices, POOL_SIZE, 0, c"auto");
    // SAFETY: the texts live across the call; there is no arena.
    assert_eq!(unsafe { try_open_pool_with(&options) }, Err(TIDE_POOL_FAILED));
}

#[test]
fn flags_that_this_version_does_not_know_are_refused_by_their_bits() {
    let folder = Folder::new("flags");
    let pool = open_pool(&folder, POOL_SIZE);
    let (mut bytes, mut ticket) = ([1_u8; 64], 0);
    let memory = bytes.as_mut_ptr();
    for flags in [4, 1 << 31, u32::MAX] {
        let named = |known: u32| format!("{:#x}", flags & !known);
        // SAFETY: the memory outlives the calls, which are refused.
        unsafe {
            let put = tide_put(pool, c"x".as_ptr(), memory.cast(), 64, flags, &raw mut ticket);
            assert_refused(put, &named(TIDE_URGENT | TIDE_AS_DURABLE));
            let get = tide_get(pool, c"x".as_ptr(), 0, memory.cast(), 64, flags, &raw mut ticket);
            assert_refused(get, &named(TIDE_URGENT));
        }
    }
    assert_eq!(tide_pool_close(pool), TIDE_READY);
}

#[test]
fn a_stale_handle_is_an_error_everywhere() {
    for handle in STALE {
        assert!(statuses_of_a_stale(handle).iter().all(|&status| status == TIDE_STALE_HANDLE));
        assert!(last_error().contains("session") && last_error().contains(&handle.to_string()));
        assert!(tide_session_attention(handle).is_null());
        // SAFETY: null is allowed.
        assert_eq!(unsafe { tide_session_stats(handle, null_mut(), 0) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { tide_session_simulate(handle, null_mut(), 0) }, 0);
    }
}

#[test]
fn handles_of_one_kind_are_stale_for_another() {
    let folder = Folder::new("kinds");
    let pool = open_pool(&folder, POOL_SIZE);
    assert_eq!(tide_session_settle(pool), TIDE_STALE_HANDLE);
    assert_eq!(tide_ticket_wait(pool, 0), TIDE_STALE_HANDLE);
    assert_eq!(tide_batch_commit(pool), TIDE_STALE_HANDLE);
    assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
    assert_eq!(tide_pool_close(pool), TIDE_STALE_HANDLE);
}

#[test]
fn sessions_do_not_open_with_senseless_options() {
    let folder = Folder::new("options");
    let devices = folder.text();
    // SAFETY: null is what the function must withstand.
    assert_refused(unsafe { tide_session_open(null(), null_mut()) }, "options");
    assert_eq!(open_session(&session_options(null())), Err(TIDE_INVALID_ARGUMENT));
    assert!(last_error().contains("devices"));
    assert_eq!(open_session(&session_options(not_utf8())), Err(TIDE_INVALID_ARGUMENT));
    assert!(last_error().contains("UTF-8"));
    let good = || session_options(devices.as_ptr());
    let no_path = tide_session_options { data_path: c"telepathy".as_ptr(), ..good() };
    assert_eq!(open_session(&no_path), Err(TIDE_POOL_FAILED));
    assert!(last_error().contains("telepathy"));
    let no_room = tide_session_options { budget: STAGING, ..good() };
    assert_eq!(open_session(&no_room), Err(TIDE_BUDGET_EXCEEDED));
    for (staging, pool_size) in
        [(0, 64 << 20), (1, 64 << 20), (u64::MAX - 1, 64 << 20), (STAGING, 1), (STAGING, u64::MAX)]
    {
        let fresh = Folder::new("options-fresh");
        let devices = fresh.text();
        let (devices, budget) = (devices.as_ptr(), u64::MAX);
        let options = tide_session_options { devices, budget, staging, pool_size, ..good() };
        let status = open_session(&options).expect_err("sizes make no sense");
        let expected = [TIDE_POOL_FAILED, TIDE_INVALID_ARGUMENT];
        assert!(expected.contains(&status), "{staging}, {pool_size}: {status}: {}", last_error());
    }
    let session = open_session(&good()).unwrap_or_else(|_| panic!("{}", last_error()));
    assert_eq!(tide_session_close(session), TIDE_READY);
    let no_gpu = tide_session_options { host_memory: 1 << 20, ..good() };
    assert_eq!(open_session(&no_gpu), Err(TIDE_INVALID_ARGUMENT));
    assert!(
        last_error().contains("host_memory of 1 MiB is for the tensors of a GPU"),
        "{}",
        last_error()
    );
    let no_share = tide_session_options { share: 7, ..good() };
    assert_eq!(open_session(&no_share), Err(TIDE_POOL_FAILED));
    assert!(last_error().contains("share"));
    // A result that cannot be handed out leaves nothing open: the share is free.
    // SAFETY: the options are right; the null result is what the function must withstand.
    assert_refused(unsafe { tide_session_open(&good(), null_mut()) }, "session");
    let session = open_session(&good()).unwrap_or_else(|_| panic!("{}", last_error()));
    // Sessions of one process share it, on the path that the first one opened.
    let second = open_session(&good()).unwrap_or_else(|_| panic!("{}", last_error()));
    let other_path = ["uring", "posix"].map(|path| {
        let path = CString::new(path).unwrap();
        open_session(&tide_session_options { data_path: path.as_ptr(), ..good() })
    });
    let same: Vec<u64> = other_path.iter().filter_map(|opened| opened.ok()).collect();
    assert_eq!(same.len(), 1, "one of the two is the path in use, the other is not to be had");
    assert!(other_path.contains(&Err(TIDE_POOL_FAILED)));
    assert_eq!(tide_session_close(same[0]), TIDE_READY);
    assert_eq!(tide_session_close(session), TIDE_READY);
    assert_eq!(tide_session_settle(second), TIDE_READY, "{}", last_error());
    assert_eq!(tide_session_close(second), TIDE_READY);
    // The last one gave it back: a pool of its own can have it.
    assert_eq!(tide_pool_close_within(open_pool(&folder, POOL_SIZE), 60_000), TIDE_READY);
}

#[test]
fn senseless_arguments_of_a_session_are_refused_and_change_nothing() {
    let mut framework = Framework::open("senseless", 4 << 20, 1, CallerBehaviour::default());
    let session = framework.session;
    framework.make(3, 4096, None);
    framework.sync();
    let birth = |storage, size| tide_birth { storage, size, place: u64::MAX };
    let born = |storage, size| {
        let births = [birth(storage, size)];
        // SAFETY: one item, as it says.
        unsafe { tide_session_sync(session, births.as_ptr(), 1, null(), 0) }
    };
    assert_refused(born(u64::MAX, 1), "too large");
    assert_refused(born((1 << 33) + 3, 1), "too large");
    assert_refused(born(u64::from(TIDE_MODIFIES), 1), "too large");
    assert_refused(born(5, u64::MAX), "no memory");
    assert_refused(tide_session_resized(session, 3, u64::MAX), "no memory");
    assert_refused(tide_session_resized(session, 99, 1), "not known");
    assert_refused(tide_session_modified(session, 99), "not known");
    assert_refused(tide_session_pin(session, 99, 1), "not known");
    assert_refused(tide_session_evict(session, 99), "not known");
    assert_refused(tide_session_step(session, 3), "step mark 3");
    // SAFETY: null pointers and impossible counts are what the functions must withstand: they are
    // refused before anything is read. Texts are NUL-terminated.
    unsafe {
        assert_refused(tide_session_sync(session, null(), 1, null(), 0), "births");
        assert_refused(tide_session_sync(session, null(), 0, null(), 7), "deaths");
        let one = birth(9, 1);
        assert_refused(tide_session_sync(session, &raw const one, usize::MAX, null(), 0), "births");
        let crooked = (&raw const one).byte_add(1);
        assert_refused(tide_session_sync(session, crooked, 1, null(), 0), "misaligned");
        assert_refused(tide_session_name(session, 3, 1, null()), "name");
        assert_refused(tide_session_name(session, 3, 1, not_utf8()), "UTF-8");
        assert_refused(tide_session_name(session, 3, 6, c"x".as_ptr()), "kind 6");
        assert_refused(tide_session_op_begin(session, 0, 0, null(), null(), 0, 0), "name");
        let name = c"op".as_ptr();
        assert_refused(tide_session_op_begin(session, 0, 0, name, null(), 4, 0), "uses");
        let word = 3_u32;
        let uses = &raw const word;
        assert_refused(tide_session_op_begin(session, 0, 0, name, uses, usize::MAX, 0), "uses");
        assert_refused(tide_session_plan(session, null_mut(), null_mut()), "due");
        assert_refused(tide_session_report(session, null()), "path");
        assert_refused(tide_session_report(session, c"".as_ptr()), "report");
        assert_refused(tide_session_trace(session, null()), "path");
        assert_refused(tide_session_trace(session, c"x".as_ptr()), "no trace yet");
        assert_refused(tide_session_action_done(session, 99, 16, null_mut()), "never handed out");
        let (none, event) = (null_mut(), (&raw const one).cast_mut().cast());
        assert_refused(tide_session_allocated(session, 99, 16, none, none), "never handed out");
        assert_refused(tide_session_allocated(session, 99, 16, none, event), "landed is an event");
        // No storage of such a number: passed over.
        let unknown = u32::MAX >> 1;
        let begun = tide_session_op_begin(session, -1, 0, name, &raw const unknown, 1, 0);
        assert_eq!(begun, TIDE_READY);
        // Outputs that no memory holds are a refusal with figures, not an overflow.
        let begun = tide_session_op_begin(session, -1, 0, name, uses, 1, u64::MAX);
        assert_eq!(begun, TIDE_BUDGET_EXCEEDED, "{}", last_error());
    }
    framework.end();
}

#[test]
fn a_request_outlives_a_caller_who_has_no_place_for_it() {
    let mut framework = Framework::open("no-place", 4 << 20, 2, CallerBehaviour::default());
    framework.make(0, 4096, None);
    framework.sync();
    assert_eq!(tide_session_evict(framework.session, 0), TIDE_ACTION);
    // SAFETY: null is what the function must withstand.
    assert_refused(unsafe { tide_session_next_action(framework.session, null_mut()) }, "action");
    assert_eq!(framework.drive(TIDE_ACTION), TIDE_READY);
    framework.end();
}

#[test]
fn senseless_arguments_of_a_pool_are_refused_and_start_no_transfer() {
    let folder = Folder::new("senseless-pool");
    let pool = open_pool(&folder, POOL_SIZE);
    let (mut ticket, mut bytes) = (0_u64, [7_u8; 16]);
    let memory = bytes.as_mut_ptr();
    let long_name = CString::new("n".repeat(1 << 20)).unwrap();
    // SAFETY: null pointers and impossible lengths are what the functions must withstand: they are
    // refused before anything is read or written. Texts are NUL-terminated.
    unsafe {
        let (name, place) = (c"x".as_ptr(), &raw mut ticket);
        let read = memory.cast_const().cast();
        assert_refused(tide_put(pool, name, read, u64::MAX, 0, place), "length");
        assert_refused(tide_put(pool, name, read, 1 << 63, 0, place), "length");
        assert_refused(tide_put(pool, name, read, 16, 0, null_mut()), "ticket");
        assert_refused(tide_put(pool, not_utf8(), read, 16, 0, place), "UTF-8");
        assert_eq!(tide_put(pool, name, read, 1 << 50, 0, place), TIDE_FULL);
        assert!(last_error().contains("full"), "{}", last_error());
        assert_refused(tide_get(pool, name, 0, memory.cast(), u64::MAX, 0, place), "length");
        assert_refused(tide_get(pool, name, 2, memory.cast(), u64::MAX, 0, place), "overflow");
        assert_refused(tide_get(pool, name, 0, null_mut(), 1, 0, place), "address");
        assert_refused(tide_get(pool, name, 0, memory.cast(), 1, 0, null_mut()), "ticket");
        assert_refused(tide_length(pool, null(), null_mut()), "name");
        let mut batch = 0;
        assert_refused(tide_batch_begin(pool, null_mut()), "batch");
        assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
        assert_refused(tide_batch_put(batch, name, null(), 1), "address");
        assert_refused(tide_batch_put(batch, name, read, u64::MAX), "length");
        for length in [POOL_SIZE, 1 << 50] {
            assert_eq!(tide_batch_put(batch, name, read, length), TIDE_FULL);
            assert!(last_error().contains("full"), "{}", last_error());
        }
        assert_eq!(tide_batch_put(batch, long_name.as_ptr(), read, 16), TIDE_POOL_FAILED);
        assert_eq!(tide_batch_delete(batch, c"none".as_ptr()), TIDE_NOT_FOUND);
        assert_eq!(tide_batch_commit(batch), TIDE_READY, "an empty batch: {}", last_error());
        // An open batch or ticket keeps no pool open, and is an error afterwards, not a crash.
        assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
        assert_eq!(tide_put(pool, name, read, 16, 0, place), TIDE_READY);
        assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
        assert_eq!(tide_batch_put(batch, name, read, 16), TIDE_POOL_FAILED);
        assert!(tide_batch_commit(batch) <= TIDE_READY);
        let ended = tide_ticket_wait(ticket, 10_000);
        assert!([TIDE_READY, TIDE_CANCELLED].contains(&ended), "{ended}: {}", last_error());
        assert_eq!(tide_ticket_released(ticket), 1);
    }
    assert_eq!(bytes, [7; 16]);
}
