//! Calibration: a few seconds of sequential reads and writes tell how large a stripe unit has to
//! be, and how many operations must be in flight, for the devices to be as fast as they can. The
//! pool keeps the depth in its superblocks, and how fast each device is where they differ.

mod existing;
mod meter;
mod sweep;
#[cfg(test)]
mod tests;

use std::io;
use std::time::{Duration, Instant};

use thiserror::Error;

use super::OpenError;
use super::members::Members;
use crate::layout::{DeviceRates, DeviceTable, Geometry};
use crate::memory::MemoryError;
use crate::path::{DeviceError, DeviceOpenError, Extent, OpenMode, PathError, Refused};
use crate::schedule::{ControlError, DrainError, StartError};
use crate::units::ByteCount;
use sweep::CalibrationSweep;

/// Limit of the area of each device that is written.
const AREA: u64 = 256 << 20;

/// Combined throughput of the devices, for one size of operations and one depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Bytes in each operation.
    pub chunk: ByteCount,
    /// Operations in flight on each device.
    pub depth: u32,
    /// Bytes written in a second.
    pub write: f64,
    /// Bytes read in a second.
    pub read: f64,
}

/// Throughput of one device while all are busy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceRate {
    /// Bytes written in a second.
    pub write: f64,
    /// Bytes read in a second.
    pub read: f64,
}

impl DeviceRate {
    /// Returns the bytes in a second that are written once and read once.
    fn both(&self) -> ByteCount {
        let both = 2.0 / (1.0 / self.write.max(1.0) + 1.0 / self.read.max(1.0));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
        ByteCount(both as u64)
    }
}

/// Result of a calibration, with the sizes and depths that follow from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Stripe units at one depth, if there was a choice; then depths with the stripe unit that was
    /// chosen.
    pub measurements: Vec<Measurement>,
    /// The smallest that reaches 97 % of the best.
    pub stripe_unit: ByteCount,
    /// The smallest that does with that stripe unit.
    pub depth: u32,
    /// Throughput of each device with these, in the order of their places.
    pub devices: Vec<DeviceRate>,
}

impl Calibration {
    /// Returns the rates of the devices, by which new segments are shared out.
    pub fn rates(&self) -> DeviceRates {
        DeviceRates::of(self.devices.iter().map(DeviceRate::both))
    }

    /// Returns the places of the devices that are slow beside the others.
    pub fn slow(&self) -> Vec<usize> {
        let all = DeviceTable::of_all(self.devices.len() as u32).current_set();
        self.rates().slow(all).into_iter().map(|(device, _)| device.0.into()).collect()
    }

    /// Returns whether new segments are shared out by the rates.
    pub fn is_shared_out(&self) -> bool {
        self.table(self.devices.len() as u32, None).is_some()
    }

    /// Returns the table of devices with these rates: `table`, but where the devices are equally
    /// fast and a pool has none.
    pub(super) fn table(&self, devices: u32, table: Option<DeviceTable>) -> Option<DeviceTable> {
        let with = table.unwrap_or_else(|| DeviceTable::of_all(devices)).with_rates(self.rates());
        (table.is_some() || with.weighted_sets().len() > 1).then_some(with)
    }
}

/// Progress of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrateProgress {
    /// Measurements that are done.
    pub done: usize,
    /// Number of measurements, at most.
    pub total: usize,
}

/// The reason why devices could not be calibrated. What a pool holds is as it was.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// The pool cannot be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The pool has too little free space.
    #[error(
        "there is no room to measure in: at least 8 stripe units of each device must be free, in whole segments"
    )]
    NoRoom,
    /// Buffers cannot be had.
    #[error("the buffers do not fit into memory that was set aside for them")]
    Memory,
    /// Memory cannot be had.
    #[error(transparent)]
    Map(#[from] MemoryError),
    /// A device cannot be opened for the data path.
    #[error(transparent)]
    Device(#[from] DeviceOpenError),
    /// No data path.
    #[error(transparent)]
    NoPath(#[from] PathError),
    /// The data path failed.
    #[error("the data path failed: {0}")]
    Path(io::Error),
    /// The data path takes no operations.
    #[error("the data path refused an operation: {0}")]
    Refused(String),
    /// A device failed.
    #[error(transparent)]
    Failed(#[from] DeviceError),
    /// A device does not answer.
    #[error("a device has not answered for {0:?}")]
    Silent(Duration),
    /// The data path for metadata could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The superblocks could not be read or written.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The data path did not end.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// Measuring failed, and the data path did not end.
    #[error("{why}; {left}")]
    Left {
        /// The reason why it failed.
        why: Box<CalibrateError>,
        /// Operations that the devices may still execute.
        left: DrainError,
    },
}

impl From<Refused> for CalibrateError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused.reason.to_string())
    }
}

/// Chooses the stripe unit, among those of which a pool can be made, and the depth for devices that
/// hold nothing.
pub(super) fn blank(
    members: &Members,
    geometry: &Geometry,
    buffered: bool,
    can_be_made: impl Fn(ByteCount) -> bool,
    progress: &mut (dyn FnMut(CalibrateProgress) + Send),
) -> Result<Calibration, CalibrateError> {
    let data = u64::from(geometry.segments) * geometry.segment_bytes;
    let area = [Extent::new(geometry.data_offset, data.min(AREA))];
    let units: Vec<ByteCount> =
        sweep::STRIPE_UNITS.into_iter().filter(|unit| can_be_made(*unit)).collect();
    measure(members, &area, &units, buffered, progress)
}

fn measure(
    members: &Members,
    area: &[Extent],
    units: &[ByteCount],
    buffered: bool,
    progress: &mut (dyn FnMut(CalibrateProgress) + Send),
) -> Result<Calibration, CalibrateError> {
    let mode = OpenMode { buffered, ..OpenMode::default() };
    let provider = members.best_provider(mode)?;
    let begun = Instant::now();
    let sweep =
        CalibrationSweep { devices: members.0.len(), area, units, clock: &|| begun.elapsed() };
    let found = sweep.run(provider, progress);
    if let Err(CalibrateError::Left { left, .. }) = &found {
        let _ = members.note(Err(*left));
    }
    found
}
