//! Copying what lives in a segment: many tensors at once, so that it costs their bytes and not a
//! wait for each read and each write.

use std::ops::Range;
use std::sync::mpsc::{Receiver, sync_channel};

use crate::layout::TensorEntry;
use crate::log::Relocation;
use crate::memory::{Destination, Source};
use crate::pool::error::ReclaimError;
use crate::pool::{Pool, pieces};
use crate::schedule::{Finish, Piece, Reactor, Subject, Ticket, Transfer, TransferError, Urgency};

/// Memory for what is being copied: this much, or one stripe unit if that is more.
const COPY_BYTES: u64 = 4 << 20;

/// Copies everything to its new place; returns the tensors as they will be there.
///
/// # Errors
/// The first failure. Nothing is in flight any more then either: the old and the new places may be
/// given back.
pub(super) fn copy_all(
    pool: &Pool,
    reactor: &Reactor,
    relocations: &[Relocation],
) -> Result<Vec<TensorEntry>, ReclaimError> {
    let (stripes, written) = (&pool.0.stripes, pool.0.stripes.to_write());
    let mut copies = Vec::new();
    for moving in relocations {
        for stretch in &moving.stretches {
            let Range { start, end } = stretch.bytes;
            let placements = written.placements(&stretch.to, end - start);
            let handle = pool.0.handles.of_lane(moving.lane);
            let whole = |placement| pieces::whole(placement).placed(handle);
            let groups = pieces::groups(placements.map(whole), COPY_BYTES);
            copies.extend(groups.into_iter().map(|group| Copy {
                entry: &moving.version.entry,
                bytes: start + group.range.start..start + group.range.end,
                to: group.pieces,
            }));
        }
    }
    let mut checksums = Vec::new();
    let mut left = &copies[..];
    while !left.is_empty() {
        let window;
        (window, left) = left.split_at(fitting(left));
        checksums.extend(copy_window(pool, reactor, window)?);
    }
    let mut checksums = checksums.into_iter();
    let entry = |moving: &Relocation| {
        let stretches = moving.stretches.iter();
        let new: Vec<Vec<u32>> = stretches
            .map(|stretch| checksums.by_ref().take(stripes.count(&stretch.to)).collect())
            .collect();
        moving.entry(stripes, &new)
    };
    Ok(relocations.iter().map(entry).collect())
}

/// Consecutive bytes of a tensor and where they go.
struct Copy<'a> {
    entry: &'a TensorEntry,
    bytes: Range<u64>,
    to: Vec<Piece>,
}

/// Returns the number of copies that may be in progress at once; at least one.
fn fitting(copies: &[Copy<'_>]) -> usize {
    let mut bytes = 0;
    let fit = copies.iter().take_while(|copy| {
        bytes += copy.bytes.end - copy.bytes.start;
        bytes <= COPY_BYTES
    });
    fit.count().max(1)
}

/// Reads all of it, and writes each part as soon as it is there. Returns the checksums of the new
/// pieces.
fn copy_window(
    pool: &Pool,
    reactor: &Reactor,
    window: &[Copy<'_>],
) -> Result<Vec<u32>, ReclaimError> {
    // Each step is done with all of them before one's error is answered.
    let reads: Vec<_> = window.iter().map(|copy| begin_read(pool, reactor, copy)).collect();
    let writes: Vec<_> = window
        .iter()
        .zip(reads)
        .map(|(copy, read)| begin_write(reactor, copy, end_read(copy, &read?)?))
        .collect();
    let ended: Vec<_> =
        window.iter().zip(writes).map(|(copy, write)| end_write(pool, copy, &write?)).collect();
    let checksums: Result<Vec<Vec<u32>>, ReclaimError> = ended.into_iter().collect();
    Ok(checksums?.concat())
}

fn begin_read(pool: &Pool, reactor: &Reactor, copy: &Copy<'_>) -> Result<Ticket, ReclaimError> {
    // What is copied gets new checksums, so it is verified by the old ones whatever the pool's
    // reads are.
    let pieces = pieces::of_range(&pool.0.stripes, copy.entry, copy.bytes.clone(), true).collect();
    let destination = Destination::buffer((copy.bytes.end - copy.bytes.start) as usize);
    let read = Transfer::Read { destination, pieces };
    // The tensor is named by what this returns.
    let subject = Subject::default().from_byte(copy.bytes.start);
    Ok(reactor.submit_about(subject, read, Urgency::Ahead, None, Finish::nothing())?)
}

fn end_read(copy: &Copy<'_>, read: &Ticket) -> Result<Vec<u8>, ReclaimError> {
    match read.wait() {
        Ok(_) => Ok(read.take_bytes().unwrap_or_default()),
        Err(source) => Err(ReclaimError::Unreadable { tensor: copy.entry.key(), source }),
    }
}

/// A write under way, and where its end is told.
struct Writing {
    ticket: Ticket,
    /// Bytes written, and the checksums of the pieces.
    ended: Receiver<(u64, Result<Vec<u32>, TransferError>)>,
}

fn begin_write(
    reactor: &Reactor,
    copy: &Copy<'_>,
    bytes: Vec<u8>,
) -> Result<Writing, ReclaimError> {
    let (send, ended) = sync_channel(1);
    let write = Transfer::Write { source: Source::Owned(bytes), pieces: copy.to.clone() };
    let finish = Finish::new(move |result| {
        let _ = send.send((result.bytes, result.outcome.map(|done| done.checksums.to_vec())));
    });
    let ticket = reactor.submit(write, Urgency::Ahead, None, finish)?;
    Ok(Writing { ticket, ended })
}

fn end_write(pool: &Pool, copy: &Copy<'_>, write: &Writing) -> Result<Vec<u32>, ReclaimError> {
    let ended = write.ticket.wait_for(&write.ended);
    pool.0.shared.written.moved(ended.as_ref().map_or(0, |(bytes, _)| *bytes));
    let outcome = ended.and_then(|(_, outcome)| outcome);
    outcome.map_err(|source| ReclaimError::Write { tensor: copy.entry.key(), source })
}
