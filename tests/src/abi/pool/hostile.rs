//! Calls that no caller should make.

use std::ptr::{null, null_mut};

use tidelog::abi::*;

use super::Caller;
use crate::abi::{last_error, statuses_of_a_stale};

impl Caller {
    /// Calls that no caller should make: each is refused and changes nothing.
    pub(super) fn hostile(&mut self) {
        let (pool, mut ticket, mut byte, mut index) = (self.pool, 0_u64, 7_u8, 0_usize);
        let (name, place) = (c"s0".as_ptr(), &raw mut ticket);
        let (memory, read) = ((&raw mut byte).cast(), (&raw const byte).cast());
        let huge = u64::MAX - self.choices.below(1 << 20);
        // SAFETY: null and misaligned pointers and impossible lengths are what the functions must
        // withstand: they are refused before anything is read or written.
        let status = unsafe {
            match self.choices.below(20) {
                0 => tide_put(pool, null(), read, 1, 0, place),
                1 => tide_put(pool, name, null(), 1, 0, place),
                2 => tide_put(pool, name, read, huge, 0, place),
                3 => tide_put(pool, name, read, 1, 0, null_mut()),
                4 => tide_put(pool, name, read, 1, 0, place.byte_add(1)),
                5 => tide_get(pool, name, huge, memory, 1 << 62, 0, place),
                6 => tide_get(pool, name, 0, memory, huge, 0, place),
                7 => tide_get(pool, name, 0, null_mut(), 1, 0, place),
                8 => tide_get(pool, name, 0, memory, 1, 0, null_mut()),
                9 => tide_delete(pool, null()),
                10 => tide_length(pool, null(), null_mut()),
                11 => tide_batch_begin(pool, null_mut()),
                12 => tide_pool_open(null(), null_mut()),
                13 => match self.batches.last() {
                    Some(batch) => tide_batch_put(batch.handle, name, read, huge),
                    None => TIDE_INVALID_ARGUMENT,
                },
                14 => tide_ticket_wait_any(null(), 1, 0, &raw mut index),
                15 => tide_ticket_wait_any(null(), 0, 0, &raw mut index),
                16 => tide_pool_eventfd(pool, -2),
                17 => tide_pool_scrub(pool, null_mut()),
                18 => tide_verify(pool, null()),
                _ => match self.batches.last() {
                    Some(batch) => tide_batch_start_commit(batch.handle, null_mut()),
                    None => TIDE_INVALID_ARGUMENT,
                },
            }
        };
        assert_eq!(status, TIDE_INVALID_ARGUMENT, "{}", last_error());
        let stale = pool + (1 << 40) + self.choices.below(1 << 40);
        let statuses = statuses_of_a_stale(stale);
        assert!(statuses.iter().all(|&status| status == TIDE_STALE_HANDLE), "{statuses:?}");
    }
}
