//! The devices of a pool before and besides the data path: opening them, locked, and what opens the
//! path to all of them.

use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::path::PathBuf;

use super::absent::AbsentMember;
use super::error::{FormatError, OpenError};
use super::holder::find_holder;
use super::owner::{Ownership, enter};
use crate::layout::{Holder, Owner, SHARES_MAX};
use crate::path::{
    self, DeviceOpenError, Endurance, MemberDevice, MemberSource, OpenMode, PartialProvider,
    PathProvider, PathRequest,
};
use crate::schedule::{DrainError, Reactor};
use crate::units::{DeviceIndex, DeviceSet};

/// One device, locked.
pub(super) struct Member(Box<dyn MemberDevice>);

impl Deref for Member {
    type Target = dyn MemberDevice;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}

/// Access to the members of a pool.
#[derive(Clone, Debug)]
pub(super) struct MemberAccess {
    /// The shares that are locked.
    pub(super) shares: Range<u32>,
    pub(super) mode: OpenMode,
}

impl MemberAccess {
    /// Returns the access to use one share. A share of a block device may not claim it alone: other
    /// shares are other processes'.
    pub(super) fn of_share(share: u32, buffered: bool) -> Self {
        let mode = OpenMode { buffered, ..OpenMode::default() };
        Self { shares: share..share + 1, mode }
    }

    /// Returns the access to read one share while nobody writes it.
    pub(super) fn of_share_to_read(share: u32, buffered: bool) -> Self {
        Self { shares: share..share + 1, ..Self::to_look(buffered) }
    }

    /// Returns the access to the whole device, while nobody else has it.
    pub(super) fn alone(buffered: bool) -> Self {
        let mode = OpenMode { buffered, exclusive: true, ..OpenMode::default() };
        Self { shares: 0..SHARES_MAX, mode }
    }

    /// Returns the access to read while nobody writes any share; a share that somebody has open is
    /// then the error, and which one.
    pub(super) fn to_read(buffered: bool) -> Self {
        Self { shares: 0..SHARES_MAX, ..Self::to_look(buffered) }
    }

    /// Returns the access to read, whoever writes meanwhile.
    pub(super) fn to_look(buffered: bool) -> Self {
        let mode = OpenMode { buffered, read_only: true, ..OpenMode::default() };
        Self { shares: 0..0, mode }
    }
}

/// The reason why a device cannot become a member.
#[derive(Debug)]
pub(super) enum OpenMemberError {
    /// The share is held by another process (or another handle in this one).
    Held {
        path: PathBuf,
        share: u32,
        holder: Option<Holder>,
    },
    Lock {
        path: PathBuf,
        source: std::io::Error,
    },
    Device(DeviceOpenError),
    /// The device is owned by another host, which writes it.
    Owned {
        device: String,
        owner: Owner,
    },
    /// The device is reserved for a host that its owner block does not name.
    Reserved {
        device: String,
    },
}

impl From<OpenMemberError> for OpenError {
    fn from(error: OpenMemberError) -> Self {
        match error {
            OpenMemberError::Device(error) => Self::Device(error),
            OpenMemberError::Owned { device, owner } => {
                Self::OwnedElsewhere { device, owner: Some(owner) }
            }
            OpenMemberError::Reserved { device } => Self::Reserved { device },
            OpenMemberError::Held { path, share, holder } => {
                Self::ShareHeld { share, path, holder }
            }
            OpenMemberError::Lock { path, source } => {
                Self::System { what: format!("cannot lock {}", path.display()), source }
            }
        }
    }
}

impl From<OpenMemberError> for FormatError {
    fn from(error: OpenMemberError) -> Self {
        match error {
            OpenMemberError::Device(error) => Self::Device(error),
            OpenMemberError::Owned { device, owner } => Self::OwnedElsewhere { device, owner },
            OpenMemberError::Reserved { device } => Self::Reserved { device },
            OpenMemberError::Held { path, holder, .. } => Self::InUse { path, holder },
            OpenMemberError::Lock { path, source } => {
                Self::System { what: format!("cannot lock {}", path.display()), source }
            }
        }
    }
}

