//! NUMA policy for the memory of a thread.

use std::io;
use std::ptr;

/// NUMA nodes of the memory that a thread touches first, in the terms of `set_mempolicy(2)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Default policy, as for any other thread.
    Default,
    /// Node that the thread runs on.
    Local,
    /// Preferred node, while it has free pages.
    Preferred(usize),
    /// Bound nodes, and no other.
    Bind(Vec<usize>),
    /// Interleaved nodes, in turn.
    Interleave(Vec<usize>),
}

/// Nodes that a mask has a bit for.
const NODES_MAX: usize = 1024;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

impl MemoryPolicy {
    /// Makes this the policy of the calling thread, and of those that it starts afterwards.
    ///
    /// # Errors
    /// The kernel's: it has no such node, or nothing of NUMA.
    pub fn set_for_this_thread(&self) -> io::Result<()> {
        let (mode, nodes) = match self {
            Self::Default => (libc::MPOL_DEFAULT, &[][..]),
            Self::Local => (libc::MPOL_LOCAL, &[][..]),
            Self::Preferred(node) => (libc::MPOL_PREFERRED, std::slice::from_ref(node)),
            Self::Bind(nodes) => (libc::MPOL_BIND, &nodes[..]),
            Self::Interleave(nodes) => (libc::MPOL_INTERLEAVE, &nodes[..]),
        };
        let mask = mask_of(nodes)?;
        // The kernel takes one bit less than it is told of.
        let (mask, bits) =
            if nodes.is_empty() { (ptr::null(), 0) } else { (mask.as_ptr(), NODES_MAX + 1) };
        // SAFETY: the kernel reads so many bits of the mask, which is as long, and writes nothing.
        let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, bits) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn mask_of(nodes: &[usize]) -> io::Result<[libc::c_ulong; NODES_MAX / WORD_BITS]> {
    let mut mask = [0; NODES_MAX / WORD_BITS];
    for node in nodes {
        let word = mask.get_mut(node / WORD_BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word |= 1 << (node % WORD_BITS);
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::DmaPool;
    use crate::units::ByteCount;

    #[test]
    fn memory_that_a_thread_touches_comes_by_its_policy() {
        let shown = std::thread::spawn(|| {
            if let Err(error) = MemoryPolicy::Bind(vec![0]).set_for_this_thread() {
                // No NUMA in this kernel, or a container forbids it.
                assert!(
                    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
                    "{error}"
                );
                return None;
            }
            let pool = DmaPool::new(ByteCount::kib(64), false).unwrap();
            let buffer = pool.take(4096).unwrap();
            let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap();
            let shown = maps.lines().any(|line| line.contains(" bind:0 "));
            drop(buffer);
            Some(shown)
        });
        assert_ne!(shown.join().unwrap(), Some(false));
    }

    #[test]
    fn a_node_that_no_kernel_has_is_refused() {
        let beyond = MemoryPolicy::Preferred(NODES_MAX).set_for_this_thread();
        assert_eq!(beyond.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(mask_of(&[0, 65]).unwrap()[..2] == [1, 2]);
    }
}
