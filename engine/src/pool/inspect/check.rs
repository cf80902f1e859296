//! Verifying a pool: every structure, every copy of it, and every byte of every durable tensor.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU64;

use super::index::{CopyState, IndexView, read_index};
use super::view::has_protective_mbr;
use crate::layout::{Geometry, Superblock, TensorEntry, TensorId, TensorKey};
use crate::log::StripeMap;
use crate::memory::Destination;
use crate::path::{MemberSource, OpenMode};
use crate::pool::OpenError;
use crate::pool::arrangement::{Damaged, arrange};
use crate::pool::events::{OlderCopy, ShareOnDevices};
use crate::pool::media::MetadataIo;
use crate::pool::members::{Member, MemberAccess, Members, MembersReactor};
use crate::pool::pieces::{self, PieceGroup};
use crate::pool::start;
use crate::pool::superblock_copies::{CopyFault, DamagedCopy};
use crate::schedule::{Finish, Reactor, ReactorOptions, Ticket, Transfer, Urgency};
use crate::units::ByteCount;

/// Tensor bytes in one read, at least one stripe unit.
const WINDOW_BYTES: u64 = 8 << 20;
/// Reads in flight.
const WINDOWS_IN_FLIGHT: usize = 4;

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// One of a device's two superblocks.
    Superblock {
        /// The device.
        device: String,
        /// `A` or `B`.
        copy: char,
        /// Whose superblock stands there, if it is another device's.
        other: Option<String>,
    },
    /// A device on which something else was made, while a superblock stands.
    OverwrittenStart {
        /// The device.
        device: String,
        /// What stands there, and where.
        found: String,
    },
    /// A block device's protective MBR.
    ProtectiveMbr {
        /// The device.
        device: String,
    },
    /// One of two copies of a share's index.
    IndexCopy {
        /// The share.
        share: u32,
        /// The device.
        device: String,
        /// What is wrong with it.
        why: String,
    },
    /// A share's index, in every copy: none of its tensors can be found.
    Index {
        /// The share.
        share: u32,
        /// What is wrong with it.
        why: String,
    },
    /// A device that is an older copy of itself.
    OlderCopy {
        /// The share that was used without it.
        share: u32,
        /// The device.
        device: String,
        /// How that shows.
        why: String,
    },
    /// A share's holder block on a device, with its count of openings.
    Holder {
        /// The share.
        share: u32,
        /// The device.
        device: String,
    },
    /// A tensor.
    Tensor(DamagedTensor),
}

/// A durable tensor of which bytes are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedTensor {
    /// The share it belongs to.
    pub share: u32,
    /// Its id.
    pub id: TensorId,
    /// Its name, if it was put by one.
    pub name: Option<String>,
    /// The seals that hold this version of it.
    pub seals: Vec<String>,
    /// Whether it is what stands under its id; if not, only seals hold it.
    pub current: bool,
    /// Its length.
    pub length: ByteCount,
    /// How many of its bytes lie in pieces that cannot be read or are not what was written.
    pub lost: ByteCount,
    /// What is wrong with the first of them, and where.
    pub why: String,
}

/// What the next open will write, though nothing is damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// A first superblock that is older than the second, which is written before it.
    Superblock {
        /// The device.
        device: String,
    },
    /// A copy of a share's index that lacks what was written last, as after a process that was
    /// killed.
    Copy {
        /// The share.
        share: u32,
        /// The device.
        device: String,
        /// What it lacks.
        what: String,
    },
    /// An index that fits no checkpoint as it is. Versions before its growth took commits all the
    /// same.
    Index {
        /// The share.
        share: u32,
        /// What its tensors take.
        needed: ByteCount,
        /// What there is room for.
        room: ByteCount,
    },
}

impl fmt::Display for Unsettled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { device } => write!(
                out,
                "{device}: superblock copy A is older than copy B, as after a process that was killed; \
                 the next open writes it"
            ),
            Self::Copy { share, device, what } => {
                write!(out, "{device}: the index of share {share} in this copy: {what}")
            }
            Self::Index { share, needed, room } => write!(
                out,
                "the index of share {share} needs {needed} and its place has {room}; \
                 the next open has it go on in free segments, if there are any"
            ),
        }
    }
}

