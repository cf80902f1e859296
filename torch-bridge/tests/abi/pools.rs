//! Pools as a whole: their space, verification, and opening one for reading only.

use std::ptr::null_mut;

use tidelog::abi::*;

use tidelog_tests::abi::{Folder, last_error, open_pool, pool_options, try_open_pool_with};

const POOL_SIZE: u64 = 64 << 20;

fn ok(status: i32) {
    assert_eq!(status, TIDE_READY, "{}", last_error());
}

fn space(pool: u64) -> (u64, u64) {
    let (mut capacity, mut free) = (0, 0);
    // SAFETY: the results are ours.
    ok(unsafe { tide_pool_capacity(pool, &raw mut capacity, &raw mut free) });
    (capacity, free)
}

fn commit(pool: u64, bytes: &[u8]) {
    let mut batch = 0;
    // SAFETY: the results are ours, the bytes as many as is said.
    unsafe {
        ok(tide_batch_begin(pool, &raw mut batch));
        let (memory, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
        ok(tide_batch_put(batch, c"layer.0".as_ptr(), memory, length));
    }
    ok(tide_batch_commit(batch));
}

fn open_to_read(folder: &Folder) -> Result<u64, i32> {
    let devices = folder.text();
    let options =
        tide_pool_options { read_only: 1, ..pool_options(&devices, POOL_SIZE, 0, c"auto") };
    // SAFETY: the texts live across the call; there is no arena.
    unsafe { try_open_pool_with(&options) }
}

#[test]
fn capacity_and_what_is_free_of_it_are_numbers() {
    let folder = Folder::new("capacity");
    let pool = open_pool(&folder, POOL_SIZE);
    let (capacity, free) = space(pool);
    assert!(capacity > POOL_SIZE / 2 && free <= capacity && free > capacity / 2);
    commit(pool, &vec![3; 10 << 20]);
    let (same, less) = space(pool);
    assert_eq!(same, capacity);
    assert!(less + (10 << 20) <= free, "{less} of {free}");
    let mut only = 0;
    // SAFETY: null is allowed; the result is ours.
    unsafe {
        ok(tide_pool_capacity(pool, null_mut(), &raw mut only));
        assert_eq!(only, less);
        ok(tide_pool_capacity(pool, null_mut(), null_mut()));
    }
    ok(tide_pool_close(pool));
}

#[test]
fn verification_is_of_any_tensor_and_names_one_that_is_not_there() {
    let folder = Folder::new("verify");
    let pool = open_pool(&folder, POOL_SIZE);
    let (bytes, mut ticket, mut damaged) = (vec![3; 100_000], 0, 7);
    commit(pool, &bytes);
    // SAFETY: names are NUL-terminated, results ours, and the bytes outlive the transfer.
    unsafe {
        let (memory, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
        ok(tide_put(pool, c"scratch".as_ptr(), memory, length, 0, &raw mut ticket));
        ok(tide_ticket_wait(ticket, TIDE_FOREVER));
        ok(tide_verify(pool, c"layer.0".as_ptr()));
        ok(tide_verify(pool, c"scratch".as_ptr()));
        assert_eq!(tide_verify(pool, c"layer.1".as_ptr()), TIDE_NOT_FOUND);
        assert!(last_error().contains("\"layer.1\""), "{}", last_error());
        ok(tide_pool_scrub(pool, &raw mut damaged));
    }
    assert_eq!(damaged, 0);
    ok(tide_ticket_drop(ticket));
    ok(tide_pool_close(pool));
}

#[test]
fn a_pool_that_is_open_for_reading_reads_and_says_so_of_all_else() {
    let folder = Folder::new("read-only");
    assert_eq!(open_to_read(&folder), Err(TIDE_POOL_FAILED), "{}", last_error());
    let entries = || std::fs::read_dir(&folder.0).unwrap().count();
    assert_eq!(entries(), 0, "nothing was made");
    let (writer, bytes) = (open_pool(&folder, POOL_SIZE), vec![3; 100_000]);
    commit(writer, &bytes);
    assert_eq!(open_to_read(&folder), Err(TIDE_HELD), "{}", last_error());
    ok(tide_pool_close(writer));

    let device = folder.0.join("tidelog.device");
    let before = std::fs::read(&device).unwrap();
    let pools =
        [(); 2].map(|()| open_to_read(&folder).unwrap_or_else(|_| panic!("{}", last_error())));
    let devices = folder.text();
    // SAFETY: the texts live across the call; there is no arena.
    let writer = unsafe { try_open_pool_with(&pool_options(&devices, POOL_SIZE, 0, c"auto")) };
    assert_eq!(writer, Err(TIDE_HELD));
    for pool in pools {
        let (mut memory, mut ticket, mut batch) = (vec![0; 100_000], 0, 0);
        // SAFETY: names are NUL-terminated, results ours, and nobody touches the memory before the
        // transfers have ended.
        unsafe {
            let (name, place) = (c"layer.0".as_ptr(), &raw mut ticket);
            ok(tide_get(pool, name, 0, memory.as_mut_ptr().cast(), 100_000, 0, place));
            ok(tide_ticket_wait(ticket, TIDE_FOREVER));
            ok(tide_verify(pool, name));
            let refused = |status: i32| {
                assert_eq!(status, TIDE_READ_ONLY);
                let text = last_error();
                assert!(text.contains("\"layer.0\"") && text.contains("reading only"), "{text}");
            };
            refused(tide_put(pool, name, bytes.as_ptr().cast(), 100_000, 0, place));
            refused(tide_delete(pool, name));
            ok(tide_batch_begin(pool, &raw mut batch));
            refused(tide_batch_put(batch, name, bytes.as_ptr().cast(), 100_000));
            refused(tide_batch_delete(batch, name));
        }
        assert_eq!(memory, bytes);
        ok(tide_batch_drop(batch));
        ok(tide_ticket_drop(ticket));
        ok(tide_pool_close(pool));
    }
    assert!(std::fs::read(&device).unwrap() == before, "a byte has changed");
}

#[test]
fn a_seal_in_a_batch_holds_what_the_batch_has_put_and_seals_are_in_the_order_of_commits() {
    let folder = Folder::new("own-puts");
    let pool = open_pool(&folder, POOL_SIZE);
    let (old, new) = (vec![3; 100_000], vec![4; 100_000]);
    commit(pool, &old);
    let name = c"layer.0".as_ptr();
    let (mut batch, mut tensor, mut ticket) = (0, tide_tensor::default(), 0);
    let mut memory = vec![0_u8; 100_000];
    // SAFETY: names are NUL-terminated, results ours, and nobody touches the memory before the
    // transfer has ended.
    unsafe {
        ok(tide_tensor_named(name, &raw mut tensor));
        ok(tide_batch_begin(pool, &raw mut batch));
        ok(tide_batch_seal(batch, c"z before".as_ptr(), &raw const tensor, 1));
        ok(tide_batch_put(batch, name, new.as_ptr().cast(), 100_000));
        ok(tide_batch_seal(batch, c"after".as_ptr(), &raw const tensor, 1));
        ok(tide_batch_commit(batch));
        for (seal, wanted) in [(c"z before", &old), (c"after", &new)] {
            let to = memory.as_mut_ptr().cast();
            let place = &raw mut ticket;
            ok(tide_seal_get(pool, seal.as_ptr(), tensor, 0, to, 100_000, 0, place));
            ok(tide_ticket_wait(ticket, TIDE_FOREVER));
            assert!(memory == *wanted, "{seal:?}");
            ok(tide_ticket_drop(ticket));
        }
        let mut text = vec![0_u8; 4096];
        let length = tide_pool_seals(pool, text.as_mut_ptr().cast(), text.len());
        let seals: Vec<serde_json::Value> = serde_json::from_slice(&text[..length]).unwrap();
        let orders: Vec<_> = seals.iter().map(|it| (&it["name"], it["order"].as_u64())).collect();
        let named = |text: &str| serde_json::Value::from(text);
        assert_eq!(orders, [(&named("after"), Some(2)), (&named("z before"), Some(1))]);
    }
    ok(tide_pool_close(pool));
}

#[test]
fn a_comma_of_a_folders_name_is_escaped_or_refused_before_anything_is_made() {
    let folder = Folder::new("comma");
    let odd = folder.0.join("a,b");
    std::fs::create_dir(&odd).unwrap();
    let open = |devices: String| {
        let devices = std::ffi::CString::new(devices).unwrap();
        // SAFETY: the texts live across the call; there is no arena.
        unsafe { try_open_pool_with(&pool_options(&devices, POOL_SIZE, 0, c"auto")) }
    };
    let path = odd.display().to_string();
    for list in [path.clone(), format!("{path}/new"), format!("{path}x")] {
        assert_eq!(open(list), Err(TIDE_POOL_FAILED));
        assert!(last_error().contains(r"write \,"), "{}", last_error());
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing was made");
    assert!(!std::path::Path::new("b").exists() && !std::path::Path::new("bx").exists());
    ok(tide_pool_close(open(path.replace(',', r"\,")).unwrap()));
    assert!(odd.join("tidelog.device").exists());
}
