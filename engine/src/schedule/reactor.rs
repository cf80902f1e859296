//! The face of the reactor: starting it, giving it transfers, stopping it.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::active::{Job, Order};
use super::completion::Notify;
use super::finish::Finish;
use super::idle::LastUse;
use super::mailbox::ReactorMessage;
use super::options::{ControlError, DrainError, ReactorOptions, StartError, SubmitError};
use super::stats::{DeviceCounters, ReactorStats};
use super::subject::Subject;
use super::submitter::Submitter;
use super::ticket::Ticket;
use super::transfer::{Piece, Transfer, TransferError, Urgency};
use super::worker::{Staging, StartedReactor, Worker};
use crate::memory::{Destination, DmaBuffer, DmaPool};
use crate::path::{Capabilities, Extent, PathProvider};
use crate::units::{ByteCount, DeviceIndex};

/// One thread that moves transfers between memory and a group of devices; and others, if it was
/// given any, to which transfers may be given, too.
pub struct Reactor {
    submitter: Submitter,
    thread: Option<JoinHandle<usize>>,
    base: ReactorStats,
    counters: Arc<[DeviceCounters]>,
    pub(super) memory: DmaPool,
    others: Vec<Reactor>,
    last_use: Arc<LastUse>,
}

impl Reactor {
    /// Starts the thread, opens the data path on it, and maps and registers the staging memory.
    pub fn start(
        provider: Box<dyn PathProvider>,
        options: ReactorOptions,
    ) -> Result<Self, StartError> {
        let staging = Staging { threads: 1, memory: None };
        Self::start_one(provider, options, (staging, Arc::new(LastUse::new())))
    }

    /// Starts a reactor, as [`Self::start`] does, with one more thread for each of `others`, which
    /// open data paths to the same devices, and know of failures on each other's. The staging
    /// memory is shared alike.
    ///
    /// What a device has read lies in the caches of the core that moved it, or that the device's
    /// interrupt went to, and comparing it with its checksum there costs a fraction; and one core
    /// copies and compares no more than it can read.
    pub fn start_with_threads(
        provider: Box<dyn PathProvider>,
        others: Vec<Box<dyn PathProvider>>,
        options: &ReactorOptions,
    ) -> Result<Self, StartError> {
        let threads = others.len() + 1;
        let staging = |memory| Staging { threads, memory };
        let last_use = Arc::new(LastUse::new());
        let with = |memory| (staging(memory), Arc::clone(&last_use));
        let mut first = Self::start_one(provider, options.clone(), with(None))?;
        for provider in others {
            let memory = with(Some(first.memory.clone()));
            first.others.push(Self::start_one(provider, options.clone(), memory)?);
        }
        Ok(first)
    }

    fn start_one(
        provider: Box<dyn PathProvider>,
        options: ReactorOptions,
        of_all: (Staging, Arc<LastUse>),
    ) -> Result<Self, StartError> {
        options.check()?;
        let last_use = Arc::clone(&of_all.1);
        let chunk = options.chunk;
        let (answer, started) = mpsc::sync_channel::<Result<StartedReactor, StartError>>(1);
        let thread = std::thread::Builder::new()
            .name("tidelog-reactor".into())
            .spawn(move || match Worker::open(provider, options, of_all) {
                Ok((worker, facts)) => {
                    let heard = answer.send(Ok(facts)).is_ok();
                    if heard { worker.run() } else { 0 }
                }
                Err(error) => {
                    // Nobody listens only if the caller is gone, and then nobody needs to know.
                    let _ = answer.send(Err(error));
                    0
                }
            })
            .map_err(StartError::Thread)?;
        let gone = || StartError::Thread(std::io::Error::other("it ended before it had begun"));
        let StartedReactor { mailbox, stats, counters, memory } =
            started.recv().map_err(|_| gone())??;
        let capabilities = Arc::new(stats.capabilities.clone());
        let submitter = Submitter::new(mailbox, capabilities, chunk);
        let (thread, others) = (Some(thread), Vec::new());
        Ok(Self { submitter, thread, base: stats, counters, memory, others, last_use })
    }

