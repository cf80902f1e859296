//! Errors of cuFile, with its codes and CUDA's.

use tidelog_engine::library::ErrorLibrary;
use tidelog_engine::path::Status;

use super::sys;
use crate::cuda::{self, CudaError};
use crate::loading::Missing;

/// cuFile, as the source of an operation's error.
pub static CUFILE: ErrorLibrary = ErrorLibrary { name: "cuFile", describe: name_of };

/// cuFile answered that something failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CuFileError {
    /// A call failed.
    #[error("cuFile could not {what}: error {code} ({})", name_of(*.code))]
    Call {
        /// Call that failed.
        what: String,
        /// The number.
        code: i32,
    },
    /// A call failed in CUDA.
    #[error("cuFile could not {what}: CUDA error {code} ({})", cuda::name_of(*.code))]
    Cuda {
        /// Call that failed.
        what: String,
        /// CUDA's number.
        code: i32,
    },
    /// The library is too old, or something else of that name.
    #[error(transparent)]
    Missing(#[from] Missing),
}

impl From<CudaError> for CuFileError {
    fn from(CudaError { what, code, .. }: CudaError) -> Self {
        Self::Cuda { what: what.into(), code }
    }
}

impl CuFileError {
    /// Looks at what a call answered.
    pub(crate) fn check(answer: sys::Error, what: impl Into<String>) -> Result<(), Self> {
        match answer {
            sys::Error { code: 0, .. } => Ok(()),
            sys::Error { code: sys::CUDA_DRIVER_ERROR, cuda } if cuda != 0 => {
                Err(Self::Cuda { what: what.into(), code: cuda })
            }
            sys::Error { code, .. } => Err(Self::Call { what: what.into(), code }),
        }
    }

    /// Adds to an error of a caller's memory, with what it may be that was refused.
    pub(crate) fn of_callers_memory(mut self) -> Self {
        if let Self::Call { what, .. } | Self::Cuda { what, .. } = &mut self {
            *what += " of the caller's (memory of cuMemMap, as PyTorch's expandable segments are, may not be registered; \
                      unregistered memory goes through the ring)";
        }
        self
    }

    /// Returns the error as the status of an operation.
    pub fn status(&self) -> Status {
        match self {
            Self::Call { code, .. } => status_of_code(*code),
            Self::Cuda { code, .. } => Status::ErrorLibrary { library: &cuda::CUDA, code: *code },
            Self::Missing(_) => Status::Errno(libc::ENOSYS),
        }
    }
}

fn status_of_code(code: i32) -> Status {
    Status::ErrorLibrary { library: &CUFILE, code }
}

/// Converts one entry of a batch: the bytes moved, or why not.
pub(crate) fn entry_result(event: &sys::BatchEvent) -> Option<Result<u32, Status>> {
    match event.status {
        sys::STATUS_WAITING | sys::STATUS_PENDING => None,
        sys::STATUS_COMPLETE => Some(transfer_result(event.moved.cast_signed())),
        sys::STATUS_CANCELED => Some(Err(Status::Errno(libc::ECANCELED))),
        sys::STATUS_TIMEOUT => Some(Err(Status::Errno(libc::ETIMEDOUT))),
        sys::STATUS_INVALID => Some(Err(Status::Errno(libc::EINVAL))),
        // A failure without a reason, or of a kind that is newer than this.
        _ => Some(match transfer_result(event.moved.cast_signed()) {
            Err(status) => Err(status),
            Ok(_) => Err(Status::Errno(libc::EIO)),
        }),
    }
}

/// Converts the result of a transfer: bytes, a negative errno, or a negative code of cuFile.
pub(crate) fn transfer_result(answer: isize) -> Result<u32, Status> {
    /// Offset of cuFile's own numbers (`CUFILEOP_BASE_ERR`).
    const OWN: i32 = 5000;
    if let Ok(moved) = u32::try_from(answer) {
        return Ok(moved);
    }
    match i32::try_from(answer.unsigned_abs()) {
        Ok(code) if answer < 0 && code > OWN => Err(status_of_code(code)),
        Ok(errno) if answer < 0 => Err(Status::Errno(errno)),
        _ => Err(Status::Errno(libc::EOVERFLOW)),
    }
}

