//! Texts of errors.

use std::fs::File;
use std::os::unix::fs::FileExt;

use std::ptr::null_mut;

use tidelog::abi::*;

use tidelog_tests::abi::{Folder, last_error, open_pool};

#[test]
fn what_is_refused_is_refused_by_the_tensors_name() {
    let folder = Folder::new("names");
    let pool = open_pool(&folder, 64 << 20);
    let (name, mut bytes) = (c"layer.0.weight", [7_u8; 16]);
    let (mut batch, mut ticket) = (0, 0);
    let memory = bytes.as_mut_ptr();
    // SAFETY: the name is NUL-terminated and the results are ours; what is refused is not looked
    // at, and the rest is as long as is said.
    unsafe {
        let (name, place, read) = (name.as_ptr(), &raw mut ticket, memory.cast_const().cast());
        let refused = |status: i32, code: i32| {
            assert_eq!(status, code);
            let text = last_error();
            assert!(text.contains("\"layer.0.weight\""), "{text:?} does not name the tensor");
            assert!(!text.contains("tensor "), "{text:?} has an id");
        };
        let get = |offset, length| tide_get(pool, name, offset, memory.cast(), length, 0, place);
        refused(get(0, 1), TIDE_NOT_FOUND);
        refused(tide_delete(pool, name), TIDE_NOT_FOUND);
        refused(tide_put(pool, name, read, 1 << 40, 0, place), TIDE_FULL);
        assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
        refused(tide_batch_put(batch, name, read, 1 << 40), TIDE_FULL);
        refused(tide_batch_delete(batch, name), TIDE_NOT_FOUND);
        assert_eq!(tide_batch_put(batch, name, read, 16), TIDE_READY, "{}", last_error());
        assert_eq!(tide_batch_commit(batch), TIDE_READY, "{}", last_error());
        refused(get(10, 7), TIDE_OUT_OF_RANGE);
        refused(tide_delete(pool, name), TIDE_POOL_FAILED);
        refused(tide_put(pool, name, read, 16, 0, place), TIDE_POOL_FAILED);
    }
    assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
}

#[test]
fn a_read_of_rotten_bytes_names_the_tensor_its_byte_and_the_devices_path() {
    let folder = Folder::new("rot");
    let pool = open_pool(&folder, 64 << 20);
    // Nothing else on the device has these bytes in a row.
    let content: Vec<u8> =
        (0..25_000_u32).flat_map(|word| (word ^ 0x5A5A_0000).to_le_bytes()).collect();
    let name = c"layer.0.weight";
    let (mut batch, mut ticket) = (0, 0);
    // SAFETY: the name is NUL-terminated, the memory as long as is said, the results are ours.
    unsafe {
        assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
        let length = content.len() as u64;
        let put = tide_batch_put(batch, name.as_ptr(), content.as_ptr().cast(), length);
        assert_eq!(put, TIDE_READY, "{}", last_error());
    }
    assert_eq!(tide_batch_commit(batch), TIDE_READY, "{}", last_error());

    let path = folder.0.join("tidelog.device");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(64).position(|window| window == &content[..64]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[!content[70]], at as u64 + 70).unwrap();

    let mut memory = vec![0_u8; 1000];
    let wanted = memory.len() as u64;
    // SAFETY: the name is NUL-terminated, the memory as long as is said and ours alone until the
    // wait has ended.
    unsafe {
        let (address, place) = (memory.as_mut_ptr().cast(), &raw mut ticket);
        let got = tide_get(pool, name.as_ptr(), 50, address, wanted, 0, place);
        assert_eq!(got, TIDE_READY, "{}", last_error());
    }
    assert_eq!(tide_ticket_wait(ticket, 60_000), TIDE_CHECKSUM);
    let text = last_error();
    for words in ["byte 50 of \"layer.0.weight\"", "device 0", path.to_str().unwrap()] {
        assert!(text.contains(words), "{text:?} does not say {words:?}");
    }
    assert_eq!(tide_ticket_drop(ticket), TIDE_READY);
    // So does a verification of the whole tensor, and a scrub lists it.
    // SAFETY: the name is NUL-terminated.
    assert_eq!(unsafe { tide_verify(pool, name.as_ptr()) }, TIDE_CHECKSUM);
    let text = last_error();
    let words = ["\"layer.0.weight\" has lost 100000 of its 100000 bytes", path.to_str().unwrap()];
    assert!(words.iter().all(|words| text.contains(words)), "{text}");
    let mut damaged = 7;
    // SAFETY: the result is ours.
    let scrubbed = unsafe { tide_pool_scrub(pool, &raw mut damaged) };
    assert_eq!((scrubbed, damaged), (TIDE_READY, 1), "{}", last_error());
    // SAFETY: `text_of` gives memory as long as it says.
    let stats = text_of(|buffer, capacity| unsafe { tide_pool_stats(pool, buffer, capacity) });
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    let found = &stats["scrubbed"]["damaged"][0];
    assert_eq!((&found["name"], &found["length"]), (&"layer.0.weight".into(), &100_000.into()));
    let unit = &found["bad"][0];
    assert!(path.starts_with(unit["device"].as_str().unwrap()), "{unit}");
    assert_eq!(unit["tensor_offset"], 0);
    assert!(unit["offset"].as_u64().unwrap() <= at as u64 && unit["length"] == 100_000, "{unit}");
    assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
}

/// Returns the text of a function that writes text.
pub(crate) fn text_of(write: impl Fn(*mut std::ffi::c_char, usize) -> usize) -> String {
    let mut text = vec![0_u8; write(null_mut(), 0) + 1];
    let length = write(text.as_mut_ptr().cast(), text.len());
    text.truncate(length);
    String::from_utf8(text).unwrap()
}

#[test]
fn a_pool_says_what_it_holds_and_how_full_it_is() {
    let folder = Folder::new("figures");
    let pool = open_pool(&folder, 64 << 20);
    let mut batch = 0;
    // SAFETY: the results are ours; the names are NUL-terminated, the bytes as many as is said.
    unsafe {
        assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
        for name in [c"b", c"a \"quoted\" name"] {
            let put = tide_batch_put(batch, name.as_ptr(), [7_u8; 5000].as_ptr().cast(), 5000);
            assert_eq!(put, TIDE_READY, "{}", last_error());
        }
    }
    assert_eq!(tide_batch_commit(batch), TIDE_READY, "{}", last_error());
    // SAFETY: `text_of` gives memory as long as it says.
    let names = text_of(|buffer, capacity| unsafe { tide_pool_list(pool, buffer, capacity) });
    let mut names: Vec<String> = serde_json::from_str(&names).unwrap();
    names.sort();
    assert_eq!(names, ["a \"quoted\" name", "b"]);
    // SAFETY: as above.
    let stats = text_of(|buffer, capacity| unsafe { tide_pool_stats(pool, buffer, capacity) });
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert!(stats["pool"]["live"].as_u64().unwrap() >= 2 * 5000, "{stats}");
    assert!(stats["pool"]["capacity"].as_u64().unwrap() > 32 << 20, "{stats}");
    assert!(stats["devices"][0]["bytes_written"].as_u64().unwrap() >= 2 * 5000, "{stats}");
    assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
    // SAFETY: no buffer is given.
    let of_closed =
        unsafe { [tide_pool_list(pool, null_mut(), 0), tide_pool_stats(pool, null_mut(), 0)] };
    assert_eq!(of_closed, [0, 0]);
    assert!(last_error().contains("pool"), "{}", last_error());
}
