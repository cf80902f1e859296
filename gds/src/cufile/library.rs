//! Location and functions of cuFile's library.
//!
//! It comes with CUDA, and as a Python package that `PyTorch` depends on; neither puts it where
//! every loader looks.

use std::ffi::{OsString, c_int, c_uint};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::CuFileError;
use super::sys;
use crate::loading::{self, Loaded, children, functions, present};

/// Names of the library's file.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// cuFile's library could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("libcufile is not found: {}; install CUDA's GPUDirect Storage, or name the file", tried.join("; "))]
pub struct NoLibrary {
    /// Each place that was tried, and what the loader said.
    pub tried: Vec<String>,
}

/// cuFile's library.
pub struct CuFileLibrary {
    /// The functions.
    pub(super) functions: Functions,
    /// Last, since the functions are in it.
    loaded: Loaded,
}

impl CuFileLibrary {
    /// Opens the library: the named file and no other (by `TIDELOG_CUFILE` in the environment,
    /// where the caller names none), or the first that opens of the places where it lives.
    pub fn open(named: Option<&Path>) -> Result<Arc<Self>, NoLibrary> {
        let places = || {
            let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
            candidates(&|name| std::env::var_os(name), &maps)
        };
        let loaded = loading::open(named, "TIDELOG_CUFILE", places);
        let loaded = loaded.map_err(|tried| NoLibrary { tried })?;
        Ok(Arc::new(Self { functions: Functions::resolve(&loaded), loaded }))
    }

    /// The file, or the name by which the loader knew it.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// The functions that it lacks.
    pub fn missing(&self) -> Vec<&'static str> {
        self.functions.missing()
    }

    /// Returns the version, as in 1.15, where it tells.
    pub fn version(&self) -> Option<(u32, u32)> {
        let get = self.functions.get_version.as_ref().ok()?;
        let mut version: c_int = 0;
        // SAFETY: the call writes one int.
        let answer = unsafe { get(&raw mut version) };
        let version = u32::try_from(version).ok().filter(|_| answer.code == 0)?;
        // 1000 * major + 10 * minor.
        Some((version / 1000, version % 1000 / 10))
    }
}

impl fmt::Debug for CuFileLibrary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Library({})", self.path().display())
    }
}

/// Returns the paths of the library to try, in order: where the loader looks, CUDA, and Python's
/// packages: of the environment that is active, and of the `PyTorch` that is loaded in this
/// process.
fn candidates(environment: &dyn Fn(&str) -> Option<OsString>, maps: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(|name| environment(name))
        .map(PathBuf::from)
        .collect();
    roots.push("/usr/local/cuda".into());
    for root in roots {
        for folder in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
            found.extend(present(&root.join(folder), &NAMES));
        }
    }
    let packages = environment("VIRTUAL_ENV")
        .map(|root| children(&Path::new(&root).join("lib")))
        .unwrap_or_default()
        .into_iter()
        .map(|python| python.join("site-packages"))
        .chain(beside_torch(maps));
    for folder in packages {
        // nvidia/cufile/lib in CUDA 12's packages, nvidia/cu13/lib in CUDA 13's.
        for package in children(&folder.join("nvidia")) {
            found.extend(present(&package.join("lib"), &NAMES));
        }
    }
    let mut unique = Vec::new();
    for path in found {
        if !unique.contains(&path) {
            unique.push(path);
        }
    }
    unique
}

/// The folder of Python packages from which `PyTorch`'s library is mapped.
fn beside_torch(maps: &str) -> Option<PathBuf> {
    let line = maps.lines().find(|line| line.contains("/torch/lib/libtorch"))?;
    let library = Path::new(&line[line.find('/')?..]);
    Some(library.parent()?.parent()?.parent()?.to_path_buf())
}

functions! {
    CuFileError, "use the cuFile of CUDA 12.2 or newer":
    driver_open: "cuFileDriverOpen" => fn() -> sys::Error;
    driver_close: "cuFileDriverClose_v2" => fn() -> sys::Error;
    get_properties: "cuFileDriverGetProperties" => fn(*mut sys::Properties) -> sys::Error;
    get_p2p_flags: "cuFileDriverGetP2PFlags" => fn(c_uint, *mut c_uint) -> sys::Error;
    get_version: "cuFileGetVersion" => fn(*mut c_int) -> sys::Error;
    get_parameter: "cuFileGetParameterBool" => fn(c_uint, *mut bool) -> sys::Error;
    set_parameter: "cuFileSetParameterBool" => fn(c_uint, bool) -> sys::Error;
    handle_register: "cuFileHandleRegister" => fn(*mut sys::FileHandle, *mut sys::FileDescription) -> sys::Error;
    handle_deregister: "cuFileHandleDeregister" => fn(sys::FileHandle);
    buffer_register: "cuFileBufRegister" => fn(*const std::ffi::c_void, usize, c_int) -> sys::Error;
    buffer_deregister: "cuFileBufDeregister" => fn(*const std::ffi::c_void) -> sys::Error;
    read: "cuFileRead" => fn(sys::FileHandle, *mut std::ffi::c_void, usize, i64, i64) -> isize;
    batch_set_up: "cuFileBatchIOSetUp" => fn(*mut sys::BatchHandle, c_uint) -> sys::Error;
    batch_submit: "cuFileBatchIOSubmit" => fn(sys::BatchHandle, c_uint, *mut sys::BatchEntry, c_uint) -> sys::Error;
    batch_status: "cuFileBatchIOGetStatus" => fn(sys::BatchHandle, c_uint, *mut c_uint, *mut sys::BatchEvent, *mut libc::timespec) -> sys::Error;
    batch_cancel: "cuFileBatchIOCancel" => fn(sys::BatchHandle) -> sys::Error;
    batch_destroy: "cuFileBatchIODestroy" => fn(sys::BatchHandle);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_the_pytorch_that_is_loaded() {
        let root = std::env::temp_dir().join(format!("tidelog-cufile-{}", std::process::id()));
        let lib = root.join("site-packages/nvidia/cu13/lib");
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("libcufile.so.0"), "").unwrap();
        let maps = format!(
            "7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6\n7f02-7f03 r-xp 0 fe:00 2    {}/site-packages/torch/lib/libtorch_cpu.so\n",
            root.display()
        );
        let found = candidates(&|_| None, &maps);
        assert_eq!(found[..2], NAMES.map(PathBuf::from), "the loader's own places come first");
        assert!(found.contains(&lib.join("libcufile.so.0")), "{found:?}");
        let environment = |name: &str| (name == "CUDA_HOME").then(|| OsString::from("/nowhere"));
        let elsewhere = candidates(&environment, "");
        assert!(!elsewhere.contains(&lib.join("libcufile.so.0")));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_named_file_is_the_only_one_that_is_tried() {
        let error = CuFileLibrary::open(Some(Path::new("/nowhere/libcufile.so.0"))).unwrap_err();
        assert_eq!(error.tried.len(), 1, "{error}");
        assert!(error.to_string().contains("/nowhere/libcufile.so.0"), "{error}");
    }
}