impl Damage {
    /// Whether a good copy is left from which this one can be written again.
    pub fn is_repairable(&self) -> bool {
        !matches!(
            self,
            Self::OverwrittenStart { .. }
                | Self::Index { .. }
                | Self::OlderCopy { .. }
                | Self::Tensor(_)
        )
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock { device, copy, other: None } => {
                write!(out, "{device}: superblock copy {copy} is damaged or missing")
            }
            Self::Superblock { device, copy, other: Some(whose) } => {
                write!(out, "{device}: superblock copy {copy} is another device's ({whose})")
            }
            Self::OverwrittenStart { device, found } => write!(
                out,
                "{device}: it was given to something else, it has {found}; a superblock is still the pool's"
            ),
            Self::ProtectiveMbr { device } => {
                write!(out, "{device}: the protective MBR is damaged or missing")
            }
            Self::IndexCopy { share, device, why } => {
                write!(out, "{device}: the index of share {share} is damaged in this copy: {why}")
            }
            Self::Index { share, why } => {
                write!(out, "the index of share {share} cannot be read from any copy: {why}")
            }
            Self::OlderCopy { share, device, why } => write!(
                out,
                "{device}: an older copy of itself, share {share} was used since without it: {why}"
            ),
            Self::Holder { share, device } => write!(
                out,
                "{device}: the holder block of share {share} is damaged or missing, with its count of openings"
            ),
            Self::Tensor(tensor) => write!(out, "{tensor}"),
        }
    }
}

impl fmt::Display for DamagedTensor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { share, id, name, seals, current, length, lost, why } = self;
        let key = TensorKey { id: *id, name: name.as_deref().map(Into::into) };
        write!(out, "{key}")?;
        if !seals.is_empty() {
            let held = if *current { "which seals hold, too" } else { "as seals hold it" };
            write!(out, ", {held} ({}),", seals.join(", "))?;
        }
        write!(out, " of share {share}: {lost} of {length} are lost; the first: {why}")
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// Tensor bytes that have been read and compared.
    pub done: ByteCount,
    /// All there are.
    pub total: ByteCount,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// The pool.
    pub pool: u128,
    /// Its geometry.
    pub geometry: Geometry,
    /// Its devices' names, in stripe order.
    pub devices: Vec<String>,
    /// Everything that is not as it was written.
    pub damage: Vec<Damage>,
    /// What was being written when a process ended, which the next open settles: no damage.
    pub unsettled: Vec<Unsettled>,
    /// Durable tensors that were verified, and versions that seals alone hold.
    pub tensors: u64,
    /// How many of these seals alone hold.
    pub sealed: u64,
    /// Their bytes.
    pub bytes: ByteCount,
    /// The data path that read them.
    pub path: String,
}

impl CheckReport {
    /// The shares whose index cannot be read: none of their tensors was verified.
    pub fn unread_shares(&self) -> impl Iterator<Item = u32> {
        self.damage.iter().filter_map(|damage| match damage {
            Damage::Index { share, .. } => Some(*share),
            _ => None,
        })
    }

