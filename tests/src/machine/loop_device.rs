use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Unavailable, system};

/// Options of a loop device.
#[derive(Clone, Copy, Debug)]
pub struct LoopOptions {
    /// Bytes of a sector: 512 or 4096.
    pub sector: u32,
    /// True if the file's page cache is bypassed, so that the file's errors become the device's.
    pub direct: bool,
    /// True if the loop device refuses writes.
    pub read_only: bool,
    /// Bytes of the file that come before the device.
    pub offset: u64,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self { sector: 512, direct: true, read_only: false, offset: 0 }
    }
}

/// A loop device over a file.
#[derive(Debug)]
pub struct LoopDevice {
    node: String,
    backing: PathBuf,
    attached: bool,
}

impl LoopDevice {
    /// Makes one.
    ///
    /// # Errors
    /// Why this machine gives none.
    pub fn attach(file: &Path, options: LoopOptions) -> Result<Self, Unavailable> {
        let (sector, offset) = (options.sector.to_string(), options.offset.to_string());
        let mut arguments = vec!["--find", "--show", "--sector-size", &sector, "--offset", &offset];
        if options.direct {
            arguments.push("--direct-io=on");
        }
        if options.read_only {
            arguments.push("--read-only");
        }
        let name = file.to_string_lossy();
        arguments.push(&name);
        let node = system("losetup", &arguments)?;
        let made = Self { node, backing: file.into(), attached: true };
        // What a test that was killed left would be taken for the new file's.
        made.forget_partitions()?;
        Ok(made)
    }

    /// The device file.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the kernel's name of the device.
    pub fn name(&self) -> &str {
        self.node.trim_start_matches("/dev/")
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
        let forgotten = self.forget_partitions();
        system("losetup", &["--detach", &self.node])?;
        forgotten
    }

    /// Has the kernel forget the partitions that it was told of: it keeps them, without a file
    /// behind them, for whoever gets the device next.
    fn forget_partitions(&self) -> Result<(), Unavailable> {
        let partitions = || {
            let entries = fs::read_dir(self.sysfs()).into_iter().flatten().flatten();
            entries.filter(|it| it.path().join("partition").exists()).count()
        };
        // A process that another test starts just now has our descriptors until it executes.
        for _ in 0..200 {
            if partitions() == 0 {
                return Ok(());
            }
            if system("partx", &["--delete", &self.node]).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Err(format!("{} has partitions that somebody uses", self.node))
    }

    fn sysfs(&self) -> PathBuf {
        Path::new("/sys/block").join(self.name())
    }

    /// Returns whether the kernel still has the file behind the device.
    pub fn is_attached(&self) -> bool {
        self.sysfs().join("loop/backing_file").exists()
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
        system("blockdev", &[how, &self.node]).map(|_| ())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.attached {
            let _ = self.detach();
        }
    }
}
