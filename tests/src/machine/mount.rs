use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Unavailable, system};

/// A file system that is mounted while this lives.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// A file system in memory with room for `bytes`.
    ///
    /// # Errors
    /// Why this machine mounts none.
    pub fn memory(at: &Path, bytes: u64) -> Result<Self, Unavailable> {
        let (at_name, size) = (at.to_string_lossy(), format!("size={bytes}"));
        system("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &at_name])?;
        Ok(Self(at.into()))
    }

    /// The ext4 file system on a device.
    ///
    /// # Errors
    /// Why this machine makes or mounts none.
    pub fn ext4(device: &Path, at: &Path) -> Result<Self, Unavailable> {
        Self::made_by(&["mkfs.ext4", "-q", "-m", "0"], device, at)
    }

    /// XFS that keeps count of what each user has.
    ///
    /// # Errors
    /// Why this machine makes or mounts none.
    pub fn xfs_with_quotas(device: &Path, at: &Path) -> Result<Self, Unavailable> {
        let device = device.to_string_lossy();
        system("mkfs.xfs", &["-q", &device])?;
        system("mount", &["-o", "uquota", &device, &at.to_string_lossy()])?;
        Ok(Self(at.into()))
    }

    /// Btrfs that keeps count of what each subvolume has. It has no checksums of data, as direct
    /// writes go past the page cache only then.
    ///
    /// # Errors
    /// Why this machine makes or mounts none.
    pub fn btrfs_with_quotas(device: &Path, at: &Path) -> Result<Self, Unavailable> {
        let (device, at_text) = (device.to_string_lossy(), at.to_string_lossy());
        system("mkfs.btrfs", &["-q", &device])?;
        system("mount", &["-o", "nodatasum", &device, &at_text])?;
        let mounted = Self(at.into());
        system("btrfs", &["quota", "enable", &at_text])?;
        // That begins to count what there is.
        system("btrfs", &["quota", "rescan", "-w", &at_text])?;
        Ok(mounted)
    }

    /// A file system on a device, by the program that makes it and its arguments.
    ///
    /// # Errors
    /// Why this machine makes or mounts none.
    pub fn made_by(maker: &[&str], device: &Path, at: &Path) -> Result<Self, Unavailable> {
        system(maker[0], &[&maker[1..], &[&*device.to_string_lossy()]].concat())?;
        Self::of(device, at)
    }

    /// Mounts the file system that is on a device.
    ///
    /// # Errors
    /// Why this machine mounts none.
    pub fn of(device: &Path, at: &Path) -> Result<Self, Unavailable> {
        system("mount", &[&device.to_string_lossy(), &at.to_string_lossy()])?;
        Ok(Self(at.into()))
    }

    /// Mounts an overlay, as containers have it, of which all layers are in one folder.
    ///
    /// # Errors
    /// Why this machine mounts none.
    pub fn overlay(layers: &Path, at: &Path) -> Result<Self, Unavailable> {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| layers.join(name));
        for folder in [&lower, &upper, &work] {
            std::fs::create_dir(folder).map_err(|error| error.to_string())?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        system("mount", &["-t", "overlay", "-o", &options, "overlay", &at.to_string_lossy()])?;
        Ok(Self(at.into()))
    }

    /// Freezes the file system until what is returned goes, or for a minute: writes wait.
    ///
    /// # Errors
    /// Why this machine freezes none.
    pub fn freeze(&self) -> Result<Frozen<'_>, Unavailable> {
        let at = self.0.to_string_lossy();
        system("fsfreeze", &["--freeze", &at])?;
        // A test that hangs is ended, but its threads that write are not before they have written.
        let thaw = format!("sleep 60; exec fsfreeze --unfreeze '{at}'");
        let later = Command::new("sh").args(["-c", &thaw]).stdin(Stdio::null()).spawn();
        Ok(Frozen { mount: self, later: later.map_err(|error| error.to_string())? })
    }

    /// Shuts the file system down, as it does itself where its own structures are damaged. It must
    /// be mounted again.
    ///
    /// # Errors
    /// Why this machine shuts none down.
    pub fn shut_down(&self) -> Result<(), Unavailable> {
        system("xfs_io", &["-x", "-c", "shutdown", &self.0.to_string_lossy()]).map(drop)
    }

    /// Mounts NTFS, which a program of its own mounts by FUSE.
    ///
    /// # Errors
    /// Why this machine makes or mounts none.
    pub fn by_fuse(device: &Path, at: &Path) -> Result<Self, Unavailable> {
        let device = device.to_string_lossy();
        system("mkntfs", &["--quiet", "--force", &device])?;
        system("ntfs-3g", &[&device, &at.to_string_lossy()])?;
        Ok(Self(at.into()))
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// A file system whose writes wait.
#[derive(Debug)]
pub struct Frozen<'mount> {
    mount: &'mount Mount,
    /// Process that thaws the file system where nothing else does.
    later: Child,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let thawed = system("fsfreeze", &["--unfreeze", &self.mount.path().to_string_lossy()]);
        if thawed.is_ok() && self.later.kill().is_ok() {
            let _ = self.later.wait();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A process that another test starts just now has our descriptors until it executes.
        for _ in 0..200 {
            if system("umount", &[&self.0.to_string_lossy()]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
