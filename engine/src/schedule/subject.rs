//! Subject of a transfer, so that its errors can say it in words.

use std::fmt::Display;
use std::sync::Arc;

use crate::layout::TensorId;
use crate::units::DeviceIndex;

/// Subject of a transfer: what its memory holds. To carry it costs a transfer at most the count of
/// a reference; words are made of it only by an error.
#[derive(Clone, Default)]
pub struct Subject {
    tensor: Tensor,
    first_byte: u64,
}

#[derive(Clone, Default)]
enum Tensor {
    #[default]
    Unsaid,
    Id(TensorId),
    Called(Arc<str>),
    Named(Arc<dyn Display + Send + Sync>),
}

impl Subject {
    /// A whole tensor without a name that is known.
    pub fn of(id: TensorId) -> Self {
        Self { tensor: Tensor::Id(id), first_byte: 0 }
    }

    /// A whole tensor by its name.
    pub fn called(name: &str) -> Self {
        Self { tensor: Tensor::Called(name.into()), first_byte: 0 }
    }

    /// Makes the subject of an object that names itself.
    pub fn named(tensor: Arc<dyn Display + Send + Sync>) -> Self {
        Self { tensor: Tensor::Named(tensor), first_byte: 0 }
    }

    /// Limits the subject to the bytes from this one on.
    #[must_use]
    pub fn from_byte(self, first_byte: u64) -> Self {
        Self { first_byte, ..self }
    }

    pub(super) fn first_byte(&self) -> u64 {
        self.first_byte
    }
}

/// Description of a failed transfer, in words that people know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The tensor, by its name if it has one. Empty where the transfer did not say.
    pub tensor: String,
    /// The device's path.
    pub path: String,
}

impl About {
    pub(super) fn new(subject: &Subject, path: Option<&str>) -> Self {
        let tensor = match &subject.tensor {
            Tensor::Unsaid => String::new(),
            Tensor::Id(id) => id.to_string(),
            Tensor::Called(name) => format!("{name:?}"),
            Tensor::Named(tensor) => tensor.to_string(),
        };
        Self { tensor, path: path.unwrap_or_default().into() }
    }

    /// The device, by its place in the pool and its path.
    pub(super) fn on(&self, device: DeviceIndex) -> String {
        match self.path.as_str() {
            "" => device.to_string(),
            path => format!("{device} ({path})"),
        }
    }

    /// A byte of the tensor.
    pub(super) fn byte(&self, offset: u64) -> String {
        match self.tensor.as_str() {
            "" => format!("byte {offset} of the tensor"),
            tensor => format!("byte {offset} of {tensor}"),
        }
    }
}
