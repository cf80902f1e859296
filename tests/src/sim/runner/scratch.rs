//! Scratch tensors: puts, deletions, comparisons of memory, and what has ended.

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::{DmaBuffer, Source};
use tidelog_engine::pool::{DeleteError, PutError, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};

use super::{Check, Runner, text};
use crate::sim::coverage::Under;
use crate::sim::model::Content;

/// A put that is on its way.
pub(super) struct Write {
    pub(super) id: u8,
    pub(super) content: Content,
    pub(super) order: u64,
    pub(super) ticket: Ticket,
}

impl Runner<'_> {
    pub(super) fn put(&mut self, id: u8, content: Content, class: u8, urgent: bool) -> Check {
        let options = PutOptions {
            lifetime: LifetimeClass::ALL[usize::from(class)],
            urgency: if urgent { Urgency::Urgent } else { Urgency::Ahead },
            notify: None,
            copies: Some(self.script.copies(false, content)),
        };
        let source = self.source(content)?;
        let put = self.pool()?.put(TensorId(id.into()), source, options);
        match put {
            Ok(ticket) => {
                self.order += 1;
                self.writes.push(Write { id, content, order: self.order, ticket });
                Ok(())
            }
            Err(error) => self.refused(&error),
        }
    }

    /// The bytes of a content: every other one in memory that devices read themselves, while there
    /// is some.
    pub(in crate::sim) fn source(&mut self, content: Content) -> Result<Source, String> {
        let bytes = content.bytes();
        Ok(match self.buffer(bytes.len())? {
            Some(mut buffer) if content.salt % 2 == 1 => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Source::Dma { buffer, length: bytes.len() }
            }
            _ => Source::from(bytes),
        })
    }

    /// Memory of the pool that devices read and write themselves.
    pub(super) fn buffer(&mut self, length: usize) -> Result<Option<DmaBuffer>, String> {
        self.pool()?.buffer(length).map_err(text)
    }

    /// A put may be refused only because the pool is full, and then with the true figures.
    pub(in crate::sim) fn refused(&self, error: &PutError) -> Check {
        let faults = self.allowed_errors.any() || self.is_any_unreadable() || self.is_down();
        if matches!(error, PutError::Announce(_)) && faults {
            return Ok(());
        }
        let PutError::PoolFull { needed, available, space, .. } = error else {
            return Err(format!("the put was refused: {error}"));
        };
        let now = self.pool()?.stats().map_err(text)?.space;
        if **space != now || needed <= available || *available > space.free {
            return Err(format!("full, but the figures are wrong: {error}; it has {now:?}"));
        }
        Ok(())
    }

    /// Processes the commits and writes that have ended.
    pub(in crate::sim) fn process_completions(&mut self) -> Check {
        self.take_in_commits()?;
        let mut going = Vec::new();
        for write in std::mem::take(&mut self.writes) {
            match write.ticket.poll() {
                None => going.push(write),
                Some(Ok(_)) => self.model.installed(write.id, write.content, write.order),
                Some(Err(error)) => self.allow_write(&error)?,
            }
        }
        self.writes = going;
        Ok(())
    }

    pub(super) fn settle(&mut self) -> Check {
        for write in &self.writes {
            write.ticket.wait().ok();
        }
        self.count_struck(Under::Rest);
        self.process_completions()
    }

    pub(super) fn delete(&mut self, id: u8) -> Check {
        self.process_completions()?;
        let newest = self.model.newest(id);
        let is_coming = self.writes.iter().any(|write| write.id == id && write.order > newest);
        let any_coming = self.writes.iter().any(|write| write.id == id);
        let deleted = self.pool()?.delete(TensorId(id.into()));
        let expected = self.model.scratch.contains_key(&id) || is_coming;
        match deleted {
            Ok(()) if expected || any_coming => {
                self.order += 1;
                self.model.deleted(id, self.order);
                Ok(())
            }
            Err(DeleteError::Unknown(_)) if !expected => Ok(()),
            other => Err(format!("{other:?}, where the model says {expected}")),
        }
    }

    pub(super) fn verify(&mut self, id: u8, flipped: bool) -> Check {
        let Some(content) = self.expected(id, false)? else { return Ok(()) };
        let mut bytes = content.bytes();
        let flipped = flipped && !bytes.is_empty();
        if flipped {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
        }
        let verify = self.pool()?.verify(TensorId(id.into()), Source::from(bytes), None);
        match verify.map_err(text)?.wait() {
            Ok(done) if done.matched != flipped => Ok(()),
            other => Err(format!("{other:?}, where the memory was flipped: {flipped}")),
        }
    }
}