    /// Returns the reactor that moves, or verifies, what begins on this device: always the same
    /// one.
    pub fn mover(&self, device: DeviceIndex) -> &Self {
        let threads = self.others.len() + 1;
        (usize::from(device.0) % threads).checked_sub(1).map_or(self, |other| &self.others[other])
    }

    /// Returns whether something was asked of it lately that was no [`Urgency::Idle`] work.
    pub(crate) fn is_in_use(&self) -> bool {
        self.last_use.is_recent()
    }

    /// Returns the capabilities of the data path.
    pub fn capabilities(&self) -> &Capabilities {
        self.submitter.capabilities()
    }

    /// The way to the thread for those who outlive this handle.
    pub(crate) fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// The longest piece, in bytes.
    pub fn chunk(&self) -> ByteCount {
        self.submitter.chunk
    }

    /// A buffer of `bytes` rounded up to 4 KiB that devices read and write themselves, registered
    /// with the data path where that can be; `None` while [`ReactorOptions::buffers`] has no run
    /// that long left. Dropped, it returns.
    pub fn buffer(&self, bytes: usize) -> Option<DmaBuffer> {
        self.memory.take(bytes)
    }

    /// An empty list for the pieces of a transfer, with the memory that another one's had.
    pub fn pieces(&self) -> Vec<Piece> {
        self.submitter.mailbox.list()
    }

    /// Returns the statistics of the reactor.
    pub fn stats(&self) -> ReactorStats {
        let mut devices: Vec<_> = self.counters.iter().map(DeviceCounters::snapshot).collect();
        for other in &self.others {
            devices
                .iter_mut()
                .zip(other.counters.iter())
                .for_each(|(all, some)| *all += some.snapshot());
        }
        ReactorStats { devices, threads: self.others.len() + 1, ..self.base.clone() }
    }

    /// Takes a transfer. `finish` runs on the reactor thread at its end, then the ticket turns
    /// ready, then `notify`'s queue gets the tag. A transfer without pieces ends at once.
    pub fn submit(
        &self,
        transfer: Transfer,
        urgency: Urgency,
        notify: Option<Notify>,
        finish: Finish,
    ) -> Result<Ticket, SubmitError> {
        self.submit_about(Subject::default(), transfer, urgency, notify, finish)
    }

    /// Submits, as [`Self::submit`] does, a transfer whose errors name what it moves.
    pub fn submit_about(
        &self,
        subject: Subject,
        transfer: Transfer,
        urgency: Urgency,
        notify: Option<Notify>,
        finish: Finish,
    ) -> Result<Ticket, SubmitError> {
        let ticket = self.enqueue(subject, transfer, urgency, notify, finish)?;
        self.wake();
        Ok(ticket)
    }

    /// Wakes the reactor's thread if it sleeps.
    pub(crate) fn wake(&self) {
        self.submitter.mailbox.wake();
    }

    /// Wakes those of the threads that sleep although there is something for them.
    pub(crate) fn wake_all(&self) {
        self.submitter.mailbox.wake_for_news();
        self.others.iter().for_each(Self::wake_all);
    }

    /// Enqueues, as [`Self::submit_about`] does, but a reactor that sleeps sees the transfer only
    /// once it is woken.
    pub(crate) fn enqueue(
        &self,
        subject: Subject,
        transfer: Transfer,
        urgency: Urgency,
        notify: Option<Notify>,
        finish: Finish,
    ) -> Result<Ticket, SubmitError> {
        if transfer.is_on_gpu() && self.base.gpu.is_none() {
            return Err(SubmitError::NoGpu);
        }
        let (job, pieces) = match transfer {
            Transfer::Write { source, pieces } => {
                self.submitter.check(&pieces, source.len(), true, false)?;
                (Job::Write { source: Some(source), fua: false }, pieces)
            }
            Transfer::Read { destination, pieces } => {
                self.submitter.check(&pieces, destination.len(), true, true)?;
                (Job::Read { destination: Some(allocated(destination)?) }, pieces)
            }
            Transfer::Verify { source, pieces } => {
                self.submitter.check(&pieces, source.len(), false, false)?;
                (Job::Verify { source: Some(source) }, pieces)
            }
        };
        self.submitter.enqueue(Order { job, subject, urgency, finish, notify }, pieces)
    }