    /// The tensors of which bytes are lost.
    pub fn damaged_tensors(&self) -> impl Iterator<Item = &DamagedTensor> {
        self.damage.iter().filter_map(|damage| match damage {
            Damage::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    }
}

/// Verifies the whole pool, reading only. Nobody can open a share of it meanwhile, and a share that
/// is open is an error. With `buffered` the data goes through the page cache, which may hide what
/// the medium lost; without it a file system that has no `O_DIRECT` is refused.
pub fn check<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, OpenError> {
    check_members(Members::open(sources, &MemberAccess::to_read(buffered))?, buffered, progress)
}

fn check_members(
    members: Vec<Member>,
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, OpenError> {
    let (members, superblocks, damaged) = arrange(members)?;
    let superblock = superblocks.first().ok_or(OpenError::Devices(0))?;
    let Superblock { pool, geometry, .. } = *superblock;
    let reactor = reactor_to_read(&members, &geometry, buffered)?;
    let names = members.names();
    let mut damage = damage_of_devices(&members, &superblocks, &damaged);
    let media = MetadataIo { reactor: &reactor, written: &AtomicU64::new(0) };
    let behind = damaged.iter().filter(|(_, copy)| matches!(copy.why, CopyFault::Behind));
    let behind = behind.map(|(place, _)| names[usize::from(*place)].clone());
    let mut unsettled: Vec<Unsettled> =
        behind.map(|device| Unsettled::Superblock { device }).collect();
    let mut tensors = Vec::new();
    for share in 0..geometry.shares {
        let each = members.each();
        let devices = ShareOnDevices { superblock, members: &each, share };
        let counts = damage_of_count(&members, devices);
        // What is overwritten has no damage of its blocks besides.
        let is_overwritten = |name: &String| {
            damage
                .iter()
                .any(|it| matches!(it, Damage::OverwrittenStart { device, .. } if device == name))
        };
        let counts = counts
            .into_iter()
            .filter(|it| !matches!(it, Damage::Holder { device, .. } if is_overwritten(device)));
        damage.extend(counts.collect::<Vec<_>>());
        match read_index(superblock, share, devices.mark(), &media) {
            Err(why) => damage.push(Damage::Index { share, why }),
            Ok(index) => {
                tensors.extend(Read::all(share, &index));
                for copy in index.copies {
                    let device = names[usize::from(copy.device)].clone();
                    match copy.state {
                        CopyState::Whole => (),
                        CopyState::Behind(what) => {
                            unsettled.push(Unsettled::Copy { share, device, what });
                        }
                        CopyState::Damaged(why) => {
                            damage.push(Damage::IndexCopy { share, device, why });
                        }
                    }
                }
                let (needed, room) = (index.usage.live, index.usage.room);
                // An index that is in segments already gets those of its other slot when the pool
                // is opened.
                if needed > room && index.usage.segments == 0 {
                    unsettled.push(Unsettled::Index { share, needed, room });
                }
            }
        }
    }
    let bytes = ByteCount(tensors.iter().map(Read::bytes).sum());
    let sealed = tensors.iter().filter(|read| !read.current).count() as u64;
    let reader = Reader { reactor: &reactor, stripes: StripeMap::new(&geometry), bytes };
    damage.extend(reader.damaged(&tensors, progress).into_iter().map(Damage::Tensor));
    Ok(CheckReport {
        pool,
        geometry,
        devices: names,
        damage,
        unsettled,
        tensors: tensors.len() as u64,
        sealed,
        bytes,
        path: reactor.capabilities().kind.to_string(),
    })
}

/// A reactor to read a pool's metadata and tensors.
pub(super) fn reactor_to_read<'a>(
    members: &'a Members,
    geometry: &Geometry,
    buffered: bool,
) -> Result<MembersReactor<'a>, OpenError> {
    let mode = OpenMode { buffered, read_only: true, ..OpenMode::default() };
    // Two windows; a small pool never fills them.
    let pool_bytes = geometry.device_bytes * members.0.len() as u64;
    let staging = (2 * WINDOW_BYTES).min(pool_bytes).max(2 * geometry.stripe_unit);
    let options = ReactorOptions {
        chunk: ByteCount(geometry.stripe_unit),
        staging: ByteCount(staging),
        huge_pages: false,
        ..ReactorOptions::default()
    };
    let reactor = Reactor::start(members.best_provider(mode)?, options)?;
    Ok(MembersReactor::new(members, reactor))
}

fn damage_of_devices(
    members: &Members,
    superblocks: &[Superblock],
    damaged: &[Damaged],
) -> Vec<Damage> {
    let mut damage = Vec::new();
    for ((place, member), superblock) in (0..).zip(&members.0).zip(superblocks) {
        let device = || member.name();
        let overwritten = start::overwritten(member, superblock);
        let is_overwritten = overwritten.is_some();
        damage
            .extend(overwritten.map(|found| Damage::OverwrittenStart { device: device(), found }));
        // What is overwritten has no damage besides.
        let copies = damaged.iter().filter(|(at, _)| *at == place).map(|(_, copy)| copy);
        let copies = copies.filter(|_| !is_overwritten);
        damage.extend(copies.filter_map(|DamagedCopy { copy, why }| {
            let other = match why {
                CopyFault::Damaged => None,
                CopyFault::Foreign(other) => Some(other.whose()),
                CopyFault::Behind => return None,
            };
            Some(Damage::Superblock { device: device(), copy: *copy, other })
        }));
        if !is_overwritten && member.is_block_device() && !has_protective_mbr(member) {
            damage.push(Damage::ProtectiveMbr { device: device() });
        }
    }
    damage
}

/// What is wrong with the event counts of a share.
fn damage_of_count(members: &Members, devices: ShareOnDevices<'_>) -> Vec<Damage> {
    let share = devices.share;
    let events = devices.events();
    let is_damaged = |place: &usize| events[*place].is_none();
    let damaged = (0..members.0.len()).filter(is_damaged);
    let damaged = damaged.map(|place| Damage::Holder { share, device: members.0[place].name() });
    let older = devices.older().into_iter();
    let older = older.map(|OlderCopy { device, why }| Damage::OlderCopy { share, device, why });
    damaged.chain(older).collect()
}

/// What is read of a share.
pub(super) struct Read {
    share: u32,
    entry: TensorEntry,
    /// The seals that hold it.
    seals: Vec<String>,
    /// Whether it stands under its id.
    current: bool,
}

impl Read {
    pub(super) fn all(share: u32, index: &IndexView) -> impl Iterator<Item = Self> {
        let readable = index.readable();
        readable.map(move |(entry, seals, current)| {
            let entry = entry.clone();
            Self { share, entry, seals, current }
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.entry.length
    }
}

/// Reads tensors back and compares them with their checksums.
pub(super) struct Reader<'a> {
    pub(super) reactor: &'a Reactor,
    pub(super) stripes: StripeMap,
    /// Of all tensors.
    pub(super) bytes: ByteCount,
}

/// Some neighbouring pieces of one tensor, on their way.
struct Window {
    tensor: usize,
    group: PieceGroup,
    ticket: Option<Ticket>,
}

impl Reader<'_> {
    pub(super) fn damaged(
        &self,
        tensors: &[Read],
        progress: &mut dyn FnMut(CheckProgress),
    ) -> Vec<DamagedTensor> {
        let mut losses = vec![(0_u64, None::<String>); tensors.len()];
        let mut done = 0;
        let mut complete = |window: Window| {
            let (lost, why) = self.end(&window);
            let (bytes, first) = &mut losses[window.tensor];
            *bytes += lost;
            *first = first.take().or(why);
            done += window.group.bytes();
            progress(CheckProgress { done: ByteCount(done), total: self.bytes });
        };
        let mut in_flight: VecDeque<Window> = VecDeque::new();
        for (index, Read { entry: tensor, .. }) in tensors.iter().enumerate() {
            let whole = pieces::of_range(&self.stripes, tensor, 0..tensor.length, true);
            for group in pieces::groups(whole, WINDOW_BYTES) {
                if in_flight.len() == WINDOWS_IN_FLIGHT {
                    in_flight.pop_front().into_iter().for_each(&mut complete);
                }
                in_flight.push_back(self.start(index, group));
            }
        }
        in_flight.into_iter().for_each(&mut complete);
        let lost = tensors.iter().zip(losses).filter_map(|(read, (lost, why))| {
            let Read { share, entry: tensor, seals, current } = read;
            Some(DamagedTensor {
                share: *share,
                id: tensor.id,
                name: tensor.name.as_deref().map(str::to_owned),
                seals: seals.clone(),
                current: *current,
                length: ByteCount(tensor.length),
                lost: ByteCount(lost),
                why: why?,
            })
        });
        lost.collect()
    }

