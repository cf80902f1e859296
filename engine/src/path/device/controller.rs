//! Naming NVMe controllers that the kernel does not drive.

use std::fmt;

/// What begins the name of such a device.
const PREFIX: &str = "spdk:";

/// A namespace of a controller: `spdk:0000:01:00.0` by PCI address, or
/// `spdk:trtype:TCP adrfam:IPv4 traddr:10.0.0.1 trsvcid:4420 subnqn:nqn.2016-06.io.spdk:cnode1` by transport id.
/// A further word `ns:2` names another namespace than the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerName {
    transport: String,
    namespace: u32,
}

impl ControllerName {
    /// Reads a device's name; `None` if it names no controller.
    pub(super) fn read(name: &str) -> Option<Self> {
        let named = name.strip_prefix(PREFIX)?;
        let (mut words, mut namespace) = (Vec::new(), 1);
        for word in named.split_whitespace() {
            match word.strip_prefix("ns:").and_then(|number| number.parse().ok()) {
                Some(number) => namespace = number,
                None => words.push(word),
            }
        }
        let transport = match words.as_slice() {
            [address] if is_pci_address(address) => format!("trtype:PCIe traddr:{address}"),
            words => words.join(" "),
        };
        Some(Self { transport, namespace })
    }

    /// The transport id, as SPDK reads it.
    pub fn transport(&self) -> &str {
        &self.transport
    }

    /// The number of the namespace, from 1 on.
    pub fn namespace(&self) -> u32 {
        self.namespace
    }

    /// The PCI address, if it is on this machine's bus.
    pub fn pci_address(&self) -> Option<&str> {
        self.transport.strip_prefix("trtype:PCIe traddr:")
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}{}", self.pci_address().unwrap_or(&self.transport))?;
        match self.namespace {
            1 => Ok(()),
            number => write!(out, " ns:{number}"),
        }
    }
}

/// Whether this is `0000:01:00.0`, or the same without the domain.
fn is_pci_address(text: &str) -> bool {
    let hexadecimal =
        |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_hexdigit());
    let parts: Vec<&str> = text.split([':', '.']).collect();
    text.contains('.') && (3..=4).contains(&parts.len()) && parts.into_iter().all(hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_and_a_transport_id_both_name_a_controller() {
        let local = ControllerName::read("spdk:0000:01:00.0").unwrap();
        assert_eq!(local.transport(), "trtype:PCIe traddr:0000:01:00.0");
        assert_eq!((local.pci_address(), local.namespace()), (Some("0000:01:00.0"), 1));
        assert_eq!(local.to_string(), "spdk:0000:01:00.0");
        let name = "spdk:trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420 subnqn:nqn.2016-06.io:c ns:2";
        let remote = ControllerName::read(name).unwrap();
        assert_eq!((remote.pci_address(), remote.namespace()), (None, 2));
        assert!(remote.transport().ends_with("subnqn:nqn.2016-06.io:c"), "{remote}");
        assert_eq!(remote.to_string(), name);
    }

    #[test]
    fn a_path_names_none() {
        for name in ["/dev/nvme0n1", "spdk", "./spdk:x"] {
            assert_eq!(ControllerName::read(name), None, "{name}");
        }
    }
}
