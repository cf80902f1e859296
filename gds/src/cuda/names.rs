//! CUDA's own names for its numbers.

use std::ffi::{CStr, c_char, c_int};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tidelog_engine::memory::process::PerProcess;

/// Function type of the header, but for the number: one that is newer than our headers is no value
/// of their type.
type GetName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// CUDA's name for a number, where its driver is loaded and knows it.
pub fn name_of(code: i32) -> &'static str {
    static GET: PerProcess<Option<GetName>> = PerProcess::new(find);
    let mut name = std::ptr::null();
    if let Some(get) = **GET.get()
        // SAFETY: the call takes any number, and writes an address: of a text that stays, or null.
        && unsafe { get(code, &raw mut name) } == 0
        && !name.is_null()
        // SAFETY: as above; such texts end with a zero.
        && let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str()
    {
        return name;
    }
    "see CUresult in CUDA's documentation"
}

/// The function, in the driver's library as it was opened already: nothing is opened for a name.
fn find() -> Option<GetName> {
    const NO_LOAD: i32 = libc::RTLD_NOLOAD;
    ["libcuda.so.1", "libcuda.so"].into_iter().find_map(|name| {
        // SAFETY: no initialiser runs, as the library is loaded or not found.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | NO_LOAD) }.ok()?;
        // SAFETY: the type is the header's for this name, but for the number.
        let get = unsafe { library.get::<GetName>("cuGetErrorName") }.ok().map(|symbol| *symbol)?;
        // The driver stays loaded until the process ends.
        std::mem::forget(library);
        Some(get)
    })
}