/// Devices of which some may be missing.
pub(super) struct PresentMembers {
    pub(super) members: Vec<Member>,
    /// Names that stand for nothing now.
    pub(super) unopened: Vec<(String, DeviceOpenError)>,
}

impl Member {
    /// Makes the stand-in for a device that is missing.
    pub(super) fn absent(absent: AbsentMember) -> Self {
        Self(Box::new(absent))
    }

    /// Opens a device that exists, and locks it. One that another host owns is opened for reading
    /// only.
    pub(super) fn open<Source: MemberSource>(
        source: &Source,
        place: usize,
        access: &MemberAccess,
    ) -> Result<Self, OpenMemberError> {
        let member = Self::open_whoever_owns_it(source, place, access)?;
        if access.mode.read_only {
            return Ok(member);
        }
        let device = member.name();
        match enter(&member) {
            Ok(Ownership::Free) => Ok(member),
            Ok(Ownership::Owned(owner)) => Err(OpenMemberError::Owned { device, owner }),
            Ok(Ownership::Reserved) => Err(OpenMemberError::Reserved { device }),
            Err(source) => {
                Err(OpenMemberError::Device(DeviceOpenError::Open { path: device.into(), source }))
            }
        }
    }

    /// Opens a member whichever host owns it.
    pub(super) fn open_whoever_owns_it<Source: MemberSource>(
        source: &Source,
        place: usize,
        access: &MemberAccess,
    ) -> Result<Self, OpenMemberError> {
        let open =
            |access: &MemberAccess| source.open_member(place, access.shares.clone(), access.mode);
        open(access).map(Self).map_err(|error| match error {
            path::MemberError::Device(error) => OpenMemberError::Device(error),
            path::MemberError::Lock { path, source } => OpenMemberError::Lock { path, source },
            path::MemberError::Locked { path, shares } => {
                let looked_at = open(&MemberAccess::to_look(true)).ok();
                let holder = looked_at.and_then(|member| find_holder(&*member, &shares));
                OpenMemberError::Held { path, share: shares.start, holder }
            }
        })
    }
}

/// The members of a pool, in stripe order once they have been put into it.
pub(super) struct Members(
    pub(super) Vec<Member>,
    /// True if operations never came back. Their devices may still do them: nobody else may have
    /// the locks, until this process ends.
    Cell<bool>,
    /// Places whose devices were removed; a stand-in is in each.
    DeviceSet,
);

impl Drop for Members {
    fn drop(&mut self) {
        if self.are_in_doubt() {
            std::mem::forget(std::mem::take(&mut self.0));
        }
    }
}

impl Members {
    pub(super) fn new(members: Vec<Member>) -> Self {
        Self::without(members, DeviceSet::default())
    }

    /// Makes the members of a pool from which the devices of these places were removed.
    pub(super) fn without(members: Vec<Member>, removed: DeviceSet) -> Self {
        Self(members, Cell::new(false), removed)
    }

    /// Notes how a reactor, or a data path, over these devices ended.
    pub(super) fn note(&self, ended: Result<(), DrainError>) -> Result<(), DrainError> {
        self.1.set(self.1.get() || ended.is_err());
        ended
    }

    /// Returns whether a device may still do what never came back from it.
    pub(super) fn are_in_doubt(&self) -> bool {
        self.1.get()
    }

    /// Opens all of these devices. Each may be named once.
    pub(super) fn open<Source: MemberSource>(
        sources: &[Source],
        access: &MemberAccess,
    ) -> Result<Vec<Member>, OpenError> {
        let PresentMembers { members, unopened } = Self::open_present(sources, access)?;
        match unopened.into_iter().next() {
            Some((_, error)) => Err(error.into()),
            None => Ok(members),
        }
    }

