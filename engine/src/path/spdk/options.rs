//! Options of SPDK's environment, as the program or its user gives them.

use std::str::FromStr;
use std::time::Duration;

use super::environment::EnvironmentError;
use crate::units::ByteCount;

/// Options of the environment. It is started by the first device that needs it, as the program said
/// ([`configure`](super::configure)), or else as its user did: `TIDELOG_SPDK_PAGES` (`auto`,
/// `huge`, `plain`), `TIDELOG_SPDK_MEMORY_MIB`, `TIDELOG_SPDK_CORE`, `TIDELOG_SPDK_TIMEOUT_S`.
#[derive(Clone, Copy, Debug)]
pub struct EnvironmentOptions {
    /// Pages of the memory.
    pub pages: Pages,
    /// All memory for queues and staging. On huge pages it is only the beginning, and more is taken
    /// when needed. On plain ones VFIO counts each of 4 KiB as a mapping, of which it allows
    /// 65,535: not quite 256 MiB.
    pub memory: ByteCount,
    /// The core on which the environment is started; the first that this process may run on if
    /// `None`. It has one thread, so there is no mask of them; that thread may then run wherever
    /// the process may.
    pub core: Option<usize>,
    /// Time after which a command is aborted; as long again, and the controller is reset.
    pub timeout: Duration,
}

impl Default for EnvironmentOptions {
    fn default() -> Self {
        Self {
            pages: Pages::Auto,
            memory: ByteCount::mib(128),
            core: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Pages of the environment's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages if as many are free as needed, else plain ones.
    Auto,
    /// Huge pages or nothing. A controller without an IOMMU (uio) needs them.
    Huge,
    /// Plain ones.
    Plain,
}

impl EnvironmentOptions {
    /// Reads the options of the process's environment variables; the default where they say
    /// nothing.
    pub(super) fn of_the_user() -> Result<Self, EnvironmentError> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let default = Self::default();
        let pages = match variable("TIDELOG_SPDK_PAGES").as_deref() {
            None => default.pages,
            Some("auto") => Pages::Auto,
            Some("huge") => Pages::Huge,
            Some("plain") => Pages::Plain,
            Some(other) => {
                return Err(meaningless("TIDELOG_SPDK_PAGES", other, "auto, huge or plain"));
            }
        };
        let memory = number(&variable, "TIDELOG_SPDK_MEMORY_MIB", "mebibytes, 1 or more")?;
        let timeout = number(&variable, "TIDELOG_SPDK_TIMEOUT_S", "seconds, 1 or more")?;
        let core = "the number of one core: the environment has one thread, and no use for a mask";
        Ok(Self {
            pages,
            memory: memory.map_or(default.memory, |it: Positive| ByteCount::mib(it.0)),
            timeout: timeout.map_or(default.timeout, |it: Positive| Duration::from_secs(it.0)),
            core: number(&variable, "TIDELOG_SPDK_CORE", core)?,
        })
    }
}

/// Number less than 2^32, and not 0.
struct Positive(u64);

impl FromStr for Positive {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number: u32 = text.parse().map_err(drop)?;
        if number == 0 { Err(()) } else { Ok(Self(number.into())) }
    }
}

fn number<T: FromStr>(
    variable: &impl Fn(&str) -> Option<String>,
    name: &str,
    wanted: &str,
) -> Result<Option<T>, EnvironmentError> {
    let Some(text) = variable(name) else { return Ok(None) };
    text.trim().parse().map(Some).map_err(|_| meaningless(name, &text, wanted))
}

fn meaningless(name: &str, text: &str, wanted: &str) -> EnvironmentError {
    EnvironmentError(format!("{name}={text:?} says nothing; write {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<EnvironmentOptions, String> {
        let find = |name: &str| {
            variables.iter().find(|(it, _)| *it == name).map(|(_, text)| (*text).to_owned())
        };
        EnvironmentOptions::read(find).map_err(|error| error.to_string())
    }

    #[test]
    fn a_user_says_pages_memory_core_and_time_out() {
        let said = read(&[
            ("TIDELOG_SPDK_PAGES", "plain"),
            ("TIDELOG_SPDK_MEMORY_MIB", "192"),
            ("TIDELOG_SPDK_CORE", "3"),
            ("TIDELOG_SPDK_TIMEOUT_S", "5"),
        ]);
        let said = said.unwrap();
        assert_eq!((said.pages, said.memory), (Pages::Plain, ByteCount::mib(192)));
        assert_eq!((said.core, said.timeout), (Some(3), Duration::from_secs(5)));
        let said = read(&[]).unwrap();
        assert_eq!((said.pages, said.core), (Pages::Auto, None));
    }

    #[test]
    fn what_says_nothing_is_refused_by_name() {
        for (name, text) in [
            ("TIDELOG_SPDK_PAGES", "large"),
            ("TIDELOG_SPDK_MEMORY_MIB", "0"),
            ("TIDELOG_SPDK_MEMORY_MIB", "1GiB"),
            ("TIDELOG_SPDK_CORE", "0x3"),
            ("TIDELOG_SPDK_TIMEOUT_S", "-1"),
        ] {
            let why = read(&[(name, text)]).unwrap_err();
            assert!(why.contains(name) && why.contains(text), "{why}");
        }
        assert!(read(&[("TIDELOG_SPDK_CORE", "0x3")]).unwrap_err().contains("mask"));
    }
}
