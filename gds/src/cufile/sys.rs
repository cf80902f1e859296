//! cuFile's types as its library lays them out. Codes are integers here, not enums: a number that
//! this version does not know must not be undefined behaviour. A test compares every size and
//! offset with types generated from the header.

use std::ffi::{c_int, c_uint, c_void};

/// Error that every call returns: cuFile's code, and CUDA's where that one is
/// [`CUDA_DRIVER_ERROR`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Error {
    /// cuFile's.
    pub(crate) code: c_int,
    /// CUDA's.
    pub(crate) cuda: c_int,
}

/// `CU_FILE_CUDA_DRIVER_ERROR`.
pub(crate) const CUDA_DRIVER_ERROR: c_int = 5011;
/// Codes by which an open says that no direct way works: nvidia-fs is not loaded, is another
/// version, is not for this platform, or does not start.
pub(crate) const NOT_DIRECT: [c_int; 7] = [5001, 5004, 5005, 5007, 5010, 5033, 5048];
/// `CU_FILE_DRIVER_ALREADY_OPEN`.
pub(crate) const DRIVER_ALREADY_OPEN: c_int = 5026;
/// Codes by which a submission says that nothing of it was taken: what was passed is wrong, the
/// library is in no state to take it, or it has no room. All others leave that open.
pub(crate) const SUBMIT_REFUSED: [c_int; 13] =
    [5001, 5006, 5008, 5009, 5015, 5020, 5022, 5024, 5027, 5034, BATCH_FULL, 5047, 5049];
/// `CU_FILE_BATCH_FULL`.
pub(crate) const BATCH_FULL: c_int = 5037;

/// `CUfileHandle_t`.
pub(crate) type FileHandle = *mut c_void;
/// `CUfileBatchHandle_t`.
pub(crate) type BatchHandle = *mut c_void;

/// `CUfileDescr_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FileDescription {
    /// [`OPAQUE_DESCRIPTOR`].
    pub(crate) kind: c_uint,
    /// A union of which we use the descriptor.
    pub(crate) descriptor: Descriptor,
    /// Operations of a user-space file system; none.
    pub(crate) operations: *const c_void,
}

/// The union in [`FileDescription`].
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Descriptor {
    /// A file descriptor of Linux.
    pub(crate) file: c_int,
    /// A handle of Windows.
    pub(crate) handle: *mut c_void,
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Descriptor")
    }
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub(crate) const OPAQUE_DESCRIPTOR: c_uint = 1;

/// `CUfileDrvProps_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Properties {
    /// Major version of nvidia-fs, if it is loaded.
    pub(crate) major: c_uint,
    /// Minor version of nvidia-fs.
    pub(crate) minor: c_uint,
    /// Threshold in KiB.
    pub(crate) poll_threshold: usize,
    /// The longest transfer that is not split, in KiB.
    pub(crate) direct_io_max: usize,
    /// One bit for each kind of file system and device that direct I/O works on.
    pub(crate) status: c_uint,
    /// One bit for each setting.
    pub(crate) control: c_uint,
    /// One bit for each feature.
    pub(crate) features: c_uint,
    /// Limit in KiB.
    pub(crate) device_cache_max: c_uint,
    /// Size in KiB.
    pub(crate) per_buffer_cache: c_uint,
    /// GPU memory that may be registered, in KiB.
    pub(crate) pinned_max: c_uint,
    /// Entries of a batch.
    pub(crate) batch_entries_max: c_uint,
    /// Milliseconds.
    pub(crate) batch_timeout_max: c_uint,
}

/// `CU_FILE_NVME_SUPPORTED`, a bit of [`Properties::status`].
pub(crate) const NVME_SUPPORTED: u32 = 4;
/// `CU_FILE_NVME_P2P_SUPPORTED`: of libraries without `cuFileDriverGetP2PFlags`; newer ones do not
/// set it.
pub(crate) const NVME_P2P_SUPPORTED: u32 = 11;
/// `CUFILE_P2PDMA`, a bit of what `cuFileDriverGetP2PFlags` returns.
pub(crate) const P2PDMA: u32 = 0;
/// `CU_FILE_ALLOW_COMPAT_MODE`, a bit of [`Properties::control`].
pub(crate) const ALLOW_COMPAT: u32 = 1;

/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE`.
pub(crate) const PARAMETER_ALLOW_COMPAT: c_uint = 1;
/// `CUFILE_PARAM_FORCE_COMPAT_MODE`.
pub(crate) const PARAMETER_FORCE_COMPAT: c_uint = 2;
/// `CUFILE_PARAM_USE_PCIP2PDMA`.
pub(crate) const PARAMETER_USE_P2PDMA: c_uint = 7;

/// `CUfileIOParams_t`, with its union of one member spread out.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry {
    /// [`BATCH_MODE`].
    pub(crate) mode: c_uint,
    /// The start of registered memory.
    pub(crate) memory: *mut c_void,
    /// Bytes into the file.
    pub(crate) file_offset: i64,
    /// Bytes into the memory.
    pub(crate) memory_offset: i64,
    /// Bytes to move.
    pub(crate) length: usize,
    /// The file.
    pub(crate) file: FileHandle,
    /// [`READ`] or [`WRITE`].
    pub(crate) opcode: c_uint,
    /// Comes back in the event.
    pub(crate) cookie: *mut c_void,
}

/// `CUFILE_BATCH`.
pub(crate) const BATCH_MODE: c_uint = 1;
/// `CUFILE_READ`.
pub(crate) const READ: c_uint = 0;
/// `CUFILE_WRITE`.
pub(crate) const WRITE: c_uint = 1;

/// `CUfileIOEvents_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEvent {
    /// The entry's.
    pub(crate) cookie: *mut c_void,
    /// One of the constants below.
    pub(crate) status: c_uint,
    /// The bytes moved, or a negative error.
    pub(crate) moved: usize,
}

