//! Memory that the caller lends for one request.

use tidelog_engine::memory::{Destination, ForeignDestination, ForeignSource, Source};

use crate::session::Request;

/// The caller's answer to one request: where the bytes are, or that there are none.
pub(crate) struct CallerMemory {
    sequence: u64,
    address: usize,
}

impl CallerMemory {
    /// The memory for request `sequence`.
    ///
    /// # Safety
    /// `address` is 0, or that of as many bytes as that request says. They stay alive, and for an
    /// allocation untouched by anybody else, until the request's storage is released or settled.
    pub(crate) unsafe fn new(sequence: u64, address: u64) -> Self {
        Self { sequence, address: address as usize }
    }

    /// The request that this answers.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the caller declined.
    pub(crate) fn is_none(&self) -> bool {
        self.address == 0
    }

    /// The memory as what a write reads. The session asks for the storage's release or settlement only
    /// after the write's completion.
    pub(crate) fn source(&self, request: &Request) -> Source {
        let size = self.size(request);
        // SAFETY: by the contract of `new` the request's bytes live and stay as they are until release
        // or settlement, and that comes after the transfer's end.
        Source::Foreign(unsafe { ForeignSource::new(self.address as *const u8, size) })
    }

    /// The memory as what a read fills.
    pub(crate) fn destination(&self, request: &Request) -> Destination {
        let size = self.size(request);
        // SAFETY: as for `source`; and nobody else touches the bytes of an allocation meanwhile.
        Destination::Foreign(unsafe { ForeignDestination::new(self.address as *mut u8, size) })
    }

    /// What the caller promised holds for this request's size only.
    fn size(&self, request: &Request) -> usize {
        assert_eq!(self.sequence, request.sequence, "memory of one request serves another");
        assert!(self.address != 0 || request.size == 0, "no memory was lent");
        request.size as usize
    }
}
