//! Finding out whether this kernel, and this container, have an `io_uring` that is good enough.

use std::io;

use io_uring::{IoUring, Probe, opcode};

use super::super::choose::{PathError, PathKind};

/// Room in the submission queue for the waker's entry and for cancellations.
const SPARE_ENTRIES: u32 = 8;
/// The most entries a kernel ring may have.
const ENTRIES_MAX: u32 = 32_768;

/// A ring that has everything the path needs.
pub struct Ring {
    pub(super) uring: IoUring,
    pub(super) depth: u32,
    pub(super) notes: Vec<String>,
}

impl Ring {
    /// Makes a ring with room for `depth` operations, if the kernel (and the container) allows one
    /// that is good enough. It belongs to the calling thread.
    pub fn probe(depth: u32) -> Result<Self, PathError> {
        let depth = depth.clamp(1, ENTRIES_MAX - SPARE_ENTRIES);
        let (ring, note) = build(depth + SPARE_ENTRIES).map_err(|error| unavailable(&error))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|error| unavailable(&error))?;
        let needed = [
            ("read", opcode::Read::CODE),
            ("write", opcode::Write::CODE),
            ("read_fixed", opcode::ReadFixed::CODE),
            ("write_fixed", opcode::WriteFixed::CODE),
            ("fsync", opcode::Fsync::CODE),
            ("fallocate", opcode::Fallocate::CODE),
            ("poll_add", opcode::PollAdd::CODE),
            ("async_cancel", opcode::AsyncCancel::CODE),
        ];
        let features = ring.params();
        let missing = needed.into_iter().find(|&(_, code)| !probe.is_supported(code));
        let missing = missing.map(|(name, _)| name).or_else(|| {
            let enough = features.is_feature_ext_arg() && features.is_feature_nodrop();
            (!enough).then_some("waiting with a time-out")
        });
        if let Some(name) = missing {
            let reason = format!("this kernel's io_uring lacks {name}; Linux 5.15 or newer has it");
            return Err(PathError::Unavailable { kind: PathKind::Uring, reason });
        }
        Ok(Self { uring: ring, depth, notes: vec![note.into()] })
    }

    /// Something more to be told of the path, if there is anything.
    pub(in crate::path) fn note(&mut self, note: Option<String>) {
        self.notes.extend(note);
    }
}

/// The ring with the cheapest completion handling that this kernel knows.
fn build(entries: u32) -> io::Result<(IoUring, &'static str)> {
    let deferred = IoUring::builder()
        .dontfork()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries);
    match deferred {
        Ok(ring) => return Ok((ring, "completions are handled when asked for (DEFER_TASKRUN)")),
        // Flags that the kernel does not know are invalid; anything else is no matter of flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        Err(error) => return Err(error),
    }
    let ring = IoUring::builder().dontfork().build(entries)?;
    Ok((ring, "completions interrupt the reactor: this kernel has no DEFER_TASKRUN"))
}

fn unavailable(error: &io::Error) -> PathError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring".into(),
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here (kernel.io_uring_disabled, or a container's seccomp profile)"
                .into()
        }
        Some(libc::ENOMEM) => format!("{error}; raise the memlock limit (ulimit -l)"),
        _ => error.to_string(),
    };
    PathError::Unavailable { kind: PathKind::Uring, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_ring_is_explained() {
        let text = unavailable(&io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(text.contains("the uring data path does not work here"), "{text}");
        assert!(text.contains("seccomp"), "{text}");
    }
}
