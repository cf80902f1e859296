//! The name that a process leaves on a share that it has open, for those who are refused.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::layout::{BLOCK_BYTES, HOLDERS_OFFSET, Holder};
use crate::path::MemberDevice;

/// Time for which a refused opener waits for the holder to have written its name.
const NAME_WAIT: Duration = Duration::from_millis(200);

/// Returns the offset of the holder block of a share.
pub(super) fn holder_offset(share: u32) -> u64 {
    HOLDERS_OFFSET + u64::from(share) * BLOCK_BYTES
}

/// The name that the last process left on a share.
pub(super) fn last_holder(member: &dyn MemberDevice, share: u32) -> Option<Holder> {
    let block = member.read(holder_offset(share), BLOCK_BYTES as usize).ok()?;
    Holder::decode(&block, share)
}

/// The process that has one of these shares, once a live one stands there: right after the lock was
/// taken the name may still be the last holder's, or none.
pub(super) fn find_holder(member: &dyn MemberDevice, shares: &Range<u32>) -> Option<Holder> {
    let deadline = Instant::now() + NAME_WAIT;
    loop {
        let mut holders = shares.clone().filter_map(|share| last_holder(member, share));
        if let Some(holder) = holders.find(is_alive) {
            return Some(holder);
        }
        if Instant::now() >= deadline {
            // The name of a dead process would only mislead: some child it forked may hold the
            // lock.
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_alive(holder: &Holder) -> bool {
    Path::new(&format!("/proc/{}", holder.process)).exists()
}

/// The name of this process.
pub(super) fn this_process() -> Holder {
    let command = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Holder { process: std::process::id(), command: command.trim_end().to_owned(), since }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Events, SHARES_MAX};
    use crate::path::DeviceSpec;
    use crate::pool::members::{Member, MemberAccess, OpenMemberError};
    use std::fs::File;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tidelog-{}-{name}", std::process::id()));
            File::create(&path).unwrap().set_len(1 << 20).unwrap();
            Self(path)
        }

        fn open(&self, shares: Range<u32>) -> Result<Member, OpenMemberError> {
            let access = MemberAccess { shares, ..MemberAccess::of_share(0, true) };
            Member::open(&DeviceSpec::new(&self.0), 0, &access)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_held_share_names_its_holder_and_other_shares_stay_open_to_others() {
        let device = Scratch::new("lock");
        let held = device.open(1..2).unwrap();
        held.write(holder_offset(1), &this_process().encode(1, 1, Events::NONE)).unwrap();
        let other = device.open(2..3).unwrap();
        for shares in [1..2, 0..SHARES_MAX] {
            match device.open(shares.clone()) {
                Err(OpenMemberError::Held { holder: Some(holder), .. }) => {
                    assert_eq!(holder.process, std::process::id());
                    assert!(holder.command.contains("tidelog_engine"), "{}", holder.command);
                }
                other => panic!("{shares:?} was not refused with a name: {:?}", other.err()),
            }
        }
        drop((held, other));
        device.open(0..SHARES_MAX).unwrap();
    }

    #[test]
    fn the_record_of_a_dead_process_names_nobody() {
        let device = Scratch::new("stale");
        let held = device.open(0..1).unwrap();
        let dead = Holder { process: u32::MAX, command: "gone".into(), since: 1 };
        held.write(holder_offset(0), &dead.encode(1, 0, Events::NONE)).unwrap();
        let refused = device.open(0..1);
        assert!(matches!(refused, Err(OpenMemberError::Held { holder: None, .. })));
    }
}