    /// Writes metadata at `offset` of a device and waits; with `fua` until it is on the medium.
    pub fn write_meta(
        &self,
        device: DeviceIndex,
        offset: ByteCount,
        bytes: Vec<u8>,
        fua: bool,
    ) -> Result<(), ControlError> {
        self.wait(|finish| self.submitter.write_meta(&[device], offset, bytes, fua, finish))
            .map(drop)
    }

    /// Writes the same metadata at `offset` of each of these devices and puts it on their media.
    /// Waits at most this long for either; what is in flight then goes on.
    pub(crate) fn write_everywhere(
        &self,
        devices: &[DeviceIndex],
        offset: ByteCount,
        bytes: Vec<u8>,
        patience: Duration,
    ) -> Result<(), ControlError> {
        let in_time = |ticket: Ticket| {
            let late = || TransferError::Stopped { reason: "a device does not answer".into() };
            ticket.wait_timeout(patience).unwrap_or_else(|| Err(late()))
        };
        let nothing = Finish::nothing;
        in_time(self.submitter.write_meta(devices, offset, bytes, false, nothing())?)?;
        in_time(self.submitter.flush(devices, nothing())?)?;
        Ok(())
    }

    /// Reads `length` bytes of metadata at `offset` of a device.
    pub fn read_meta(
        &self,
        device: DeviceIndex,
        offset: ByteCount,
        length: usize,
    ) -> Result<Vec<u8>, ControlError> {
        let pieces = self.cut(device, offset, length);
        self.submitter.check(&pieces, length, true, true)?;
        let destination = allocated(Destination::buffer(length))?;
        let job = Job::Read { destination: Some(destination) };
        let read = self.wait(|finish| {
            let subject = Subject::default();
            self.submitter.send(job, subject, pieces, Urgency::Urgent, None, finish)
        })?;
        Ok(read.take_bytes().unwrap_or_default())
    }

    /// Puts every write that has ended by now on the media of these devices, and waits for it.
    pub fn flush(&self, devices: &[DeviceIndex]) -> Result<(), ControlError> {
        self.wait(|finish| self.submitter.flush(devices, finish)).map(drop)
    }

    /// Makes extents read as zeroes, without moving bytes where the device knows how.
    pub fn write_zeroes(&self, extents: &[(DeviceIndex, Extent)]) -> Result<Ticket, SubmitError> {
        self.control(Job::WriteZeroes, extents)
    }

    /// Tells block devices that nobody needs these extents. Their bytes are anything afterwards.
    pub fn deallocate(&self, extents: &[(DeviceIndex, Extent)]) -> Result<Ticket, SubmitError> {
        self.control(Job::Deallocate, extents)
    }

    /// Lets a stepped reactor go round `rounds` times at most; returns whether something still
    /// moved at the end. Any other reactor moves by itself.
    pub fn step(&self, rounds: u64) -> bool {
        self.submitter.mailbox.step_token().is_none_or(|step_token| step_token.grant(rounds, None))
    }

    /// Gives the pages of staging memory back to the kernel until the next transfer. `false`: not
    /// all of them, as something moves, or a device or a GPU has them locked.
    pub fn release_staging(&self) -> bool {
        let mailbox = &self.submitter.mailbox;
        if mailbox.step_token().is_some() {
            return false;
        }
        let (answer, released) = mpsc::sync_channel(1);
        mailbox.send(ReactorMessage::ReleaseStaging(answer));
        let here = released.recv().unwrap_or(false);
        let elsewhere: Vec<bool> = self.others.iter().map(Self::release_staging).collect();
        here && elsewhere.into_iter().all(|each| each)
    }

