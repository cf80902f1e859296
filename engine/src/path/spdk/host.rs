//! Identity of this host for targets behind a connection: as the name says, or else as the system
//! does.

use std::ffi::c_char;
use std::fs;
use std::path::Path;

use tidelog_spdk_sys as sys;

use crate::path::device::ControllerName;

/// Directory of the system's identity, for all hosts that connect to targets.
const SYSTEM: &str = "/etc/nvme";

/// Identity of the host. What it lacks is SPDK's to choose: an NQN and an identifier of this
/// process's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    nqn: Option<String>,
    identifier: Option<[u8; 16]>,
    /// Source address of the connection, if not from wherever the kernel chooses.
    address: Option<String>,
    service: Option<String>,
}

impl Host {
    /// Returns the host's identity as the name of a controller gives it, or the system.
    pub(super) fn of(name: &ControllerName) -> Result<Self, String> {
        Self::read(name, Path::new(SYSTEM))
    }

    fn read(name: &ControllerName, system: &Path) -> Result<Self, String> {
        let of_system = |file: &str| {
            let text = fs::read_to_string(system.join(file)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let said = |key: &str| name.word(key).map(ToOwned::to_owned);
        let nqn = said("hostnqn").or_else(|| of_system("hostnqn"));
        if let Some(nqn) = nqn.as_ref().filter(|it| it.len() > sys::SPDK_NVMF_NQN_MAX_LEN as usize)
        {
            return Err(format!("the host's NQN is too long: {nqn}"));
        }
        let identifier = said("hostid").or_else(|| of_system("hostid"));
        let identifier = identifier.map(|text| {
            read_uuid(&text).ok_or_else(|| {
                format!("hostid:{text} is no UUID, such as 2f1dc2e1-6cd4-4e8a-a7b1-21bd4f0f2a6c")
            })
        });
        let (address, service) = (said("hostaddr"), said("hostsvcid"));
        Ok(Self { nqn, identifier: identifier.transpose()?, address, service })
    }

    /// Sets the identity in the options that a controller is attached with.
    pub(super) fn put_into(&self, options: &mut sys::spdk_nvme_ctrlr_opts) {
        put(self.nqn.as_deref(), &mut options.hostnqn);
        put(self.address.as_deref(), &mut options.src_addr);
        put(self.service.as_deref(), &mut options.src_svcid);
        if let Some(identifier) = self.identifier {
            options.extended_host_id = identifier;
        }
    }
}

/// Writes a text that ends with a zero, if there is one.
fn put(text: Option<&str>, into: &mut [c_char]) {
    let Some(text) = text else { return };
    into.fill(0);
    let room = into.len() - 1;
    for (to, from) in into[..room].iter_mut().zip(text.bytes()) {
        *to = from.cast_signed();
    }
}

fn read_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|&it| it != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::DeviceSpec;
    use crate::path::tests::Directory;

    const UUID: &str = "2f1dc2e1-6cd4-4e8a-a7b1-21bd4f0f2a6c";

    fn name(words: &str) -> ControllerName {
        let name = format!("spdk:trtype:TCP traddr:127.0.0.1 subnqn:nqn.a {words}");
        DeviceSpec::new(name).controller().unwrap()
    }

    #[test]
    fn the_name_says_it_or_else_the_system() {
        let directory = Directory::new();
        let read = |words: &str| Host::read(&name(words), directory.path());
        assert_eq!(read("").unwrap(), Host::default());
        fs::write(directory.path().join("hostnqn"), "nqn.of-the-system\n").unwrap();
        fs::write(directory.path().join("hostid"), format!("{UUID}\n")).unwrap();
        let system = read("").unwrap();
        assert_eq!(system.nqn.as_deref(), Some("nqn.of-the-system"));
        assert_eq!(system.identifier.unwrap()[..2], [0x2f, 0x1d]);
        let said = read("hostnqn:nqn.b hostid=00000000-0000-0000-0000-000000000001").unwrap();
        assert_eq!(said.nqn.as_deref(), Some("nqn.b"));
        assert_eq!(said.identifier.unwrap()[15], 1);
    }

    #[test]
    fn what_no_target_could_take_is_refused() {
        let nowhere = Path::new("/nonexistent");
        let refused = |words: &str| Host::read(&name(words), nowhere).unwrap_err();
        assert!(refused("hostid:7").contains("hostid:7 is no UUID"));
        assert!(refused(&format!("hostnqn:nqn.{}", "x".repeat(300))).contains("too long"));
    }

    #[test]
    fn it_stands_in_the_options() {
        let host =
            Host::read(&name(&format!("hostnqn:nqn.b hostid:{UUID}")), Path::new("/nonexistent"));
        let mut options = sys::spdk_nvme_ctrlr_opts::default();
        options.hostnqn.fill(1);
        host.unwrap().put_into(&mut options);
        let nqn: Vec<u8> = options
            .hostnqn
            .iter()
            .take_while(|&&it| it != 0)
            .map(|it| it.cast_unsigned())
            .collect();
        assert_eq!(nqn, b"nqn.b");
        assert_eq!(options.extended_host_id[15], 0x6c);
        assert_eq!(options.src_addr[0], 0);
    }
}