    fn start(&self, tensor: usize, group: PieceGroup) -> Window {
        // What cannot even be submitted shows again, piece by piece, at the window's end.
        let ticket = self.submit(&group).ok();
        Window { tensor, group, ticket }
    }

    /// Bytes of the window that are lost, and why the first of them are.
    fn end(&self, window: &Window) -> (u64, Option<String>) {
        if window.ticket.as_ref().is_some_and(|ticket| ticket.wait().is_ok()) {
            return (0, None);
        }
        let (mut lost, mut first) = (0, None);
        for piece in window.group.apart() {
            let failure = match self.submit(&piece) {
                Ok(ticket) => ticket.wait().err().map(|error| error.to_string()),
                Err(why) => Some(why),
            };
            if let Some(why) = failure {
                lost += piece.bytes();
                first.get_or_insert(format!("at byte {} of the tensor, {why}", piece.range.start));
            }
        }
        (lost, first)
    }

    fn submit(&self, group: &PieceGroup) -> Result<Ticket, String> {
        let destination = Destination::buffer(group.bytes() as usize);
        let read = Transfer::Read { destination, pieces: group.pieces.clone() };
        let ticket = self.reactor.submit(read, Urgency::Ahead, None, Finish::nothing());
        ticket.map_err(|error| error.to_string())
    }
}
