//! Reads, of which several may be in flight, and whether their bytes are right.

use tidelog_engine::memory::Destination;
use tidelog_engine::path::OperationKind;
use tidelog_engine::path::sim::Fault;
use tidelog_engine::schedule::{Ticket, TransferError, TransferOutcome, Urgency};

use super::{Check, Runner, tensor, text};
use crate::sim::coverage::Under;
use crate::sim::model::{Content, Model};

/// A read that was submitted and has not ended.
pub(super) struct ReadInFlight {
    pub(super) name: String,
    pub(super) durable: Option<u16>,
    pub(super) content: Content,
    pub(super) ticket: Ticket,
}

impl Runner<'_> {
    /// Returns the content that can be read under an id now.
    pub(super) fn expected(&mut self, id: u8, durable: bool) -> Result<Option<Content>, String> {
        self.process_completions()?;
        let Model { durable: named, scratch, .. } = &self.model;
        let found = if durable { named.get(&id.into()) } else { scratch.get(&id) };
        Ok(found.copied())
    }

    pub(super) fn start(
        &mut self,
        id: u16,
        durable: bool,
        range: (u64, u64),
    ) -> Result<Ticket, String> {
        let length = (range.1 - range.0) as usize;
        // Every other one into memory that devices write themselves, while there is some.
        let destination = match self.buffer(length)? {
            Some(buffer) if self.act % 2 == 1 => Destination::Dma { buffer, length },
            _ => Destination::buffer(length),
        };
        self.pool()?
            .get(tensor(id, durable), range.0..range.1, destination, Urgency::Urgent, None)
            .map_err(text)
    }

    pub(super) fn get(&mut self, id: u8, durable: bool, from: u8, to: u8) -> Check {
        let Some(content) = self.expected(id, durable)? else {
            let there = self.pool()?.contains(tensor(id.into(), durable));
            return if there { Err("it should not be there".into()) } else { Ok(()) };
        };
        let part = |of: u8| u64::from(content.length) * u64::from(of) / 255;
        let (from, to) = (part(from), part(to));
        let ticket = self.start(id.into(), durable, (from, to))?;
        let outcome = ticket.wait();
        self.count_struck(Under::Get);
        let expected = &content.bytes()[from as usize..to as usize];
        let name = durable.then_some(u16::from(id));
        self.compare(&format!("{id}"), name, content, &outcome, &ticket, expected)
    }

    pub(super) fn begin(&mut self, id: u8, durable: bool, slow: bool) -> Check {
        let Some(content) = self.expected(id, durable)? else { return Ok(()) };
        if slow {
            // Longer than hundreds of other operations take.
            for disk in &self.disks {
                disk.plan_fault(OperationKind::Read, 0, Fault::Slow(10_000));
            }
        }
        let ticket = self.start(id.into(), durable, (0, content.length.into()))?;
        let durable = durable.then_some(u16::from(id));
        self.reads.push(ReadInFlight {
            name: format!("{id}, begun in act {}", self.act),
            durable,
            content,
            ticket,
        });
        Ok(())
    }

    pub(super) fn complete(&mut self) -> Check {
        for read in std::mem::take(&mut self.reads) {
            let outcome = read.ticket.wait();
            self.count_struck(Under::Get);
            let bytes = read.content.bytes();
            self.compare(&read.name, read.durable, read.content, &outcome, &read.ticket, &bytes)?;
        }
        Ok(())
    }

    pub(super) fn compare(
        &mut self,
        name: &str,
        durable: Option<u16>,
        content: Content,
        outcome: &TransferOutcome,
        ticket: &Ticket,
        expected: &[u8],
    ) -> Check {
        match outcome {
            Ok(_) => {
                let found = read_bytes(ticket, expected.len())
                    .ok_or("a read that ended well has no bytes")?;
                if found == expected {
                    return Ok(());
                }
                let at = found.iter().zip(expected).position(|(one, other)| one != other);
                Err(format!("WRONG BYTES in tensor {name}, from byte {at:?} of the range"))
            }
            Err(error) if self.fails_beside_a_copy(content, durable.is_some(), outcome) => {
                Err(format!("tensor {name} is lost beside its other copy: {error}"))
            }
            Err(_) if self.is_lost(outcome) => {
                if let Some(id) = durable {
                    self.lost.insert(id, content);
                }
                Ok(())
            }
            Err(TransferError::Checksum { .. } | TransferError::Device { .. })
                // The second try of what is rotten may be the one that fails.
                if self.allowed_errors.reads + self.allowed_errors.damaged > 1 || self.is_down() =>
            {
                Ok(())
            }
            Err(TransferError::Latched { .. } | TransferError::Stopped { .. })
                if self.is_down() =>
            {
                Ok(())
            }
            Err(error) => Err(format!("tensor {name} cannot be read: {error}")),
        }
    }

    pub(in crate::sim) fn bytes_of(&mut self, id: u16) -> Result<Option<Vec<u8>>, String> {
        let length = self.pool()?.length(tensor(id, true)).ok_or("it is not there")?;
        let ticket = self.start(id, true, (0, length))?;
        let ended = ticket.wait();
        self.count_struck(Under::Get);
        Ok(ended.ok().and_then(|_| read_bytes(&ticket, length as usize)))
    }
}

/// Returns the bytes of a read, whatever its destination.
fn read_bytes(ticket: &Ticket, length: usize) -> Option<Vec<u8>> {
    let from_buffer = ticket.take_buffer().map(|buffer| buffer[..length].to_vec());
    from_buffer.or_else(|| ticket.take_bytes())
}