/// cuFile's name for a number of its own.
pub fn name_of(code: i32) -> &'static str {
    match code {
        5001 => "DRIVER_NOT_INITIALIZED",
        5002 => "DRIVER_INVALID_PROPS",
        5003 => "DRIVER_UNSUPPORTED_LIMIT",
        5004 => "DRIVER_VERSION_MISMATCH",
        5005 => "DRIVER_VERSION_READ_ERROR",
        5006 => "DRIVER_CLOSING",
        5007 => "PLATFORM_NOT_SUPPORTED",
        5008 => "IO_NOT_SUPPORTED",
        5009 => "DEVICE_NOT_SUPPORTED",
        5010 => "NVFS_DRIVER_ERROR",
        5011 => "CUDA_DRIVER_ERROR",
        5012 => "CUDA_POINTER_INVALID",
        5013 => "CUDA_MEMORY_TYPE_INVALID",
        5014 => "CUDA_POINTER_RANGE_ERROR",
        5015 => "CUDA_CONTEXT_MISMATCH",
        5016 => "INVALID_MAPPING_SIZE",
        5017 => "INVALID_MAPPING_RANGE",
        5018 => "INVALID_FILE_TYPE",
        5019 => "INVALID_FILE_OPEN_FLAG",
        5020 => "DIO_NOT_SET",
        5022 => "INVALID_VALUE",
        5023 => "MEMORY_ALREADY_REGISTERED",
        5024 => "MEMORY_NOT_REGISTERED",
        5025 => "PERMISSION_DENIED",
        5026 => "DRIVER_ALREADY_OPEN",
        5027 => "HANDLE_NOT_REGISTERED",
        5028 => "HANDLE_ALREADY_REGISTERED",
        5029 => "DEVICE_NOT_FOUND",
        5030 => "INTERNAL_ERROR",
        5031 => "GETNEWFD_FAILED",
        5033 => "NVFS_SETUP_ERROR",
        5034 => "IO_DISABLED",
        5035 => "BATCH_SUBMIT_FAILED",
        5036 => "GPU_MEMORY_PINNING_FAILED",
        5037 => "BATCH_FULL",
        5038 => "ASYNC_NOT_SUPPORTED",
        5039 => "INTERNAL_BATCH_SETUP_ERROR",
        5040 => "INTERNAL_BATCH_SUBMIT_ERROR",
        5041 => "INTERNAL_BATCH_GETSTATUS_ERROR",
        5042 => "INTERNAL_BATCH_CANCEL_ERROR",
        5043 => "NOMEM_ERROR",
        5044 => "IO_ERROR",
        5045 => "INTERNAL_BUF_REGISTER_ERROR",
        5046 => "HASH_OPR_ERROR",
        5047 => "INVALID_CONTEXT_ERROR",
        5048 => "NVFS_INTERNAL_DRIVER_ERROR",
        5049 => "BATCH_NOCOMPAT_ERROR",
        5050 => "IO_MAX_ERROR",
        _ => "see CUfileOpError in cuFile's documentation",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cudas_code_is_told_where_cuda_failed() {
        let error = CuFileError::check(sys::Error { code: 5011, cuda: 719 }, "open").unwrap_err();
        assert!(error.to_string().starts_with("cuFile could not open: CUDA error 719 ("));
        let error = CuFileError::check(sys::Error { code: 5020, cuda: 719 }, "open").unwrap_err();
        assert_eq!(error.to_string(), "cuFile could not open: error 5020 (DIO_NOT_SET)");
        assert!(CuFileError::check(sys::Error { code: 0, cuda: 719 }, "open").is_ok());
    }

    #[test]
    fn every_number_of_nvidias_header_has_a_name() {
        // cufile.h of 1.17: 5021 and 5032 are nobody's.
        for code in (5001..=5050).filter(|code| ![5021, 5032].contains(code)) {
            assert!(!name_of(code).contains("documentation"), "{code}");
        }
    }

    #[test]
    fn bytes_errors_of_the_kernel_and_of_cufile_are_told_apart() {
        assert_eq!(transfer_result(4096), Ok(4096));
        assert_eq!(transfer_result(-5), Err(Status::Errno(libc::EIO)));
        let status = Status::ErrorLibrary { library: &CUFILE, code: 5030 };
        assert_eq!(transfer_result(-5030), Err(status));
        assert_eq!(transfer_result(isize::MIN), Err(Status::Errno(libc::EOVERFLOW)));
        assert_eq!(transfer_result(1 << 40), Err(Status::Errno(libc::EOVERFLOW)));
    }

    #[test]
    fn an_entry_that_failed_without_a_reason_is_no_success() {
        let event = |status, moved: isize| sys::BatchEvent {
            status,
            moved: moved.cast_unsigned(),
            ..sys::BatchEvent::EMPTY
        };
        assert_eq!(entry_result(&event(sys::STATUS_PENDING, 0)), None);
        assert_eq!(
            entry_result(&event(sys::STATUS_FAILED, 4096)),
            Some(Err(Status::Errno(libc::EIO)))
        );
        assert_eq!(entry_result(&event(sys::STATUS_FAILED, -28)), Some(Err(Status::Errno(28))));
        assert_eq!(entry_result(&event(0x80, 4096)), Some(Err(Status::Errno(libc::EIO))));
        assert_eq!(entry_result(&event(sys::STATUS_COMPLETE, 4096)), Some(Ok(4096)));
        assert_eq!(entry_result(&event(sys::STATUS_COMPLETE, -5)), Some(Err(Status::Errno(5))));
    }
}