impl BatchEvent {
    /// An event that nobody has filled.
    pub(crate) const EMPTY: Self = Self { cookie: std::ptr::null_mut(), status: 0, moved: 0 };
}

/// `CUFILE_WAITING`.
pub(crate) const STATUS_WAITING: c_uint = 1;
/// `CUFILE_PENDING`.
pub(crate) const STATUS_PENDING: c_uint = 2;
/// `CUFILE_INVALID`.
pub(crate) const STATUS_INVALID: c_uint = 4;
/// `CUFILE_CANCELED`.
pub(crate) const STATUS_CANCELED: c_uint = 8;
/// `CUFILE_COMPLETE`.
pub(crate) const STATUS_COMPLETE: c_uint = 0x10;
/// `CUFILE_TIMEOUT`.
pub(crate) const STATUS_TIMEOUT: c_uint = 0x20;
/// `CUFILE_FAILED`; like every status that is newer than this it needs no name but in tests.
#[cfg(test)]
pub(crate) const STATUS_FAILED: c_uint = 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::cufile::sys as header;
    use std::mem::{align_of, offset_of, size_of};

    #[test]
    fn every_type_is_laid_out_as_in_nvidias_header() {
        assert_eq!(size_of::<Error>(), size_of::<header::CUfileError_t>());
        assert_eq!(size_of::<FileDescription>(), size_of::<header::CUfileDescr_t>());
        assert_eq!(
            offset_of!(FileDescription, descriptor),
            offset_of!(header::CUfileDescr_t, handle)
        );
        assert_eq!(
            offset_of!(FileDescription, operations),
            offset_of!(header::CUfileDescr_t, fs_ops)
        );
        assert_eq!(size_of::<Properties>(), size_of::<header::CUfileDrvProps_t>());
        assert_eq!(offset_of!(Properties, features), offset_of!(header::CUfileDrvProps_t, fflags));
        assert_eq!(
            offset_of!(Properties, batch_entries_max),
            offset_of!(header::CUfileDrvProps_t, max_batch_io_size)
        );
        assert_eq!(size_of::<BatchEvent>(), size_of::<header::CUfileIOEvents_t>());
        assert_eq!(offset_of!(BatchEvent, moved), offset_of!(header::CUfileIOEvents_t, ret));
        assert_eq!(size_of::<BatchEntry>(), size_of::<header::CUfileIOParams_t>());
        assert_eq!(align_of::<BatchEntry>(), align_of::<header::CUfileIOParams_t>());
        assert_eq!(offset_of!(BatchEntry, memory), offset_of!(header::CUfileIOParams_t, u));
        assert_eq!(offset_of!(BatchEntry, file), offset_of!(header::CUfileIOParams_t, fh));
        assert_eq!(offset_of!(BatchEntry, opcode), offset_of!(header::CUfileIOParams_t, opcode));
        assert_eq!(offset_of!(BatchEntry, cookie), offset_of!(header::CUfileIOParams_t, cookie));
    }

    #[test]
    fn codes_are_those_of_nvidias_header() {
        assert_eq!(DRIVER_ALREADY_OPEN, header::CUfileOpError::CU_FILE_DRIVER_ALREADY_OPEN as i32);
        assert_eq!(CUDA_DRIVER_ERROR, header::CUfileOpError::CU_FILE_CUDA_DRIVER_ERROR as i32);
        assert_eq!(BATCH_FULL, header::CUfileOpError::CU_FILE_BATCH_FULL as i32);
        assert_eq!(NVME_SUPPORTED, header::CUfileDriverStatusFlags::CU_FILE_NVME_SUPPORTED as u32);
        assert_eq!(
            ALLOW_COMPAT,
            header::CUfileDriverControlFlags::CU_FILE_ALLOW_COMPAT_MODE as u32
        );
        assert_eq!(STATUS_COMPLETE, header::CUFILEStatus_enum::CUFILE_COMPLETE as u32);
        assert_eq!(STATUS_FAILED, header::CUFILEStatus_enum::CUFILE_FAILED as u32);
        assert_eq!(STATUS_TIMEOUT, header::CUFILEStatus_enum::CUFILE_TIMEOUT as u32);
        assert_eq!(STATUS_CANCELED, header::CUFILEStatus_enum::CUFILE_CANCELED as u32);
        assert_eq!(WRITE, header::CUfileOpcode::CUFILE_WRITE as u32);
    }
}
