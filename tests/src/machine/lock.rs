use nix::libc;

/// What `fcntl` takes for a lock (`F_RDLCK`, `F_WRLCK`) on so many bytes of a file from `start` on.
/// No length reaches as far as there are bytes.
pub fn lock_of_bytes(kind: libc::c_int, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}
