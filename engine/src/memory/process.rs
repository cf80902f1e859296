//! Identity of the process, without a system call each time somebody asks; and values that a
//! process has for itself.
//!
//! A fork copies locks as they are, and only the thread that asked for it: a lock that another
//! thread held stays held in the child for ever. So nothing that a child may use is behind a lock
//! that it inherited, a `OnceLock` that is being filled included.

use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use memmap2::{MmapMut, MmapOptions};

/// The id of this process; another one in a child of fork. Every operation asks several times, to
/// notice a fork.
#[inline]
pub fn id() -> u32 {
    static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: null, or what `publish` has put there, which stays for ever.
    let known = unsafe { PAGE.load(Ordering::Acquire).as_ref() };
    let known = known.unwrap_or_else(|| publish(&PAGE));
    if ptr::eq(known, &raw const UNKNOWN) {
        return std::process::id();
    }
    match known.load(Ordering::Relaxed) {
        // Nobody has asked yet, or this is a child in which the kernel has wiped the page.
        0 => note(known),
        id => id,
    }
}

#[cold]
fn note(known: &AtomicU32) -> u32 {
    let id = std::process::id();
    known.store(id, Ordering::Relaxed);
    id
}

/// Stands for the page where the kernel makes none.
static UNKNOWN: AtomicU32 = AtomicU32::new(0);

/// Makes the page, unless another thread is faster.
#[cold]
fn publish(place: &AtomicPtr<AtomicU32>) -> &'static AtomicU32 {
    let mut page = wiped_on_fork();
    let number =
        page.as_mut().map_or((&raw const UNKNOWN).cast_mut(), |page| page.as_mut_ptr().cast());
    let first =
        place.compare_exchange(ptr::null_mut(), number, Ordering::AcqRel, Ordering::Acquire);
    if first.is_ok() {
        // It stays mapped.
        std::mem::forget(page);
    }
    let published = first.err().unwrap_or(number);
    // SAFETY: a static, or the begin of a page that is mapped for ever and that nothing else refers
    // to.
    unsafe { AtomicU32::from_ptr(published.cast()) }
}

/// Memory that is zeroes at first and again in every child of fork; `None` where the kernel has
/// none.
fn wiped_on_fork() -> Option<MmapMut> {
    if cfg!(miri) {
        return None;
    }
    let mut page = MmapOptions::new().len(super::ALIGNMENT).map_anon().ok()?;
    let address = page.as_mut_ptr();
    // SAFETY: the advice is about whole pages of a mapping that is ours, and changes nothing in
    // this process.
    let answer = unsafe { libc::madvise(address.cast(), super::ALIGNMENT, libc::MADV_WIPEONFORK) };
    (answer == 0).then_some(page)
}

/// A value of the process, for statics. A child of fork finds a fresh one in its place; what its
/// parent had is never looked at again and never freed, because another thread may have been in the
/// middle of it.
pub struct PerProcess<T: 'static> {
    newest: AtomicPtr<Own<T>>,
    make: fn() -> T,
}

/// The value of this process.
pub struct Own<T> {
    process: u32,
    inherited_from: Option<u32>,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Each process makes its value when it first needs it. Where two threads need it at once, one
    /// of two values is dropped.
    pub const fn new(make: fn() -> T) -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// The value of this process.
    pub fn get(&'static self) -> &'static Own<T> {
        let process = id();
        let mut found = self.newest.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that was given away below for ever.
            let newest = unsafe { found.as_ref() };
            match newest {
                Some(own) if own.process == process => return own,
                _ => {}
            }
            let inherited_from = newest.map(|own| own.process);
            let own = Box::new(Own { process, inherited_from, value: (self.make)() });
            let own = Box::into_raw(own);
            match self.newest.compare_exchange(found, own, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: it was made above, and is freed by nobody from here on.
                Ok(_) => return unsafe { &*own },
                Err(other) => {
                    // SAFETY: it was made above, and nobody has seen it.
                    drop(unsafe { Box::from_raw(own) });
                    found = other;
                }
            }
        }
    }

    /// Returns the value, if this process or one of which it is a fork has made one.
    pub fn get_if_used(&'static self) -> Option<&'static Own<T>> {
        (!self.newest.load(Ordering::Acquire).is_null()).then(|| self.get())
    }
}

impl<T> Own<T> {
    /// The process of which this one is a fork, if that had such a value, too.
    pub fn inherited_from(&self) -> Option<u32> {
        self.inherited_from
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Runs `check` in a child of fork; whether it answered so.
    fn holds_in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child runs the check alone, and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let held = check();
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!held)) };
        }
        let mut status = 0;
        // SAFETY: waits for our own child and writes one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    #[test]
    fn a_child_of_fork_is_another_process() {
        assert_eq!(id(), std::process::id());
        let right = || id() == std::process::id() && id() == std::process::id();
        assert!(holds_in_a_child(right), "the child took itself for its parent");
        assert_eq!(id(), std::process::id());
    }

    #[test]
    fn a_child_of_fork_has_a_value_of_its_own_whatever_its_parent_does_with_its_own() {
        static COUNT: PerProcess<Mutex<u32>> = PerProcess::new(Mutex::default);
        let own = COUNT.get();
        assert_eq!(own.inherited_from(), None);
        let mut held = own.lock().unwrap();
        *held = 1;
        let parent = id();
        assert!(holds_in_a_child(|| {
            let own = COUNT.get();
            let fresh = own.try_lock().is_ok_and(|count| *count == 0);
            fresh && own.inherited_from() == Some(parent) && ptr::eq(own, COUNT.get())
        }));
        drop(held);
        assert!(ptr::eq(own, COUNT.get()) && *own.lock().unwrap() == 1);
    }

    #[test]
    fn threads_that_need_the_value_at_once_have_the_same() {
        static VALUE: PerProcess<u32> = PerProcess::new(|| 7);
        let threads: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| ptr::from_ref(VALUE.get()) as usize)).collect();
        let found: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(found.iter().all(|place| *place == found[0]), "{found:?}");
    }
}
