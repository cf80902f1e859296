//! A caller of the pool's part of the ABI who knows which bytes every tensor may have.

mod durable;
mod ends;
mod hostile;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;

use tidelog::abi::*;

use super::memory::content;
use super::{Choices, Folder, Memory, STAGING, last_error};

/// A tensor's bytes: their seed and how many.
type Content = (u64, usize);

/// Names of scratch tensors; as many others are those of durable ones.
const NAMES: u64 = 3;
const SIZE_MAX: u64 = 48 << 10;
const WAIT_MS: u32 = 20_000;

/// A transfer that was not seen to end.
enum Transfer {
    Put {
        name: u64,
        content: Content,
    },
    /// A read of some of the bytes of one of these.
    Get {
        from: usize,
        possible: Vec<Option<Content>>,
    },
}

struct Flight {
    ticket: u64,
    transfer: Transfer,
    memory: Memory,
}

/// Durable changes that were not committed.
struct Batch {
    handle: u64,
    /// The last change of each name: a tensor, or none any more.
    changes: BTreeMap<u64, Option<Content>>,
}

/// A commit that was not seen to end.
struct StartedCommit {
    ticket: u64,
    changes: BTreeMap<u64, Option<Content>>,
    /// Contents that may stand under the names that it changes if it ends badly.
    before: BTreeMap<u64, Vec<Option<Content>>>,
}

struct Caller {
    choices: Choices,
    folder: Folder,
    pool: u64,
    /// Contents that may stand under a name now, the newest last; with puts in flight that is not
    /// known.
    scratch: BTreeMap<u64, Vec<Option<Content>>>,
    durable: BTreeMap<u64, Vec<Option<Content>>>,
    flights: Vec<Flight>,
    batches: Vec<Batch>,
    /// One at most, so that what stands under a durable name is known.
    commit: Option<StartedCommit>,
    /// Told of ends, and of how many it must have been by the time that the pool is closed.
    eventfd: Option<(File, u64)>,
    /// Memory of transfers whose tickets were dropped: kept until the pool is closed.
    parked: Vec<Memory>,
    reads: u64,
}

/// Walks through everything that may be called of a pool, `steps` long or until the choices are
/// over. Returns how many reads ended with the right bytes.
pub fn walk_pool(name: &str, choices: Choices, steps: u32) -> u64 {
    let folder = Folder::new(name);
    let pool = open_pool(&folder, POOL_SIZE);
    let nothing = || (0..NAMES).map(|name| (name, vec![None])).collect();
    let mut caller = Caller {
        choices,
        folder,
        pool,
        scratch: nothing(),
        durable: nothing(),
        flights: Vec::new(),
        batches: Vec::new(),
        commit: None,
        eventfd: None,
        parked: Vec::new(),
        reads: 0,
    };
    for _ in 0..steps {
        if caller.choices.are_over() {
            break;
        }
        caller.act();
    }
    caller.close();
    caller.reads
}

/// Size of a walk's pool.
const POOL_SIZE: u64 = 32 << 20;

