//! Finding out whether this kernel, and this container, have an `io_uring` that is good enough.

use std::io;

use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

use super::super::error::PathError;
use super::super::kind::PathKind;
use super::{SubmissionThread, valgrind};

/// Room in the submission queue for the waker's entry and for cancellations.
const SPARE_ENTRIES: u32 = 8;
/// The most entries a kernel ring may have.
const ENTRIES_MAX: u32 = 32_768;

/// A ring that has everything a path needs; what its entries and completions are depends on the
/// path.
pub struct ProbedRing<
    S: squeue::EntryMarker = squeue::Entry,
    C: cqueue::EntryMarker = cqueue::Entry,
> {
    pub(super) uring: IoUring<S, C>,
    pub(super) depth: u32,
    handling: Handling,
}

/// Threads that take submissions, and handling of completions.
#[derive(Clone, Copy)]
enum Handling {
    /// Deferred: this thread does both, completions when they are asked for. Kernels that can do
    /// this are 6.1 and newer.
    Deferred,
    /// Interrupting: this thread submits, and completions interrupt it.
    Interrupting,
    /// A thread of the kernel does both.
    SubmissionThread,
}

/// Requirements of a path on the kernel.
pub(super) struct RingRequirements {
    pub(super) kind: PathKind,
    /// Names and codes of operations.
    pub(super) operations: &'static [(&'static str, u8)],
    /// The first kernel that has all of it.
    pub(super) since: &'static str,
    /// Completions are looked for, and interrupt nobody.
    pub(super) polled: bool,
    /// The kernel's thread that takes submissions, if there shall be one.
    pub(super) submission: Option<SubmissionThread>,
}

impl ProbedRing {
    /// Makes a ring for files and block devices with room for `depth` operations, if the kernel
    /// (and the container) allows one that is good enough. It belongs to the calling thread.
    pub fn probe(depth: u32, submission: Option<SubmissionThread>) -> Result<Self, PathError> {
        let operations = &[
            ("read", opcode::Read::CODE),
            ("write", opcode::Write::CODE),
            ("read_fixed", opcode::ReadFixed::CODE),
            ("write_fixed", opcode::WriteFixed::CODE),
            ("fsync", opcode::Fsync::CODE),
            ("fallocate", opcode::Fallocate::CODE),
            ("poll_add", opcode::PollAdd::CODE),
            ("async_cancel", opcode::AsyncCancel::CODE),
        ];
        Self::with(
            depth,
            &RingRequirements {
                kind: PathKind::Uring,
                operations,
                since: "5.15",
                polled: false,
                submission,
            },
        )
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> ProbedRing<S, C> {
    /// Makes a ring that has what is needed.
    pub(super) fn with(depth: u32, needs: &RingRequirements) -> Result<Self, PathError> {
        let RingRequirements { kind, operations, since, polled, submission } = *needs;
        let lacks = |what: &str| PathError::Unavailable {
            kind,
            reason: format!("this kernel's io_uring lacks {what}; Linux {since} or newer has it"),
        };
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EINVAL) if submission.is_some_and(|it| it.processor.is_some()) => {
                let reason = "there is no such processor for the kernel's thread".into();
                PathError::Unavailable { kind, reason }
            }
            // Nothing else about the request can be invalid.
            Some(libc::EINVAL) => lacks("entries of this size"),
            _ => unavailable(kind, &error),
        };
        let depth = depth.clamp(1, ENTRIES_MAX - SPARE_ENTRIES);
        let (ring, handling) = build(depth + SPARE_ENTRIES, polled, submission).map_err(failed)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(failed)?;
        if let Some((name, _)) = operations.iter().find(|&&(_, code)| !probe.is_supported(code)) {
            return Err(lacks(name));
        }
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(lacks("waiting with a time-out"));
        }
        Ok(Self { uring: ring, depth, handling })
    }

    /// Describes the findings, for people.
    pub(super) fn note(&self) -> String {
        let handled = match self.handling {
            Handling::Deferred => "completions are handled when asked for (DEFER_TASKRUN)",
            Handling::Interrupting => {
                "completions interrupt the reactor: there is no DEFER_TASKRUN here"
            }
            Handling::SubmissionThread => {
                "a thread of the kernel takes submissions and handles completions (SQPOLL)"
            }
        };
        handled.into()
    }
}

/// Time for which the kernel's thread polls for submissions before it sleeps, in milliseconds.
const SUBMISSION_IDLE: u32 = 1000;

/// The ring with the cheapest completion handling that this kernel knows, and which that is.
fn build<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    entries: u32,
    polled: bool,
    submission: Option<SubmissionThread>,
) -> io::Result<(IoUring<S, C>, Handling)> {
    let builder = || {
        let mut builder = IoUring::<S, C>::builder();
        builder.dontfork();
        if polled {
            builder.setup_iopoll();
        }
        builder
    };
    if let Some(SubmissionThread { processor }) = submission {
        let mut threaded = builder();
        threaded.setup_sqpoll(SUBMISSION_IDLE);
        if let Some(processor) = processor {
            threaded.setup_sqpoll_cpu(processor);
        }
        return Ok((threaded.build(entries)?, Handling::SubmissionThread));
    }
    let mut deferred = builder();
    deferred.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    // Who waits in `poll` is not woken by a completion that is deferred.
    let built = (!valgrind::is_there()).then(|| deferred.build(entries));
    match built {
        Some(Ok(ring)) => return Ok((ring, Handling::Deferred)),
        // Flags that the kernel does not know are invalid; anything else is no matter of flags.
        Some(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
        _ => {}
    }
    Ok((builder().build(entries)?, Handling::Interrupting))
}

/// Returns whether the running kernel is this one or newer; what it is called otherwise does not
/// count.
pub(super) fn kernel_is_at_least(version: (u32, u32)) -> bool {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .is_ok_and(|release| version_of(&release).is_some_and(|running| running >= version))
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn unavailable(kind: PathKind, error: &io::Error) -> PathError {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring".into(),
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here (kernel.io_uring_disabled, or a container's seccomp profile)"
                .into()
        }
        Some(libc::ENOMEM) => format!("{error}; raise the memlock limit (ulimit -l)"),
        _ => error.to_string(),
    };
    PathError::Unavailable { kind, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart_by_their_first_two_numbers() {
        assert_eq!(version_of("6.1.0-56-cloud-amd64\n"), Some((6, 1)));
        assert_eq!(version_of("6.12-rc1"), Some((6, 12)));
        assert_eq!(version_of("unknown"), None);
        assert!(kernel_is_at_least((2, 6)) && !kernel_is_at_least((1000, 0)));
    }

    #[test]
    fn a_forbidden_ring_is_explained() {
        let text =
            unavailable(PathKind::Uring, &io::Error::from_raw_os_error(libc::EPERM)).to_string();
        assert!(text.contains("the uring data path does not work here"), "{text}");
        assert!(text.contains("seccomp"), "{text}");
    }
}
