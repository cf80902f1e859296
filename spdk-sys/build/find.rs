//! Search for an installed SPDK that serves.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest SPDK that has every function used.
pub(crate) const OLDEST: (u32, u32) = (24, 9);

/// pkg-config, as the build's environment has it.
#[derive(Default)]
pub(crate) struct PkgConfig {
    /// Looks there, and nowhere else.
    pub(crate) only: Option<PathBuf>,
}

/// An SPDK that serves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InstalledSpdk {
    /// Version, such as `24.09`.
    pub(crate) version: String,
    /// The header that says so.
    pub(crate) header: PathBuf,
}

impl PkgConfig {
    /// Runs pkg-config with these arguments, and returns its output.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        let program = std::env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
        let mut command = Command::new(&program);
        if let Some(only) = &self.only {
            command.env_remove("PKG_CONFIG_PATH").env("PKG_CONFIG_LIBDIR", only);
        }
        let output = command
            .args(arguments)
            .output()
            .map_err(|error| format!("cannot run {program}: {error}; install pkg-config"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or_default();
        Err(format!(
            "the feature `spdk` needs an installed SPDK ({} or newer), and pkg-config does not find it: {said}; \
             install SPDK, and put the directory of spdk_nvme.pc into PKG_CONFIG_PATH",
            text(OLDEST)
        ))
    }

    /// The SPDK that is installed. Its version stands in a header: pkg-config has that of each
    /// library's interface.
    pub(crate) fn find(&self, package: &str) -> Result<InstalledSpdk, String> {
        let flags = self.ask(&["--cflags-only-I", "--keep-system-cflags", package])?;
        let found = flags
            .split_whitespace()
            .filter_map(|flag| flag.strip_prefix("-I"))
            .map(|directory| Path::new(directory).join("spdk/version.h"))
            .find_map(|header| Some((std::fs::read_to_string(&header).ok()?, header)));
        let (content, header) =
            found.ok_or("SPDK's header spdk/version.h is not where pkg-config says")?;
        let number = |name: &str| -> Result<u32, String> {
            let define = format!("#define {name}");
            content
                .lines()
                .find_map(|line| line.strip_prefix(define.as_str())?.trim().parse().ok())
                .ok_or_else(|| format!("SPDK's header {} has no {name}", header.display()))
        };
        let found = (number("SPDK_VERSION_MAJOR")?, number("SPDK_VERSION_MINOR")?);
        if found < OLDEST {
            let (found, oldest) = (text(found), text(OLDEST));
            return Err(format!("SPDK {found} is too old; install {oldest} or newer"));
        }
        Ok(InstalledSpdk { version: text(found), header })
    }
}

fn text((year, month): (u32, u32)) -> String {
    format!("{year:02}.{month:02}")
}
