//! Submission queue entries.

use io_uring::{opcode, squeue, types};

use super::super::device::{DeviceKind, fallocate_mode};
use super::super::operation::{Action, Operation};

/// The kernel registers at most this much memory as one buffer.
pub(super) const REGISTERED_RUN: usize = 1 << 30;

/// The file of an operation's device.
#[derive(Clone, Copy)]
pub(super) struct File {
    pub(super) kind: DeviceKind,
    pub(super) descriptor: i32,
    /// Whether the files are registered, by device index.
    pub(super) fixed: bool,
}

/// The submission queue entry of an operation that lies in its slot.
pub(super) fn of(
    operation: &mut Operation,
    target: File,
    registered: Option<(usize, usize)>,
) -> squeue::Entry {
    let index = u32::from(operation.device.0);
    let (offset, length) = (operation.extent.offset.0, operation.extent.length.0);
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
    let run = |address: *mut u8| fixed_run(registered, address as usize, length as usize);
    match &mut operation.action {
        Action::Read(buffer) => {
            let (address, length) = (buffer.address(), length as u32);
            match run(address) {
                Some(run) => on_file!(|file| {
                    opcode::ReadFixed::new(file, address, length, run).offset(offset).build()
                }),
                None => on_file!(|file| {
                    opcode::Read::new(file, address, length).offset(offset).build()
                }),
            }
        }
        Action::Write { buffer, fua } => {
            let (address, length) = (buffer.address(), length as u32);
            let flags = if *fua { libc::RWF_DSYNC } else { 0 };
            match run(address) {
                Some(run) => on_file!(|file| {
                    let write = opcode::WriteFixed::new(file, address, length, run);
                    write.offset(offset).rw_flags(flags).build()
                }),
                None => on_file!(|file| {
                    let write = opcode::Write::new(file, address, length);
                    write.offset(offset).rw_flags(flags).build()
                }),
            }
        }
        Action::ReadToPeer(_) | Action::WriteFromPeer { .. } => {
            unreachable!("the gate refuses another device's memory")
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

/// The registered buffer that holds all of `length` bytes at `address`.
fn fixed_run(registered: Option<(usize, usize)>, address: usize, length: usize) -> Option<u16> {
    let (base, registered) = registered?;
    let start = address.checked_sub(base)?;
    let end = start.checked_add(length)?;
    let run = start / REGISTERED_RUN;
    let whole = end <= registered && end.saturating_sub(1) / REGISTERED_RUN == run;
    if whole { u16::try_from(run).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_across_two_registered_runs_goes_unregistered() {
        let region = Some((4096, 2 * REGISTERED_RUN));
        assert_eq!(fixed_run(region, 4096, 4096), Some(0));
        assert_eq!(fixed_run(region, 4096 + REGISTERED_RUN, 4096), Some(1));
        assert_eq!(fixed_run(region, 4096 + REGISTERED_RUN - 4096, 8192), None);
        assert_eq!(fixed_run(region, 4096 + 2 * REGISTERED_RUN - 4096, 8192), None);
        assert_eq!(fixed_run(region, 0, 4096), None);
        assert_eq!(fixed_run(None, 4096, 4096), None);
    }
}
