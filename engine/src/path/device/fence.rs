//! Fencing: a host that has lost a namespace can no longer write it.
//!
//! Persistent reservations (NVMe base specification, "Reservations"; SPC-4 for SCSI) by
//! `<linux/pr.h>` of the kernel, which is the same for both. A host registers a key. Of the
//! registered hosts one reserves the namespace, and only that one writes it then; everyone reads.
//! Whoever takes it over ends the registration of the host before it. The target keeps this, so it
//! holds for a host that hangs, or comes back, and knows nothing of it.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;

use siphasher::sip::SipHasher24;

/// `IOC_PR_REGISTER` to `IOC_PR_PREEMPT_ABORT` of `<linux/pr.h>`: `_IOW('p', 200, ...)` and on.
const REGISTER: libc::c_ulong = 0x4018_70C8;
const RESERVE: libc::c_ulong = 0x4010_70C9;
const RELEASE: libc::c_ulong = 0x4010_70CA;
const PREEMPT: libc::c_ulong = 0x4018_70CB;
const PREEMPT_ABORT: libc::c_ulong = 0x4018_70CC;
/// `PR_WRITE_EXCLUSIVE`: the host that has the reservation writes, by whichever of its connections.
const WRITE_EXCLUSIVE: u32 = 1;
/// `PR_FL_IGNORE_KEY`: whatever key this host had before, if any.
const IGNORE_KEY: u32 = 1;

/// Key by which a host reserves namespaces: the same on all of them, and another for each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceKey(NonZeroU64);

impl FenceKey {
    /// Returns the key of the host with this name: `SipHash-2-4` of it, so that another host knows
    /// it, too.
    pub fn of_host(name: &str) -> Self {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        hasher.write(name.as_bytes());
        Self(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
    }
}

/// State of a namespace by its reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// Reserved for this host: others cannot write it.
    Ours,
    /// Reserved for another host.
    Elsewhere,
    /// Device, driver, or user without reservations.
    Unsupported,
}

/// Fences the namespace for this host, in place of `theirs` where another host is known to have it;
/// what that has in flight ends, too.
pub(in crate::path) fn fence(
    file: &File,
    ours: FenceKey,
    theirs: Option<FenceKey>,
) -> io::Result<Fence> {
    Reservations(|command| ask(file, command)).fence(ours, theirs)
}

/// Gives the namespace's reservation back, if it is this host's.
pub(in crate::path) fn unfence(file: &File, ours: FenceKey) {
    Reservations(|command| ask(file, command)).unfence(ours);
}

/// A command to a namespace.
#[derive(Clone, Copy, Debug)]
enum Command {
    Register(FenceKey),
    /// Gives this host, which is registered under another key, this one.
    Replace(FenceKey),
    Reserve(FenceKey),
    Release(FenceKey),
    /// Ends the registrations under the second key and takes the reservation.
    Preempt {
        ours: FenceKey,
        theirs: FenceKey,
        /// Ends what those hosts have in flight, too.
        aborts: bool,
    },
}

/// The answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// Reservation of another host; or this one, or the other key, is not registered.
    Conflict,
    Unsupported,
}

/// Reservations of a namespace, by what responds to its commands.
struct Reservations<Ask>(Ask);

impl<Ask: FnMut(Command) -> io::Result<Answer>> Reservations<Ask> {
    fn fence(&mut self, ours: FenceKey, theirs: Option<FenceKey>) -> io::Result<Fence> {
        let mut registered = (self.0)(Command::Register(ours))?;
        if registered == Answer::Conflict {
            // The host had another name when it registered.
            registered = (self.0)(Command::Replace(ours))?;
        }
        match registered {
            Answer::Done => {}
            Answer::Conflict => return Ok(Fence::Elsewhere),
            Answer::Unsupported => return Ok(Fence::Unsupported),
        }
        if let Some(theirs) = theirs {
            let preempt = |aborts| Command::Preempt { ours, theirs, aborts };
            // Not every target ends what is in flight. Where that key is not registered a third
            // host may have the namespace, which the answer to what follows tells.
            if (self.0)(preempt(true))? == Answer::Unsupported {
                (self.0)(preempt(false))?;
            }
        }
        Ok(match (self.0)(Command::Reserve(ours))? {
            Answer::Done => Fence::Ours,
            Answer::Conflict => Fence::Elsewhere,
            Answer::Unsupported => Fence::Unsupported,
        })
    }

