//! One thread of a storm. Its tensors are its own, so that it knows what each of them must be.

use std::collections::BTreeMap;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::pool::{DeleteError, Pool, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Ticket, TransferError, TransferOutcome, Urgency};

use super::{StormFigures, StormOptions, TIMEOUT};
use crate::sim::{Content, Random};

const TENSORS: usize = 16;

pub(super) struct Thread {
    pool: Pool,
    index: u64,
    in_flight_max: usize,
    random: Random,
    queue: CompletionQueue,
    tensors: Vec<Tensor>,
    flights: BTreeMap<u64, Flight>,
    next_tag: u64,
    figures: StormFigures,
}

#[derive(Clone, Copy, Default)]
struct Tensor {
    /// Content of the tensor, if it is there.
    content: Option<Content>,
    /// An operation of it is in flight.
    busy: bool,
}

struct Flight {
    tensor: usize,
    what: What,
    /// `None` where it was dropped.
    ticket: Option<Ticket>,
    may_be_cancelled: bool,
}

enum What {
    Put(Content),
    /// Range of the content's bytes.
    Get(Content, u64, u64),
    /// Result: whether the memory is what was put.
    Verify(bool),
}

impl Thread {
    pub(super) fn new(pool: Pool, index: u64, options: StormOptions) -> Self {
        Self {
            pool,
            index,
            in_flight_max: options.in_flight,
            random: Random::new(options.seed.wrapping_mul(1 << 20).wrapping_add(index)),
            queue: CompletionQueue::new(),
            tensors: vec![Tensor::default(); TENSORS],
            flights: BTreeMap::new(),
            next_tag: 0,
            figures: StormFigures::default(),
        }
    }

    /// Does `operations` operations, then reads everything once more.
    pub(super) fn run(mut self, operations: u64) -> Result<StormFigures, String> {
        for _ in 0..operations {
            while self.flights.len() >= self.in_flight_max {
                self.complete()?;
            }
            self.begin()?;
        }
        while !self.flights.is_empty() {
            self.complete()?;
        }
        let figures = self.figures;
        for tensor in 0..TENSORS {
            if let Some(content) = self.tensors[tensor].content {
                self.get(tensor, content, 0, content.length.into(), false)?;
                self.complete()?;
            } else if self.pool.contains(self.id(tensor)) {
                return Err(format!("{} should not be there", self.name(tensor)));
            }
        }
        match self.queue.try_pop() {
            Some((tag, _)) => Err(format!("the end of {tag} was told twice")),
            None => Ok(figures),
        }
    }

    fn id(&self, tensor: usize) -> TensorId {
        TensorId(u128::from(self.index) << 64 | tensor as u128)
    }

    fn name(&self, tensor: usize) -> String {
        format!("tensor {tensor} of thread {}", self.index)
    }

    /// Begins an operation on a tensor that has none in flight.
    fn begin(&mut self) -> Result<(), String> {
        let tensor = loop {
            let tensor = self.random.below(TENSORS as u64) as usize;
            if !self.tensors[tensor].busy {
                break tensor;
            }
        };
        let cancel = self.random.chance(32);
        match (self.random.below(100), self.tensors[tensor].content) {
            (0..45, Some(content)) => {
                let length = u64::from(content.length);
                let whole = self.random.chance(2);
                let from = if whole { 0 } else { self.random.below(length) };
                let to = if whole { length } else { from + self.random.below(length - from) + 1 };
                self.get(tensor, content, from, to, cancel)
            }
            (45..50, Some(content)) => self.verify(tensor, content),
            (50..55, content) => self.delete(tensor, content),
            _ => self.put(tensor, cancel),
        }
    }

    fn put(&mut self, tensor: usize, cancel: bool) -> Result<(), String> {
        let content = self.content();
        let bytes = content.bytes();
        let source = match self.buffer(bytes.len())? {
            Some(mut buffer) => {
                buffer[..bytes.len()].copy_from_slice(&bytes);
                Source::Dma { buffer, length: bytes.len() }
            }
            None => Source::from(bytes),
        };
        let notify = Some((self.queue.clone(), self.next_tag));
        let urgency = self.random.pick(&[Urgency::Urgent, Urgency::Ahead]);
        let options = PutOptions { urgency, notify, ..PutOptions::default() };
        let ticket = self.pool.put(self.id(tensor), source, options);
        let ticket = ticket.map_err(|error| format!("{}: {error}", self.name(tensor)))?;
        self.fly(tensor, What::Put(content), ticket, cancel);
        Ok(())
    }

    fn get(
        &mut self,
        tensor: usize,
        content: Content,
        from: u64,
        to: u64,
        cancel: bool,
    ) -> Result<(), String> {
        let length = (to - from) as usize;
        let destination = match self.buffer(length)? {
            Some(buffer) => Destination::Dma { buffer, length },
            None => Destination::buffer(length),
        };
        let notify = Some((self.queue.clone(), self.next_tag));
        let urgency = self.random.pick(&[Urgency::Urgent, Urgency::Ahead]);
        let ticket = self.pool.get(self.id(tensor), from..to, destination, urgency, notify);
        let ticket = ticket.map_err(|error| format!("{}: {error}", self.name(tensor)))?;
        self.fly(tensor, What::Get(content, from, to), ticket, cancel);
        Ok(())
    }