    /// Opens those of these devices that are there. Each may be named once.
    ///
    /// # Errors
    /// One is there and cannot be had.
    pub(super) fn open_present<Source: MemberSource>(
        sources: &[Source],
        access: &MemberAccess,
    ) -> Result<PresentMembers, OpenError> {
        if let Some((one, other)) = Source::find_twins(sources) {
            return Err(OpenError::NotOnePool(format!("{one} and {other} are the same device")));
        }
        let mut found = PresentMembers { members: Vec::new(), unopened: Vec::new() };
        for (place, source) in sources.iter().enumerate() {
            match Member::open(source, place, access) {
                Ok(member) => found.members.push(member),
                Err(OpenMemberError::Device(error)) if error.is_of_absence() => {
                    found.unopened.push((source.name(place), error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// Returns all members, each of which is at hand unless it is missing.
    pub(super) fn each(&self) -> Vec<Option<&Member>> {
        self.0.iter().map(|member| Some(member).filter(|it| !it.is_absent())).collect()
    }

    /// Returns all members but these, each of which is at hand unless it is missing.
    pub(super) fn each_but(&self, others: DeviceSet) -> Vec<Option<&Member>> {
        let is_wanted = |place: u8| !others.contains(DeviceIndex(place));
        (0..).zip(self.each()).map(|(place, it)| it.filter(|_| is_wanted(place))).collect()
    }

    /// Returns the members that are at hand, with their places.
    pub(super) fn present(&self) -> impl Iterator<Item = (u8, &Member)> {
        (0..).zip(&self.0).filter(|(_, member)| !member.is_absent())
    }

    /// Returns the places of the devices that are missing.
    pub(super) fn missing(&self) -> DeviceSet {
        self.absent().without(self.2)
    }

    /// Returns the places of the devices that are not there: they are missing or were removed.
    pub(super) fn absent(&self) -> DeviceSet {
        let absent = (0..).zip(&self.0).filter(|(_, member)| member.is_absent());
        absent.map(|(place, _)| DeviceIndex(place)).collect()
    }

    /// Returns whether several data paths to them may be open at once.
    pub(super) fn allow_several_paths(&self) -> bool {
        self.0.iter().all(|member| member.allows_several_paths())
    }

    /// Returns whether all of them are in this process's memory.
    pub(super) fn are_private(&self) -> bool {
        self.0.iter().all(|member| member.is_private())
    }

    /// Returns the provider of the data path to all members.
    pub(super) fn provider(
        &self,
        request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        let present: Vec<&dyn MemberDevice> = self.present().map(|(_, member)| &**member).collect();
        let provider = present[0].provider(&present, request)?;
        if present.len() == self.0.len() {
            return Ok(provider);
        }
        let place = |member: &Member| member.is_absent().then(|| member.name());
        let places = self.0.iter().map(place).collect();
        Ok(Box::new(PartialProvider { present: provider, places }))
    }

    /// Returns the provider of the best data path to all members, for the host's memory alone.
    pub(super) fn best_provider(
        &self,
        mode: OpenMode,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        self.provider(&PathRequest { mode, ..PathRequest::default() })
    }

    /// Returns the wear that each member reports.
    pub(super) fn endurance(&self) -> Vec<Result<Endurance, String>> {
        self.0.iter().map(|member| member.endurance()).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|member| member.name()).collect()
    }
}

/// A reactor over the members of a pool. However it is left, they learn how it ended.
pub(super) struct MembersReactor<'a> {
    members: &'a Members,
    /// Gone only while this is consumed.
    reactor: Option<Reactor>,
}

impl<'a> MembersReactor<'a> {
    pub(super) fn new(members: &'a Members, reactor: Reactor) -> Self {
        Self { members, reactor: Some(reactor) }
    }

    /// Ends the access.
    pub(super) fn close(mut self) -> Result<(), DrainError> {
        self.end()
    }

    /// The reactor, for whoever goes on with it and with the members.
    pub(super) fn into_reactor(mut self) -> Reactor {
        self.reactor.take().expect("it is there until it is consumed")
    }

    fn end(&mut self) -> Result<(), DrainError> {
        self.reactor.take().map_or(Ok(()), |reactor| self.members.note(reactor.close()))
    }
}

impl Deref for MembersReactor<'_> {
    type Target = Reactor;

    fn deref(&self) -> &Reactor {
        self.reactor.as_ref().expect("it is there until it is consumed")
    }
}

impl Drop for MembersReactor<'_> {
    fn drop(&mut self) {
        // Whoever wanted to know has closed it; the members know now.
        let _ = self.end();
    }
}
