use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Unavailable, system};

/// How a loop device is made.
#[derive(Clone, Copy, Debug)]
pub struct LoopOptions {
    /// Bytes of a sector: 512 or 4096.
    pub sector: u32,
    /// Whether the file's page cache is bypassed, so that the file's errors become the device's.
    pub direct: bool,
    /// Whether it refuses writes.
    pub read_only: bool,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self { sector: 512, direct: true, read_only: false }
    }
}

/// A loop device over a file.
#[derive(Debug)]
pub struct LoopDevice {
    node: PathBuf,
    backing: PathBuf,
    attached: bool,
}

impl LoopDevice {
    /// Makes one.
    ///
    /// # Errors
    /// Why this machine gives none.
    pub fn attach(file: &Path, options: LoopOptions) -> Result<Self, Unavailable> {
        let sector = options.sector.to_string();
        let mut arguments = vec!["--find", "--show", "--sector-size", &sector];
        if options.direct {
            arguments.push("--direct-io=on");
        }
        if options.read_only {
            arguments.push("--read-only");
        }
        let name = file.to_string_lossy();
        arguments.push(&name);
        let node = system("losetup", &arguments)?;
        Ok(Self { node: node.into(), backing: file.into(), attached: true })
    }

    /// The device file.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// The file behind it.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Takes the file away, or has the kernel do so once nobody has the device open.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn detach(&mut self) -> Result<(), Unavailable> {
        self.attached = false;
        system("losetup", &["--detach", &self.node.to_string_lossy()]).map(|_| ())
    }

    /// Whether the kernel still has the file behind the device.
    pub fn is_attached(&self) -> bool {
        let name = self.node.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("loop/backing_file").exists()
    }

    /// Waits for what [`Self::detach`] began.
    pub fn wait_until_detached(&self) -> bool {
        (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !self.is_attached()
        })
    }

    /// Makes the device refuse writes, or take them again, whoever has it open.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_read_only(&self, read_only: bool) -> Result<(), Unavailable> {
        let how = if read_only { "--setro" } else { "--setrw" };
        system("blockdev", &[how, &self.node.to_string_lossy()]).map(|_| ())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.attached {
            let _ = self.detach();
        }
    }
}