    fn verify(&mut self, tensor: usize, content: Content) -> Result<(), String> {
        let mut bytes = content.bytes();
        let right = self.random.chance(2);
        if !right {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        let notify = Some((self.queue.clone(), self.next_tag));
        let ticket = self.pool.verify(self.id(tensor), bytes.into(), notify);
        let ticket = ticket.map_err(|error| format!("{}: {error}", self.name(tensor)))?;
        self.fly(tensor, What::Verify(right), ticket, false);
        Ok(())
    }

    fn delete(&mut self, tensor: usize, content: Option<Content>) -> Result<(), String> {
        match (self.pool.delete(self.id(tensor)), content) {
            (Ok(()), Some(_)) | (Err(DeleteError::Unknown(_)), None) => (),
            (answer, _) => return Err(format!("{}: deleted, {answer:?}", self.name(tensor))),
        }
        self.tensors[tensor].content = None;
        self.figures.deletions += 1;
        Ok(())
    }

    fn fly(&mut self, tensor: usize, what: What, ticket: Ticket, cancel: bool) {
        if cancel {
            ticket.cancel();
        }
        // A read's bytes come with its ticket; of the others one in four is dropped.
        let dropped = !matches!(what, What::Get(..)) && self.random.chance(4);
        let ticket = (!dropped).then_some(ticket);
        let flight = Flight { tensor, what, ticket, may_be_cancelled: cancel };
        self.flights.insert(self.next_tag, flight);
        self.next_tag += 1;
        self.tensors[tensor].busy = true;
    }

    /// Waits for an end, and compares what it brought.
    fn complete(&mut self) -> Result<(), String> {
        let lost = || format!("nothing of {} in flight ended", self.flights.len());
        let (tag, outcome) = self.queue.wait_pop(TIMEOUT).ok_or_else(lost)?;
        let Some(flight) = self.flights.remove(&tag) else {
            return Err(format!("the end of {tag} was told twice"));
        };
        let Flight { tensor, what, ticket, may_be_cancelled } = flight;
        self.tensors[tensor].busy = false;
        if let Some(ticket) = &ticket {
            let told = ticket.wait_timeout(TIMEOUT);
            if told.as_ref() != Some(&outcome) || !ticket.released() {
                return Err(format!("{}: queue {outcome:?}, ticket {told:?}", self.name(tensor)));
            }
        }
        if may_be_cancelled && outcome == Err(TransferError::Cancelled) {
            self.figures.cancelled += 1;
            return Ok(());
        }
        self.check(tensor, &what, ticket, outcome)
            .map_err(|what| format!("{}: {what}", self.name(tensor)))
    }

    fn check(
        &mut self,
        tensor: usize,
        what: &What,
        ticket: Option<Ticket>,
        outcome: TransferOutcome,
    ) -> Result<(), String> {
        let done = outcome.map_err(|error| error.to_string())?;
        match *what {
            What::Put(content) => {
                self.tensors[tensor].content = Some(content);
                self.figures.puts += 1;
            }
            What::Get(content, from, to) => {
                let ticket = ticket.ok_or("reads keep their tickets")?;
                let expected = &content.bytes()[from as usize..to as usize];
                let found = match ticket.take_buffer() {
                    Some(buffer) => buffer[..expected.len()].to_vec(),
                    None => ticket.take_bytes().ok_or("no bytes came")?,
                };
                if let Some(at) = found.iter().zip(expected).position(|(one, other)| one != other) {
                    return Err(format!("WRONG BYTE {at} of {from}..{to}"));
                }
                if found.len() != expected.len() || done.bytes != to - from {
                    return Err(format!("{} bytes came of {from}..{to}", found.len()));
                }
                self.figures.gets += 1;
                self.figures.bytes_compared += done.bytes;
            }
            What::Verify(right) => {
                if done.matched != right {
                    return Err(format!("memory that is right: {right}, said to be otherwise"));
                }
                self.figures.verifications += 1;
            }
        }
        Ok(())
    }

    /// Draws a content: mostly short tensors, some of many pieces.
    fn content(&mut self) -> Content {
        let longest = match self.random.below(100) {
            0..70 => 4096,
            70..97 => 20_000,
            _ => 300_000,
        };
        Content { length: self.random.below(longest) as u32 + 1, salt: self.random.draw() as u32 }
    }

    /// Memory that devices read and write themselves, for every fourth, while there is some.
    fn buffer(&mut self, length: usize) -> Result<Option<DmaBuffer>, String> {
        if !self.random.chance(4) {
            return Ok(None);
        }
        self.pool.buffer(length).map_err(|error| error.to_string())
    }
}
