//! Dropping what has lost bytes, by name: which tensors and seals a name means.

use std::fmt;

use super::check::CheckReport;
use super::damage::DamagedTensor;
use crate::layout::TensorId;

/// Name of an object that is to be dropped if it has lost bytes, in every share in which it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DropName {
    /// `tensor:NAME`: what stands under this name.
    Tensor(String),
    /// `id:HEX`: what stands under this id, 32 hexadecimal digits.
    Id(TensorId),
    /// `seal:NAME`: the seal of this name.
    Seal(String),
    /// A name or an id without a word before it, which must mean one of these.
    Bare(String),
}

impl DropName {
    /// Reads one. What begins with one of the three words is never a bare name.
    ///
    /// # Errors
    /// What should be an id is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tensor", name)) => Ok(Self::Tensor(name.into())),
            Some(("seal", name)) => Ok(Self::Seal(name.into())),
            Some(("id", id)) => {
                read_id(id).map(Self::Id).ok_or_else(|| format!("{id:?} is no id of a tensor"))
            }
            _ => Ok(Self::Bare(text.into())),
        }
    }

    /// The names by which a damaged tensor can be dropped: itself where it stands under its id, and
    /// each seal that holds it.
    pub fn of(tensor: &DamagedTensor) -> Vec<Self> {
        let itself = match &tensor.name {
            Some(name) if !name.contains(char::is_control) => Self::Tensor(name.clone()),
            _ => Self::Id(tensor.id),
        };
        let seals = tensor.seals.iter().map(|seal| Self::Seal(seal.clone()));
        tensor.current.then_some(itself).into_iter().chain(seals).collect()
    }

    /// Returns the possible meanings of a bare name.
    fn meanings(&self) -> Vec<Self> {
        let Self::Bare(text) = self else { return vec![self.clone()] };
        let id = read_id(text).map(Self::Id);
        [Self::Tensor(text.clone()), Self::Seal(text.clone())].into_iter().chain(id).collect()
    }

    fn is(&self, lost: &Lost) -> bool {
        match (self, lost) {
            (Self::Tensor(name), Lost::Tensor(tensor)) => tensor.name.as_ref() == Some(name),
            (Self::Id(id), Lost::Tensor(tensor)) => tensor.id == *id,
            (Self::Seal(name), Lost::Seal { name: seal, .. }) => seal == name,
            _ => false,
        }
    }
}

impl fmt::Display for DropName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(name) => write!(out, "tensor:{name}"),
            Self::Id(id) => write!(out, "id:{:032x}", id.0),
            Self::Seal(name) => write!(out, "seal:{name}"),
            Self::Bare(name) => write!(out, "{name}"),
        }
    }
}

fn read_id(text: &str) -> Option<TensorId> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(TensorId)
}

/// Object that has lost bytes, and can be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// A tensor that stands under its id. Seals that hold it, too, are not dropped with it.
    Tensor(DamagedTensor),
    /// A seal that holds tensors of which bytes are lost. Those that stand under their ids are not
    /// dropped with it.
    Seal {
        /// The share.
        share: u32,
        /// The name.
        name: String,
        /// Number of such tensors that it holds.
        tensors: usize,
    },
}

impl fmt::Display for Lost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(tensor) => write!(out, "tensor {tensor}"),
            Self::Seal { share, name, tensors } => write!(
                out,
                "seal {name:?} of share {share}, which held {tensors} tensor(s) that have lost bytes"
            ),
        }
    }
}

/// The reason why nothing was dropped.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum DropError {
    /// The name means no object that has lost bytes.
    #[error(
        "{name:?} is no damaged tensor of this pool and no seal with one, and only those are dropped; \
         nothing was changed"
    )]
    NotDamaged {
        /// Name as given.
        name: String,
    },
    /// The version of a tensor that has lost bytes is one that only seals hold.
    #[error(
        "only seals hold the version of {name:?} that has lost bytes: name them, {seals}; nothing was changed"
    )]
    OnlySealed {
        /// Name as given.
        name: String,
        /// Names of the seals.
        seals: String,
    },
    /// The name has several meanings.
    #[error("{name:?} may be {meanings}: say which; nothing was changed")]
    Ambiguous {
        /// Name as given.
        name: String,
        /// Name of each meaning.
        meanings: String,
    },
}

/// Returns the objects of these names, all of which must have lost bytes. Each is there once.
pub(super) fn named(report: &CheckReport, names: &[DropName]) -> Result<Vec<Lost>, DropError> {
    let lost = all(report);
    let mut found: Vec<Lost> = Vec::new();
    for name in names {
        let mut meanings = name.meanings();
        meanings.retain(|meaning| lost.iter().any(|lost| meaning.is(lost)));
        let [meaning] = &meanings[..] else { return Err(refusal(report, name, &meanings)) };
        let meant = lost.iter().filter(|lost| meaning.is(lost) && !found.contains(lost));
        found.extend(meant.cloned().collect::<Vec<_>>());
    }
    Ok(found)
}

/// Returns all objects that can be dropped.
fn all(report: &CheckReport) -> Vec<Lost> {
    let mut all: Vec<Lost> = Vec::new();
    for tensor in report.damaged_tensors() {
        all.extend(tensor.current.then(|| Lost::Tensor(tensor.clone())));
        for seal in &tensor.seals {
            let known = all.iter_mut().find_map(|lost| match lost {
                Lost::Seal { share, name, tensors } if (*share, &*name) == (tensor.share, seal) => {
                    Some(tensors)
                }
                _ => None,
            });
            if let Some(tensors) = known {
                *tensors += 1;
            } else {
                all.push(Lost::Seal { share: tensor.share, name: seal.clone(), tensors: 1 });
            }
        }
    }
    all
}

fn refusal(report: &CheckReport, name: &DropName, meanings: &[DropName]) -> DropError {
    let list = |names: &[DropName]| {
        let names: Vec<String> = names.iter().map(DropName::to_string).collect();
        names.join(" or ")
    };
    if !meanings.is_empty() {
        return DropError::Ambiguous { name: name.to_string(), meanings: list(meanings) };
    }
    let sealed = report.damaged_tensors().find(|tensor| {
        let itself = Lost::Tensor((*tensor).clone());
        name.meanings().iter().any(|meaning| meaning.is(&itself))
    });
    match sealed {
        Some(tensor) => {
            let seals = list(&DropName::of(tensor));
            DropError::OnlySealed { name: name.to_string(), seals }
        }
        None => DropError::NotDamaged { name: name.to_string() },
    }
}
