//! One process of a host has a namespace. On the bus SPDK sees to that; a target that is reached by
//! a connection serves as many processes as come, so each claims a name: that of an abstract
//! socket, which the kernel gives once, and takes back when the process ends. No file is left
//! behind, nobody's permissions are in the way, and whoever is refused learns by whom. It holds
//! among the processes of one network namespace, from which a target is reached alike.

use std::hash::Hasher;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// A claimed namespace: its socket's place in the table. It is given back when this is dropped.
pub(super) struct NamespaceClaim(usize);

/// The reason why a claim was refused.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// The namespace is held by the process of this number, 0 where that is another container's
    /// affair.
    Held(i32),
    System(io::Error),
}

/// Limit of namespaces that a process claims at once.
const CLAIMS_MAX: usize = 256;
/// Time to wait for a holder that may just be giving it back, or not have said yet who it is.
const SETTLE: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);
const NONE: i32 = -1;
/// Backlog of the holder's socket: as many openers learn who holds a name; nobody reads from them,
/// so those after them are only told that it is held.
const ASKERS: i32 = 128;

/// The sockets, where a child of fork finds them: it must not keep what its parent releases.
static SOCKETS: [AtomicI32; CLAIMS_MAX] = [const { AtomicI32::new(NONE) }; CLAIMS_MAX];

impl NamespaceClaim {
    /// Claims the namespace that is called so, the same by whoever asks.
    pub(super) fn of(identity: &str) -> Result<Self, ClaimError> {
        let address = Address::of(identity);
        let until = Instant::now() + SETTLE;
        loop {
            let claim = Self::keep(socket().map_err(ClaimError::System)?)?;
            match address.bind(claim.socket()) {
                Ok(()) => return Ok(claim),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    return Err(ClaimError::System(error));
                }
                Err(_) => drop(claim),
            }
            match address.holder() {
                Ok(process) => return Err(ClaimError::Held(process)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(ClaimError::Held(0));
                }
                Err(_) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(_) => return Err(ClaimError::Held(0)),
            }
        }
    }

    fn keep(socket: OwnedFd) -> Result<Self, ClaimError> {
        static ONCE: Once = Once::new();
        // SAFETY: the child calls what closes descriptors and nothing else.
        ONCE.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(close_all));
        });
        let number = socket.as_raw_fd();
        let is_free = |place: &AtomicI32| {
            place.compare_exchange(NONE, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let place = SOCKETS.iter().position(is_free);
        let place = place.ok_or_else(|| {
            ClaimError::System(io::Error::other("this process has claimed too many namespaces"))
        })?;
        // The table's from here on.
        let _ = socket.into_raw_fd();
        Ok(Self(place))
    }

    fn socket(&self) -> i32 {
        SOCKETS[self.0].load(Ordering::Relaxed)
    }
}

impl Drop for NamespaceClaim {
    fn drop(&mut self) {
        close(&SOCKETS[self.0]);
    }
}

/// Closes all claims in a child of fork.
unsafe extern "C" fn close_all() {
    SOCKETS.iter().for_each(close);
}

fn close(place: &AtomicI32) {
    let socket = place.swap(NONE, Ordering::Relaxed);
    if socket != NONE {
        // SAFETY: the descriptor was the table's, and is nobody's any more.
        unsafe { libc::close(socket) };
    }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed; a descriptor that is answered is ours alone.
    unsafe {
        match libc::socket(libc::AF_UNIX, kind, 0) {
            -1 => Err(io::Error::last_os_error()),
            socket => Ok(OwnedFd::from_raw_fd(socket)),
        }
    }
}

/// The name of a socket in no file system.
struct Address(libc::sockaddr_un, libc::socklen_t);

impl Address {
    fn of(identity: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(identity.as_bytes());
        let name = format!("tidelog/nvme/{:032x}", hasher.finish128().as_u128());
        let mut path = [0; 108];
        // A name that begins with a zero is in no file system.
        for (to, from) in path[1..].iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        let length = size_of::<libc::sa_family_t>() + 1 + name.len();
        let address = libc::sockaddr_un { sun_family: libc::AF_UNIX as _, sun_path: path };
        Self(address, length as libc::socklen_t)
    }

    fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.0).cast()
    }

    /// Takes the name, and lets others ask whose it is.
    fn bind(&self, socket: i32) -> io::Result<()> {
        // SAFETY: the address is as long as is said, and the socket open.
        let answer = unsafe {
            match libc::bind(socket, self.as_ptr(), self.1) {
                0 => libc::listen(socket, ASKERS),
                failed => failed,
            }
        };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The process that has the name.
    fn holder(&self) -> io::Result<i32> {
        let asks = socket()?;
        let asks = asks.as_raw_fd();
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the address is as long as is said, the socket open; the answer is as long as
        // there is room for.
        let answer = unsafe {
            match libc::connect(asks, self.as_ptr(), self.1) {
                0 => libc::getsockopt(
                    asks,
                    libc::SOL_SOCKET,
                    libc::SO_PEERCRED,
                    (&raw mut peer).cast(),
                    &raw mut length,
                ),
                failed => failed,
            }
        };
        if answer == 0 { Ok(peer.pid) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that no other test has, nor another process that runs them.
    fn name(test: &str) -> String {
        format!("test {test} of {}", std::process::id())
    }

    #[test]
    fn a_name_is_claimed_once_and_free_when_it_is_given_back() {
        let name = name("once");
        let claim = NamespaceClaim::of(&name).unwrap();
        for _ in 0..4 {
            match NamespaceClaim::of(&name) {
                Err(ClaimError::Held(process)) => {
                    assert_eq!(process, std::process::id().cast_signed());
                }
                other => panic!("claimed twice: {:?}", other.err()),
            }
        }
        NamespaceClaim::of(&self::name("other")).unwrap();
        drop(claim);
        NamespaceClaim::of(&name).unwrap();
    }

    #[test]
    fn a_child_of_fork_keeps_no_claim() {
        let name = name("fork");
        let claim = NamespaceClaim::of(&name).unwrap();
        // SAFETY: the child waits to be ended, and does nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        // Its copy is closed a moment after the fork.
        drop(claim);
        let until = Instant::now() + Duration::from_secs(10);
        let mut again = NamespaceClaim::of(&name);
        while again.is_err() && Instant::now() < until {
            again = NamespaceClaim::of(&name);
        }
        // SAFETY: the child is ours.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(again.is_ok(), "the child has it");
    }
}
