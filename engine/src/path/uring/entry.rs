//! Submission queue entries.

use io_uring::{opcode, squeue, types};

use super::super::device::{DeviceKind, fallocate_mode};
use super::super::operation::{Action, Operation, PlacementHandle};
use super::super::priority::IoPriority;
use super::queue::Registered;

/// The file of an operation's device.
#[derive(Clone, Copy)]
pub(super) struct File {
    pub(super) kind: DeviceKind,
    pub(super) descriptor: i32,
    /// True if the files are registered, by device index.
    pub(super) fixed: bool,
}

/// The submission queue entry of an operation that lies in its slot, but for its first `done`
/// bytes.
#[inline]
pub(super) fn of(
    operation: &mut Operation,
    done: u32,
    target: File,
    registered: &Registered,
) -> squeue::Entry {
    let index = u32::from(operation.device.0);
    let offset = operation.extent.offset.0 + u64::from(done);
    let length = operation.extent.length.0 - u64::from(done);
    let done = done as usize;
    /// Builds with a registered file where there is one, as the type of an entry differs.
    macro_rules! on_file {
        (|$file:ident| $build:expr) => {
            if target.fixed {
                let $file = types::Fixed(index);
                $build
            } else {
                let $file = types::Fd(target.descriptor);
                $build
            }
        };
    }
    let run = |address: *mut u8| registered.holding(address, length as usize);
    let priority = operation.priority.map_or(0, IoPriority::number);
    let stream = operation.placement.map_or(0, write_stream);
    match &mut operation.action {
        Action::Read(memory) => {
            let (address, length) = (memory.address().wrapping_add(done), length as u32);
            match run(address) {
                Some(run) => on_file!(|file| {
                    let read = opcode::ReadFixed::new(file, address, length, run);
                    read.offset(offset).ioprio(priority).build()
                }),
                None => on_file!(|file| {
                    let read = opcode::Read::new(file, address, length);
                    read.offset(offset).ioprio(priority).build()
                }),
            }
        }
        Action::Write { memory, fua } => {
            let (address, length) = (memory.address().wrapping_add(done), length as u32);
            let flags = if *fua { libc::RWF_DSYNC } else { 0 };
            match run(address) {
                Some(run) => on_file!(|file| {
                    let write = opcode::WriteFixed::new(file, address, length, run);
                    let write = write.offset(offset).rw_flags(flags).ioprio(priority);
                    write.write_stream(stream).build()
                }),
                None => on_file!(|file| {
                    let write = opcode::Write::new(file, address, length);
                    let write = write.offset(offset).rw_flags(flags).ioprio(priority);
                    write.write_stream(stream).build()
                }),
            }
        }
        Action::Flush => {
            on_file!(|file| opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build())
        }
        action @ (Action::WriteZeroes | Action::Deallocate) => {
            let mode = fallocate_mode(target.kind, action);
            on_file!(|file| {
                opcode::Fallocate::new(file, length).offset(offset).mode(mode).build()
            })
        }
    }
}

/// Returns the write stream of a placement handle: the kernel counts them from 1, and 0 names none.
fn write_stream(PlacementHandle(place): PlacementHandle) -> u8 {
    // Devices on this path have no more handles than fit.
    u8::try_from(u32::from(place) + 1).unwrap_or(0)
}
