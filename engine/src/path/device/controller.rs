//! Naming NVMe controllers that the kernel does not drive.

use std::fmt;

/// Prefix of the name of a device that SPDK drives.
const PREFIX: &str = "spdk:";
/// The words of a transport id.
const TRANSPORT: [&str; 6] = ["trtype", "adrfam", "traddr", "trsvcid", "subnqn", "priority"];
/// Keys of what a target learns of this host, which SPDK takes by other ways than the transport id,
/// where it ignores them.
const HOST: [&str; 4] = ["hostnqn", "hostid", "hostaddr", "hostsvcid"];

/// A namespace of a controller: `spdk:0000:01:00.0` by PCI address, or `spdk:trtype:TCP adrfam:IPv4
/// traddr:10.0.0.1 trsvcid:4420 subnqn:nqn.2016-06.io.spdk:cnode1` by transport id. A further word
/// `ns:2` names another namespace than the first; `hostnqn:` and `hostid:` say as which host a
/// target is connected to, `hostaddr:` and `hostsvcid:` from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerName {
    transport: String,
    namespace: u32,
    /// Properties of this host: key and value.
    host: Vec<(&'static str, String)>,
    /// The first word that means nothing.
    meaningless: Option<String>,
}

impl ControllerName {
    /// Reads a device's name; `None` if it names no controller.
    pub(super) fn read(name: &str) -> Option<Self> {
        let named = name.strip_prefix(PREFIX)?;
        let words: Vec<&str> = named.split_whitespace().collect();
        let mut read =
            Self { transport: String::new(), namespace: 1, host: Vec::new(), meaningless: None };
        let mut transport = Vec::new();
        for &word in &words {
            if is_pci_address(word) {
                transport.push(word);
            } else if !read.take(word, &mut transport) && read.meaningless.is_none() {
                read.meaningless = Some(word.into());
            }
        }
        read.transport = match transport.as_slice() {
            [address] if is_pci_address(address) => format!("trtype:PCIe traddr:{address}"),
            words => words.join(" "),
        };
        Some(read)
    }

    /// Takes a word in. Returns whether it means something.
    fn take<'a>(&mut self, word: &'a str, transport: &mut Vec<&'a str>) -> bool {
        let Some((key, value)) = word.split_once([':', '=']) else { return false };
        let is_key = |other: &&&str| other.eq_ignore_ascii_case(key);
        if TRANSPORT.iter().any(|it| is_key(&it)) {
            transport.push(word);
        } else if let Some(key) = HOST.iter().find(is_key) {
            self.host.push((key, value.into()));
        } else if key.eq_ignore_ascii_case("ns") {
            match value.parse() {
                Ok(number) => self.namespace = number,
                Err(_) => return false,
            }
        } else {
            return false;
        }
        !value.is_empty()
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

    /// Returns the value of a property of this host: `hostnqn`, `hostid`, `hostaddr`, `hostsvcid`.
    pub fn word(&self, key: &str) -> Option<&str> {
        self.host.iter().find(|(it, _)| *it == key).map(|(_, value)| value.as_str())
    }

    /// A word of it that means nothing, if there is one: it names no device then.
    pub fn meaningless(&self) -> Option<&str> {
        self.meaningless.as_deref()
    }

    /// Returns whether both name one namespace, however they spell it. What has two addresses is
    /// not seen here.
    pub fn is_twin_of(&self, other: &Self) -> bool {
        let spelled = |name: &Self| match name.pci_address() {
            Some(address) if address.matches(':').count() == 1 => format!("0000:{address}"),
            Some(address) => address.to_ascii_lowercase(),
            None => {
                let mut words: Vec<String> = name.transport.split(' ').map(spelled_alike).collect();
                words.sort_unstable();
                words.join(" ")
            }
        };
        self.namespace == other.namespace && spelled(self) == spelled(other)
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{PREFIX}{}", self.pci_address().unwrap_or(&self.transport))?;
        for (key, value) in &self.host {
            write!(out, " {key}:{value}")?;
        }
        if let Some(word) = &self.meaningless {
            write!(out, " {word}")?;
        }
        match self.namespace {
            1 => Ok(()),
            number => write!(out, " ns:{number}"),
        }
    }
}

/// A word of a transport id in one spelling. Values are names of others, in which case counts, but
/// for two of SPDK's own.
fn spelled_alike(word: &str) -> String {
    let (key, value) = word.split_once([':', '=']).unwrap_or((word, ""));
    match key.to_ascii_lowercase() {
        key if key == "trtype" || key == "adrfam" => {
            format!("{key}:{}", value.to_ascii_lowercase())
        }
        key => format!("{key}:{value}"),
    }
}

/// Returns whether the text is a PCI address: `0000:01:00.0`, with or without the domain.
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
    fn what_is_said_of_the_host_is_no_part_of_the_transport_id() {
        let name = "spdk:trtype:TCP traddr:10.0.0.1 subnqn:nqn.a HostNQN=nqn.b hostid:7 ns=2";
        let read = ControllerName::read(name).unwrap();
        assert_eq!(read.transport(), "trtype:TCP traddr:10.0.0.1 subnqn:nqn.a");
        assert_eq!((read.word("hostnqn"), read.word("hostid")), (Some("nqn.b"), Some("7")));
        assert_eq!((read.namespace(), read.word("hostaddr"), read.meaningless()), (2, None, None));
        assert_eq!(ControllerName::read(&read.to_string()), Some(read));
    }

    #[test]
    fn a_word_that_means_nothing_is_not_ignored() {
        for (name, word) in [
            ("spdk:0000:01:00.0 ns:two", "ns:two"),
            ("spdk:trtype:TCP traddr:10.0.0.1 alt_traddr:10.0.0.2", "alt_traddr:10.0.0.2"),
            ("spdk:trtype:TCP traddr:10.0.0.1 hostnqn:", "hostnqn:"),
            ("spdk:nvme0", "nvme0"),
        ] {
            assert_eq!(ControllerName::read(name).unwrap().meaningless(), Some(word), "{name}");
        }
    }

    #[test]
    fn one_namespace_has_one_name_however_it_is_spelled() {
        let is_twin = |one: &str, other: &str| {
            let read = |name| ControllerName::read(name).unwrap();
            read(one).is_twin_of(&read(other))
        };
        assert!(is_twin("spdk:01:00.0", "spdk:0000:01:00.0"));
        assert!(is_twin("spdk:0000:AB:00.0", "spdk:0000:ab:00.0 ns:1"));
        assert!(is_twin("spdk:trtype:TCP traddr:a subnqn:b", "spdk:subnqn=b TRTYPE=tcp traddr:a"));
        assert!(!is_twin("spdk:0000:01:00.0", "spdk:0000:01:00.0 ns:2"));
        assert!(!is_twin("spdk:0000:01:00.0", "spdk:0000:02:00.0"));
    }

    #[test]
    fn a_path_names_none() {
        for name in ["/dev/nvme0n1", "spdk", "./spdk:x"] {
            assert_eq!(ControllerName::read(name), None, "{name}");
        }
    }
}
