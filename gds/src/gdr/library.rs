//! Location and functions of gdrcopy's library.
//!
//! Packages put it where every loader looks; a build of one's own lies where its maker said.

use std::ffi::{OsString, c_int, c_uint, c_ulong, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::GdrError;
use crate::loading::{self, Loaded, functions, present};

/// Names of the library's file.
const NAMES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// gdrcopy's library.
pub struct GdrLibrary {
    /// The functions.
    pub(super) functions: Functions,
    /// Last, since the functions are in it.
    loaded: Loaded,
}

/// A connection to its kernel module.
pub(super) type GdrHandle = *mut c_void;

/// Pinned memory (`gdr_mh_t`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Pinned(c_ulong);

/// Description of pinned memory (`gdr_info_v2_t`). Newer versions write more at the end, for which
/// there is room.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Info {
    /// Start of the mapping for the GPU.
    pub(super) first: u64,
    pub(super) mapped: u64,
    page: u32,
    cycles: u64,
    cycles_per_ms: u32,
    bits: c_uint,
    mapping_type: c_int,
    room: [u64; 8],
}

impl GdrLibrary {
    /// Opens the library: the named file and no other (by `TIDELOG_GDRAPI` in the environment,
    /// where the caller names none), or the first that opens of the places where it lives.
    ///
    /// # Errors
    /// What was tried.
    pub fn open(named: Option<&Path>) -> Result<Arc<Self>, GdrError> {
        let places = || candidates(&|name| std::env::var_os(name));
        let loaded = loading::open(named, "TIDELOG_GDRAPI", places);
        let loaded = loaded.map_err(|tried| GdrError::NoLibrary { tried })?;
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

    /// Returns the version, as in 2.5, where it tells.
    pub fn version(&self) -> Option<(i32, i32)> {
        let get = self.functions.version.as_ref().ok()?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the call writes two ints.
        unsafe { get(&raw mut major, &raw mut minor) };
        Some((major, minor))
    }
}

impl fmt::Debug for GdrLibrary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Library({})", self.path().display())
    }
}

/// Returns the paths of the library to try, in order: where the loader looks, and where it is built
/// to.
fn candidates(environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
    let named = ["GDRCOPY_HOME", "GDRCOPY_PATH"].iter().filter_map(|name| environment(name));
    let usual = ["/usr/local/gdrcopy", "/opt/gdrcopy", "/usr/local"].map(OsString::from);
    for root in named.chain(usual).map(PathBuf::from) {
        for folder in ["lib", "lib64"] {
            found.extend(present(&root.join(folder), &NAMES));
        }
    }
    found
}

functions! {
    GdrError, "use gdrcopy 2.0 or newer":
    open: "gdr_open" => fn() -> GdrHandle;
    close: "gdr_close" => fn(GdrHandle) -> c_int;
    pin: "gdr_pin_buffer" => fn(GdrHandle, c_ulong, usize, u64, u32, *mut Pinned) -> c_int;
    unpin: "gdr_unpin_buffer" => fn(GdrHandle, Pinned) -> c_int;
    map: "gdr_map" => fn(GdrHandle, Pinned, *mut *mut c_void, usize) -> c_int;
    unmap: "gdr_unmap" => fn(GdrHandle, Pinned, *mut c_void, usize) -> c_int;
    info: "gdr_get_info_v2" => fn(GdrHandle, Pinned, *mut Info) -> c_int;
    version: "gdr_runtime_get_version" => fn(*mut c_int, *mut c_int);
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn it_is_looked_for_where_it_was_built_to() {
        let root = std::env::temp_dir().join(format!("tidelog-gdr-{}", std::process::id()));
        let lib = root.join("lib64");
        std::fs::create_dir_all(&lib).unwrap();
        std::fs::write(lib.join("libgdrapi.so"), "").unwrap();
        let home = |name: &str| (name == "GDRCOPY_HOME").then(|| root.clone().into_os_string());
        let found = candidates(&home);
        assert_eq!(found[..2], NAMES.map(PathBuf::from), "the loader's own places come first");
        assert!(found.contains(&lib.join("libgdrapi.so")), "{found:?}");
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let error = GdrLibrary::open(Some(Path::new("/nowhere/libgdrapi.so.2"))).unwrap_err();
        let told = error.to_string();
        assert!(
            told.contains("/nowhere/libgdrapi.so.2") && told.contains("install gdrcopy"),
            "{told}"
        );
    }

    /// gdrapi.h of 2.5: 64 bits of address, 64 of size, 32 of page size, then an aligned 64.
    #[test]
    fn what_it_says_of_memory_is_laid_out_as_in_its_header() {
        let places = [
            offset_of!(Info, first),
            offset_of!(Info, mapped),
            offset_of!(Info, page),
            offset_of!(Info, cycles),
            offset_of!(Info, cycles_per_ms),
            offset_of!(Info, bits),
            offset_of!(Info, mapping_type),
        ];
        assert_eq!(places, [0, 8, 16, 24, 32, 36, 40]);
    }
}