    fn unfence(&mut self, ours: FenceKey) {
        // It stays registered, which gives it no right: Linux before 7 cannot end that.
        let _ = (self.0)(Command::Release(ours));
    }
}

/// Structures of `<linux/pr.h>`, as 64-bit words: `pr_registration`, `pr_reservation` and
/// `pr_preempt`.
fn ask(file: &File, command: Command) -> io::Result<Answer> {
    let fields = |one: u32, other: u32| -> u64 { bytemuck::cast([one, other]) };
    let kind = fields(WRITE_EXCLUSIVE, 0);
    let (request, words) = match command {
        Command::Register(key) => (REGISTER, [0, key.0.get(), fields(IGNORE_KEY, 0)]),
        // An old key that is not zero makes it a replacement; which it was is ignored.
        Command::Replace(key) => (REGISTER, [key.0.get(), key.0.get(), fields(IGNORE_KEY, 0)]),
        Command::Reserve(key) => (RESERVE, [key.0.get(), kind, 0]),
        Command::Release(key) => (RELEASE, [key.0.get(), kind, 0]),
        Command::Preempt { ours, theirs, aborts } => {
            let request = if aborts { PREEMPT_ABORT } else { PREEMPT };
            // The kernel calls them the old and the new one, and gives both drivers the first as
            // the key of who asks.
            (request, [ours.0.get(), theirs.0.get(), kind])
        }
    };
    // SAFETY: the kernel reads a structure of at most these 24 bytes, which outlive the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as _, words.as_ptr()) } {
        -1 => answer_of_error(io::Error::last_os_error()),
        status => answer_of_status(status.cast_unsigned()),
    }
}

fn answer_of_error(error: io::Error) -> io::Result<Answer> {
    match error.raw_os_error() {
        // The driver has none; a partition has none; or it takes CAP_SYS_ADMIN.
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL | libc::EPERM | libc::EACCES) => {
            Ok(Answer::Unsupported)
        }
        Some(libc::EBADE) => Ok(Answer::Conflict),
        _ => Err(error),
    }
}