    /// Ends the reactor at this time, or before: what is in flight then ends as stopped, and
    /// nothing more is taken. Whoever waits for a transfer waits no longer.
    pub fn end_at(&self, time: Instant) {
        self.others.iter().for_each(|other| other.end_at(time));
        if !self.submitter.mailbox.is_forked() {
            self.submitter.mailbox.end_at(time);
        }
    }

    /// Ends everything that was submitted, then the thread. Nothing is taken any more from here on.
    pub fn close(mut self) -> Result<(), DrainError> {
        match self.stop() {
            0 => Ok(()),
            in_flight => Err(DrainError { in_flight }),
        }
    }

    /// Ends all threads. Returns how many operations never came back.
    fn stop(&mut self) -> usize {
        // All are closed before one is waited for: each waits for its devices for a while.
        let others = self.others.iter().map(|other| &other.submitter.mailbox);
        others.filter(|it| !it.is_forked()).for_each(|it| it.close("it was closed"));
        let elsewhere: usize = self.others.iter_mut().map(Self::stop).sum();
        elsewhere + self.stop_thread()
    }

    fn stop_thread(&mut self) -> usize {
        let Some(thread) = self.thread.take() else { return 0 };
        if self.submitter.mailbox.is_forked() {
            // The thread is the parent's; here there is nothing to join.
            std::mem::forget(thread);
            return 0;
        }
        self.submitter.mailbox.close("it was closed");
        if thread.thread().id() == std::thread::current().id() {
            // Dropped inside a `Finish`: the thread ends once that returns.
            return 0;
        }
        // A reactor that panicked has failed every ticket on its way out. What its devices still do
        // nobody knows, so they count as not having ended.
        thread.join().unwrap_or(1)
    }

    /// The pieces of `length` bytes at `offset` of one device.
    fn cut(&self, device: DeviceIndex, offset: ByteCount, length: usize) -> Vec<Piece> {
        let chunk = self.submitter.chunk.0 as usize;
        let starts = (0..length).step_by(chunk);
        let piece = |start: usize| {
            let at = ByteCount(offset.0.saturating_add(start as u64));
            Piece::new(device, at, start as u64, (length - start).min(chunk) as u32)
        };
        starts.map(piece).collect()
    }

    fn control(&self, job: Job, extents: &[(DeviceIndex, Extent)]) -> Result<Ticket, SubmitError> {
        let mut pieces = Vec::with_capacity(extents.len());
        for (index, &(device, extent)) in extents.iter().enumerate() {
            let invalid = |reason| SubmitError::Invalid { piece: index, reason };
            let known = self.capabilities().devices.get(usize::from(device.0));
            let size = known.ok_or(invalid("there is no such device"))?.size;
            if !extent.fits(size) || extent.length.0 == 0 {
                return Err(invalid("the extent is empty, unaligned or ends beyond the device"));
            }
            let length = u32::try_from(extent.length.0);
            let length = length.map_err(|_| invalid("the extent is 4 GiB or longer"))?;
            pieces.push(Piece::new(device, extent.offset, 0, length));
        }
        let (subject, finish) = (Subject::default(), Finish::nothing());
        self.submitter.send(job, subject, pieces, Urgency::Ahead, None, finish)
    }

    /// Submits and waits for the end.
    fn wait(
        &self,
        submit: impl FnOnce(Finish) -> Result<Ticket, SubmitError>,
    ) -> Result<Ticket, ControlError> {
        let here = std::thread::current().id();
        if self.thread.as_ref().is_some_and(|thread| thread.thread().id() == here) {
            return Err(SubmitError::WouldDeadlock.into());
        }
        let ticket = submit(Finish::nothing())?;
        ticket.wait()?;
        Ok(ticket)
    }
}

/// The destination of a read with its memory.
fn allocated(destination: Destination) -> Result<Destination, SubmitError> {
    destination.allocated().map_err(|bytes| SubmitError::Memory(ByteCount(bytes as u64)))
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop();
    }
}