/// Opens a pool in this folder, of files of `pool_size` bytes in all.
pub fn open_pool(folder: &Folder, pool_size: u64) -> u64 {
    let opened = try_open_pool(folder, pool_size, 0, c"auto");
    opened.unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

/// Opens a pool, as [`open_pool`] does, by this data path and for a GPU too where `gpu` numbers
/// one; the status where that is refused.
pub fn try_open_pool(
    folder: &Folder,
    pool_size: u64,
    gpu: u8,
    data_path: &CStr,
) -> Result<u64, i32> {
    let devices = folder.text();
    // SAFETY: the texts live across the call; no arena is named.
    unsafe { try_open_pool_with(&pool_options(&devices, pool_size, gpu, data_path)) }
}

/// Returns the options by which it opens a pool.
pub fn pool_options(
    devices: &CStr,
    pool_size: u64,
    gpu: u8,
    data_path: &CStr,
) -> tide_pool_options {
    tide_pool_options {
        size: size_of::<tide_pool_options>() as u64,
        devices: devices.as_ptr(),
        data_path: data_path.as_ptr(),
        staging: STAGING,
        pool_size,
        share: 0,
        buffered: u8::from(data_path == c"auto"),
        gpu,
        arena: 0,
        arena_bytes: 0,
        must_exist: 0,
        read_only: 0,
        sparse: 0,
        degraded: 0,
    }
}

/// Opens a pool; the status where that is refused.
///
/// # Safety
/// The options' texts are NUL-terminated; an arena stays allocated until the pool is closed.
pub unsafe fn try_open_pool_with(options: &tide_pool_options) -> Result<u64, i32> {
    let mut pool = 0;
    // SAFETY: by this function's contract; the result is ours.
    let opened = unsafe { tide_pool_open(options, &raw mut pool) };
    if opened == TIDE_READY { Ok(pool) } else { Err(opened) }
}

fn name_of(kind: char, name: u64) -> CString {
    CString::new(format!("{kind}{name}")).expect("letters and digits")
}

impl Caller {
    fn act(&mut self) {
        // What is new comes last: the decisions of the corpus stay what they were.
        match self.choices.below(39) {
            0..7 => self.put(),
            7..14 => self.get(),
            14..19 => self.wait(),
            19..21 => self.delete(),
            21 => self.drop_ticket(),
            22 => self.cancel(),
            23 | 24 => self.begin(),
            25..28 => self.change(),
            28 => self.commit(),
            29 => self.length(),
            30 => self.hostile(),
            31 if self.choices.percent(25) => self.close_and_open(),
            31 => self.drop_batch(),
            32..35 => self.wait_any(),
            35 | 36 => self.start_commit(),
            37 => self.set_eventfd(),
            _ => self.verify(),
        }
    }

    fn content(&mut self) -> Content {
        (self.choices.content(), self.choices.below(SIZE_MAX) as usize)
    }

    fn put(&mut self) {
        let (name, content) = (self.choices.below(NAMES), self.content());
        let mut memory = Memory::new(content.1, 0);
        memory.fill(content.0);
        let (text, mut ticket) = (name_of('s', name), 0);
        let flags = self.choices.below(8) as u32;
        // SAFETY: the name is NUL-terminated; the memory stays as it is until the ticket is
        // released.
        let status = unsafe {
            let bytes = memory.address.cast_const().cast();
            let (pool, length) = (self.pool, memory.size as u64);
            tide_put(pool, text.as_ptr(), bytes, length, flags, &raw mut ticket)
        };
        if flags & !(TIDE_URGENT | TIDE_AS_DURABLE) != 0 {
            return assert_eq!(status, TIDE_INVALID_ARGUMENT, "flags {flags:#x}");
        }
        if status == TIDE_FULL {
            return assert!(last_error().contains("full"), "{}", last_error());
        }
        assert_eq!(status, TIDE_READY, "{}", last_error());
        self.begun();
        self.scratch.get_mut(&name).expect("a name").push(Some(content));
        self.flights.push(Flight { ticket, transfer: Transfer::Put { name, content }, memory });
    }

    fn get(&mut self) {
        let name = self.choices.below(NAMES);
        let (kind, possible) = if self.choices.percent(70) {
            ('s', self.scratch[&name].clone())
        } else {
            ('d', self.durable[&name].clone())
        };
        let newest = possible.iter().rev().flatten().next().map_or(1, |(_, size)| *size);
        let whole = self.choices.percent(50);
        let from = if whole { 0 } else { self.choices.below(newest as u64 + 2) as usize };
        let length = if whole { newest } else { self.choices.below(SIZE_MAX) as usize };
        let memory = Memory::new(length, 0xCD);
        let (text, mut ticket) = (name_of(kind, name), 0);
        // SAFETY: the name is NUL-terminated; nobody touches the memory until the ticket is
        // released.
        let status = unsafe {
            let (offset, length) = (from as u64, memory.size as u64);
            let bytes = memory.address.cast();
            tide_get(self.pool, text.as_ptr(), offset, bytes, length, TIDE_URGENT, &raw mut ticket)
        };
        let fits =
            |content: &Option<Content>| content.is_some_and(|(_, size)| from + length <= size);
        if [TIDE_NOT_FOUND, TIDE_OUT_OF_RANGE].contains(&status) {
            return assert!(
                !possible.iter().all(fits),
                "refused a read that fits: {}",
                last_error()
            );
        }
        assert_eq!(status, TIDE_READY, "{}", last_error());
        self.begun();
        assert!(possible.iter().any(fits), "read {length} bytes from {from} of {possible:?}");
        self.flights.push(Flight { ticket, transfer: Transfer::Get { from, possible }, memory });
    }

    fn some_flight(&mut self) -> Option<usize> {
        let count = self.flights.len() as u64;
        (count > 0).then(|| self.choices.below(count) as usize)
    }

    fn wait(&mut self) {
        let Some(index) = self.some_flight() else { return };
        let timeout = if self.choices.percent(50) { 0 } else { WAIT_MS };
        let status = tide_ticket_wait(self.flights[index].ticket, timeout);
        if status == TIDE_WAITING {
            return assert_eq!(timeout, 0, "the transfer never ends");
        }
        self.take(index, status);
    }

    /// A transfer has ended.
    fn take(&mut self, index: usize, status: i32) {
        let flight = self.flights.swap_remove(index);
        let ticket = flight.ticket;
        assert_eq!(tide_ticket_wait(ticket, 0), status, "an end is the same when asked again");
        assert_eq!(tide_ticket_released(ticket), 1, "what has ended touches no memory");
        self.ended(flight, status);
        assert_eq!(tide_ticket_drop(ticket), TIDE_READY);
        assert_eq!(tide_ticket_wait(ticket, 0), TIDE_STALE_HANDLE);
    }

    /// A transfer has ended: `TIDE_READY`, or not well.
    fn ended(&mut self, flight: Flight, status: i32) {
        let well = status == TIDE_READY;
        assert!(well || status == TIDE_CANCELLED, "{status}: {}", last_error());
        let Flight { transfer, memory, .. } = flight;
        match transfer {
            Transfer::Put { name, content: put } => {
                assert!(memory.bytes() == content(put.0, put.1), "a put changed its source");
                let possible = self.scratch.get_mut(&name).expect("a name");
                let place = possible.iter().position(|other| *other == Some(put));
                match (place, well) {
                    // It is there, and nothing older is.
                    (Some(place), true) => drop(possible.drain(..place)),
                    (Some(place), false) => drop(possible.remove(place)),
                    (None, _) => {}
                }
            }
            Transfer::Get { from, possible } if well => {
                let found = memory.bytes();
                let is = |(seed, size): &Content| {
                    content(*seed, *size).get(from..from + found.len()) == Some(found)
                };
                assert!(
                    possible.iter().flatten().any(is),
                    "wrong bytes from {from} of {possible:?}"
                );
                self.reads += 1;
            }
            Transfer::Get { .. } => {}
        }
    }

    fn delete(&mut self) {
        let name = self.choices.below(NAMES);
        let text = name_of('s', name);
        // SAFETY: the name is NUL-terminated.
        let status = unsafe { tide_delete(self.pool, text.as_ptr()) };
        let possible = self.scratch.get_mut(&name).expect("a name");
        match status {
            // Puts in flight do not bring it back.
            TIDE_READY => {
                assert!(possible.iter().any(Option::is_some), "deleted what was not there");
                *possible = vec![None];
            }
            TIDE_NOT_FOUND => assert!(possible.contains(&None), "{}", last_error()),
            other => panic!("{other}: {}", last_error()),
        }
    }

    fn length(&mut self) {
        let name = self.choices.below(NAMES);
        let (text, mut length) = (name_of('s', name), 0);
        // SAFETY: the name is NUL-terminated, the place ours.
        let status = unsafe { tide_length(self.pool, text.as_ptr(), &raw mut length) };
        let found = (status == TIDE_READY).then_some(length as usize);
        let possible = self.scratch[&name].iter().map(|content| content.map(|(_, size)| size));
        assert!(possible.clone().any(|it| it == found), "{found:?}: {:?}", self.scratch[&name]);
    }

    fn drop_ticket(&mut self) {
        let Some(index) = self.some_flight() else { return };
        let flight = self.flights.swap_remove(index);
        assert_eq!(tide_ticket_drop(flight.ticket), TIDE_READY);
        assert_eq!(tide_ticket_drop(flight.ticket), TIDE_STALE_HANDLE);
        self.parked.push(flight.memory);
    }

    fn cancel(&mut self) {
        let Some(index) = self.some_flight() else { return };
        assert_eq!(tide_ticket_cancel(self.flights[index].ticket), TIDE_READY);
    }

    /// Closes the pool with whatever is in flight.
    fn close(&mut self) {
        assert_eq!(tide_pool_close(self.pool), TIDE_READY, "{}", last_error());
        assert_eq!(tide_pool_close(self.pool), TIDE_STALE_HANDLE);
        self.parked.clear();
        self.end_commit(0);
        if let Some((mut eventfd, begun)) = self.eventfd.take() {
            let mut told = [0; 8];
            let told = eventfd.read(&mut told).map_or(0, |_| u64::from_ne_bytes(told));
            assert_eq!(told, begun, "the eventfd is told once of each end");
        }
        for flight in std::mem::take(&mut self.flights) {
            let (ticket, status) = (flight.ticket, tide_ticket_wait(flight.ticket, WAIT_MS));
            assert_eq!(tide_ticket_released(ticket), 1);
            self.ended(flight, status);
            assert_eq!(tide_ticket_drop(ticket), TIDE_READY);
        }
        for Batch { handle, .. } in std::mem::take(&mut self.batches) {
            assert!(tide_batch_commit(handle) <= TIDE_READY);
        }
    }

    /// Closes and opens the pool: what is durable is there again, and nothing else.
    fn close_and_open(&mut self) {
        self.close();
        self.pool = open_pool(&self.folder, POOL_SIZE);
        self.scratch.values_mut().for_each(|possible| *possible = vec![None]);
        for (name, possible) in &self.durable {
            let (text, mut length) = (name_of('d', *name), 0);
            // SAFETY: the name is NUL-terminated, the place ours.
            let status = unsafe { tide_length(self.pool, text.as_ptr(), &raw mut length) };
            let found = (status == TIDE_READY).then_some(length as usize);
            let expected: Vec<_> = possible.iter().map(|it| it.map(|(_, size)| size)).collect();
            assert!(expected.contains(&found), "d{name} has {found:?} and may have {expected:?}");
        }
    }
}