/// Returns the answer by the status of a device: NVMe's before Linux 6.5, SCSI's since then and on
/// SCSI devices.
fn answer_of_status(status: u32) -> io::Result<Answer> {
    const SCSI_RESERVATION_CONFLICT: u32 = 0x18;
    const NVME_RESERVATION_CONFLICT: u32 = 0x083;
    const NVME_STATUS: u32 = 0x7FF;
    /// Errors of the way to the device: `PR_STS_RETRY_PATH_FAILURE` and on, and NVMe's.
    const PATH: std::ops::Range<u32> = 0x300..0x400;
    match status {
        0 => Ok(Answer::Done),
        SCSI_RESERVATION_CONFLICT => Ok(Answer::Conflict),
        _ if status & NVME_STATUS == NVME_RESERVATION_CONFLICT => Ok(Answer::Conflict),
        _ if status > 0xFFFF || PATH.contains(&(status & NVME_STATUS)) => Err(io::Error::other(
            format!("the device did not get, or not answer, a reservation command ({status:#x})"),
        )),
        _ => Ok(Answer::Unsupported),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A namespace as its target knows it: hosts with their keys, and who has it reserved.
    #[derive(Default)]
    struct Target {
        keys: HashMap<&'static str, FenceKey>,
        holder: Option<&'static str>,
        aborts: bool,
    }

    impl Target {
        fn answer(&mut self, host: &'static str, command: Command) -> Answer {
            let is_registered = |key| self.keys.get(host) == Some(&key);
            match command {
                Command::Register(key) if self.keys.get(host).is_none_or(|it| *it == key) => {
                    self.keys.insert(host, key);
                }
                Command::Replace(key) if self.keys.contains_key(host) => {
                    self.keys.insert(host, key);
                }
                Command::Release(key) if is_registered(key) => {
                    self.holder = self.holder.filter(|holder| *holder != host);
                }
                Command::Reserve(key)
                    if is_registered(key) && self.holder.is_none_or(|holder| holder == host) =>
                {
                    self.holder = Some(host);
                }
                Command::Preempt { aborts: true, .. } if !self.aborts => {
                    return Answer::Unsupported;
                }
                Command::Preempt { ours, theirs, .. } if is_registered(ours) => {
                    let before = self.keys.len();
                    self.keys.retain(|other, key| *other == host || *key != theirs);
                    if self.keys.len() == before {
                        return Answer::Conflict;
                    }
                    if self.holder.is_none_or(|holder| !self.keys.contains_key(holder)) {
                        self.holder = Some(host);
                    }
                }
                _ => return Answer::Conflict,
            }
            Answer::Done
        }

        fn of(
            &mut self,
            host: &'static str,
        ) -> Reservations<impl FnMut(Command) -> io::Result<Answer>> {
            Reservations(move |command| Ok(self.answer(host, command)))
        }

        fn may_write(&self, host: &str) -> bool {
            self.holder.is_none_or(|holder| holder == host)
        }
    }

    fn key(host: &str) -> FenceKey {
        FenceKey::of_host(host)
    }

    #[test]
    fn one_host_writes_at_a_time_and_who_was_taken_over_does_not() {
        for aborts in [true, false] {
            let mut target = Target { aborts, ..Target::default() };
            assert_eq!(target.of("a").fence(key("a"), None).unwrap(), Fence::Ours);
            // Once more, as after a crash, or by another process of the host.
            assert_eq!(target.of("a").fence(key("a"), None).unwrap(), Fence::Ours);
            assert_eq!(target.of("b").fence(key("b"), None).unwrap(), Fence::Elsewhere);
            assert!(target.may_write("a") && !target.may_write("b"));
            assert_eq!(target.of("b").fence(key("b"), Some(key("a"))).unwrap(), Fence::Ours);
            assert!(target.may_write("b") && !target.may_write("a"));
            // The one that was taken over ends nothing of the other's.
            target.of("a").unfence(key("a"));
            assert_eq!(target.of("a").fence(key("a"), None).unwrap(), Fence::Elsewhere);
            assert!(!target.may_write("a"));
            target.of("b").unfence(key("b"));
            assert_eq!(target.of("a").fence(key("a"), None).unwrap(), Fence::Ours);
        }
    }

    #[test]
    fn a_host_that_has_another_name_now_has_what_it_had() {
        let mut target = Target { aborts: true, ..Target::default() };
        assert_eq!(target.of("a").fence(key("a"), None).unwrap(), Fence::Ours);
        assert_eq!(target.of("a").fence(key("new"), Some(key("a"))).unwrap(), Fence::Ours);
        assert_eq!(target.of("b").fence(key("b"), Some(key("a"))).unwrap(), Fence::Elsewhere);
        assert_eq!(target.of("b").fence(key("b"), Some(key("new"))).unwrap(), Fence::Ours);
    }

    #[test]
    fn a_third_host_is_not_fenced_off_by_the_name_of_another() {
        let mut target = Target { aborts: true, ..Target::default() };
        assert_eq!(target.of("c").fence(key("c"), None).unwrap(), Fence::Ours);
        assert_eq!(target.of("b").fence(key("b"), Some(key("a"))).unwrap(), Fence::Elsewhere);
        assert!(target.may_write("c") && !target.may_write("b"));
        target.of("c").unfence(key("c"));
        assert_eq!(target.of("b").fence(key("b"), Some(key("a"))).unwrap(), Fence::Ours);
    }

    #[test]
    fn answers_of_both_kinds_of_devices_and_of_old_kernels_are_known() {
        for (status, answer) in [
            (0, Answer::Done),
            (0x18, Answer::Conflict),
            (0x83, Answer::Conflict),
            (0x4083, Answer::Conflict),
            (0x2, Answer::Unsupported),
            (0x4001, Answer::Unsupported),
        ] {
            assert_eq!(answer_of_status(status).unwrap(), answer, "{status:#x}");
        }
        for status in [0x370, 0x4371, 0xE_0000] {
            answer_of_status(status).unwrap_err();
        }
        let of = |errno| answer_of_error(io::Error::from_raw_os_error(errno));
        assert_eq!(of(libc::EPERM).unwrap(), Answer::Unsupported);
        assert_eq!(of(libc::EBADE).unwrap(), Answer::Conflict);
        assert_eq!(of(libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn the_key_of_a_host_stays_what_it_is() {
        assert_eq!(key("").0.get(), 0x1e92_4b9d_7377_00d7);
        assert_ne!(key("a"), key("b"));
    }

    #[test]
    fn a_file_has_no_reservations() {
        let file = File::open("/dev/null").unwrap();
        for theirs in [None, Some(key("b"))] {
            assert_eq!(fence(&file, key("a"), theirs).unwrap(), Fence::Unsupported);
        }
        unfence(&file, key("a"));
    }
}
