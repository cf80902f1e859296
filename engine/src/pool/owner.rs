//! Ownership of namespaces that more than one host can reach: NVMe over a fabric. A host claims
//! them when it opens a pool and gives them back when it closes the last share of it. What another
//! host has claimed is refused, whatever is to be done with it, until that host gives it back or
//! this one takes it over, at the word of somebody who knows that the host is gone.
//!
//! Where a namespace can be reserved it refuses the writes of all hosts but one: the last that had
//! it open to write. That stays so when the pool is closed, as a host that was taken over may come
//! back at any time; what was given back may be taken by the next host.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::{FormatError, OpenError};
use super::format::random_id;
use super::members::{Member, MemberAccess, Members};
use crate::layout::{BLOCK_BYTES, OWNER_OFFSET, Owner, SHARES_MAX};
use crate::path::{DeviceOpenError, Fence, FenceKey, MemberSource, OpenMode};

/// Time for which a new claim must persist before it counts, where nothing is reserved. Two hosts
/// that claim at once both see the later one then: a host whose claim took longer than half of this
/// to be written looks again.
const SETTLE: Duration = Duration::from_secs(2);

/// The host that owns a namespace; what only this host reaches has none.
pub(super) fn owner(member: &Member) -> io::Result<Option<Owner>> {
    if !member.is_remote() {
        return Ok(None);
    }
    Ok(read(member)?.filter(|owner| owner.owns))
}

/// Refuses members that another host may write.
pub(super) fn refuse_other(members: &Members) -> Result<(), OpenError> {
    for member in &members.0 {
        let owner = other_owner(member).map_err(|source| OpenError::System {
            what: format!("cannot read which host owns {}", member.name()),
            source,
        })?;
        if owner.is_some() {
            return Err(OpenError::OwnedElsewhere { device: member.name(), owner });
        }
    }
    Ok(())
}

/// Returns the owner, if it is another host than this one.
fn other_owner(member: &Member) -> io::Result<Option<Owner>> {
    let Some(owner) = owner(member)? else { return Ok(None) };
    Ok((owner.host != this_host()?).then_some(owner))
}

/// Right to write a member.
pub(super) enum Ownership {
    Free,
    /// Owned by another host.
    Owned(Owner),
    /// Reserved for a host that the owner block does not name.
    Reserved,
}

/// Refuses a member that another host owns. One of a pool is reserved for this host, where it can
/// be reserved.
pub(super) fn enter(member: &Member) -> io::Result<Ownership> {
    if !member.is_remote() {
        return Ok(Ownership::Free);
    }
    if let Some(owner) = other_owner(member)? {
        return Ok(Ownership::Owned(owner));
    }
    let Ok(superblock) = member.superblock() else { return Ok(Ownership::Free) };
    Ok(match reserve(member, superblock.pool)? {
        Fence::Elsewhere => Ownership::Reserved,
        Fence::Ours | Fence::Unsupported => Ownership::Free,
    })
}

/// Reserves a member for this host, where it can be reserved, in place of one that gave it back;
/// and notes it in the owner block, so that the next host knows whose reservation it is.
fn reserve(member: &Member, pool: u128) -> io::Result<Fence> {
    let (host, last) = (this_host()?, read(member)?);
    let theirs = last.as_ref().filter(|owner| owner.host != host);
    let theirs = theirs.map(|owner| FenceKey::of_host(&owner.host));
    let fence = member.fence(FenceKey::of_host(&host), theirs)?;
    let is_noted = last.as_ref().is_some_and(|owner| owner.host == host && owner.fenced);
    if fence == Fence::Ours && !is_noted {
        let owns = last.as_ref().is_some_and(|owner| owner.owns);
        let owner = Owner { owns, ..new_owner(&host, last.as_ref(), true)? };
        member.write(OWNER_OFFSET, &owner.encode(pool))?;
    }
    Ok(fence)
}

/// Reserves devices that are to be formatted, as they are written next.
pub(super) fn reserve_new<'a>(
    members: impl IntoIterator<Item = &'a Member>,
) -> Result<(), FormatError> {
    for member in members.into_iter().filter(|member| member.is_remote()) {
        let device = member.name();
        let fence = reserve(member, 0)
            .map_err(|source| DeviceOpenError::Open { path: device.clone().into(), source })?;
        if fence == Fence::Elsewhere {
            return Err(FormatError::Reserved { device });
        }
    }
    Ok(())
}

/// Claims those members that other hosts reach.
pub(super) fn claim(members: &Members, pool: u128) -> Result<(), OpenError> {
    let mut claims = Vec::new();
    for member in members.0.iter().filter(|member| member.is_remote()) {
        let failed = |source| OpenError::System {
            what: format!("cannot make this host the owner of {}", member.name()),
            source,
        };
        claims.push((member, claim_one(member, pool).map_err(failed)??));
    }
    if claims.iter().any(|(_, claim)| claim.must_settle) {
        std::thread::sleep(SETTLE);
    }
    for (member, claim) in claims {
        let owner = read(member).ok().flatten();
        // Another process of this host may have claimed it meanwhile.
        let is_ours = |owner: &Owner| owner.claim == claim.number || owner.host == claim.host;
        if !owner.as_ref().is_some_and(is_ours) {
            return Err(OpenError::OwnedElsewhere { device: member.name(), owner });
        }
    }
    Ok(())
}

struct Claim {
    host: String,
    number: u128,
    /// True if the namespace was not this host's before, and is not reserved.
    must_settle: bool,
}

fn claim_one(member: &Member, pool: u128) -> io::Result<Result<Claim, OpenError>> {
    let host = this_host()?;
    loop {
        let begun = Instant::now();
        let last = read(member)?;
        let is_new = match &last {
            Some(owner) if owner.owns && owner.host != host => {
                return Ok(Err(OpenError::OwnedElsewhere { device: member.name(), owner: last }));
            }
            Some(owner) => !owner.owns,
            None => true,
        };
        let fenced = match member.fence(FenceKey::of_host(&host), None)? {
            Fence::Ours => true,
            Fence::Unsupported => false,
            Fence::Elsewhere => {
                return Ok(Err(OpenError::Reserved { device: member.name() }));
            }
        };
        let owner = new_owner(&host, last.as_ref(), fenced)?;
        member.write(OWNER_OFFSET, &owner.encode(pool))?;
        let must_settle = is_new && !fenced;
        if !must_settle || begun.elapsed() < SETTLE / 2 {
            return Ok(Ok(Claim { host, number: owner.claim, must_settle }));
        }
    }
}

/// Makes the owner block of a host that owns a member from now on.
fn new_owner(host: &str, last: Option<&Owner>, fenced: bool) -> io::Result<Owner> {
    let claim = random_id().map_err(io::Error::other)?;
    let generation = last.map_or(0, |owner| owner.generation) + 1;
    Ok(Owner { host: host.into(), owns: true, generation, claim, since: now(), fenced })
}

/// Gives back what this host owns, if no other process here has a share open, and nothing of this
/// one's is left that a device may still do.
pub(super) fn release(members: &Members, pool: u128) {
    if members.are_in_doubt() {
        return;
    }
    for member in members.0.iter().filter(|member| member.is_remote()) {
        let (Ok(Some(owner)), Ok(host)) = (read(member), this_host()) else { continue };
        if owner.owns && owner.host == host && member.is_last_user(0..SHARES_MAX) {
            // Where this fails, the next host has to take the namespace over.
            let _ = member.write(OWNER_OFFSET, &Owner { owns: false, ..owner }.encode(pool));
        }
    }
}

/// Gives back this host's reservations of devices that are no pool's any more.
pub(super) fn unfence(members: &Members) {
    let Ok(host) = this_host() else { return };
    let remote = members.0.iter().filter(|member| member.is_remote());
    remote.for_each(|member| member.unfence(FenceKey::of_host(&host)));
}

/// A namespace that was taken from another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// The device.
    pub device: String,
    /// The host that owned it.
    pub from: Owner,
    /// True if the namespace refuses what that host still writes. Else nothing keeps it from
    /// writing, and it must be gone.
    pub fenced: bool,
}

/// Makes this host the owner of what another one has not given back. Returns what was taken.
///
/// # Errors
/// A device cannot be had, or is no pool's, or is reserved for a host that it does not name.
pub fn take_over<Source: MemberSource>(sources: &[Source]) -> Result<Vec<TakenOver>, OpenError> {
    let access = MemberAccess { shares: 0..SHARES_MAX, mode: OpenMode::default() };
    let mut taken = Vec::new();
    for (place, source) in sources.iter().enumerate() {
        let member = Member::open_whoever_owns_it(source, place, &access)?;
        if member.is_remote() {
            taken.extend(take_over_one(&member)?);
        }
    }
    Ok(taken)
}

fn take_over_one(member: &Member) -> Result<Option<TakenOver>, OpenError> {
    let device = member.name();
    let failed = |source| OpenError::System { what: format!("cannot take over {device}"), source };
    let superblock = member
        .superblock()
        .map_err(|source| OpenError::Superblock { device: device.clone(), source })?;
    let host = this_host().map_err(failed)?;
    let last = read(member).map_err(failed)?;
    let other = last.filter(|owner| owner.owns && owner.host != host);
    let Some(from) = other else { return Ok(None) };
    let (ours, theirs) = (FenceKey::of_host(&host), FenceKey::of_host(&from.host));
    let fenced = match member.fence(ours, Some(theirs)).map_err(failed)? {
        Fence::Ours => true,
        Fence::Unsupported => false,
        Fence::Elsewhere => return Err(OpenError::Reserved { device }),
    };
    let owner = new_owner(&host, Some(&from), fenced).map_err(failed)?;
    member.write(OWNER_OFFSET, &owner.encode(superblock.pool)).map_err(failed)?;
    Ok(Some(TakenOver { device, from, fenced }))
}

fn read(member: &Member) -> io::Result<Option<Owner>> {
    Ok(Owner::decode(&member.read(OWNER_OFFSET, BLOCK_BYTES as usize)?))
}

/// Returns this host's name: by its user, as a host of NVMe fabrics, or else as a machine.
fn this_host() -> io::Result<String> {
    if let Ok(given) = std::env::var("TIDELOG_HOST_ID") {
        return Ok(given);
    }
    let files = ["/etc/nvme/hostid", "/etc/machine-id"];
    let mut names = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let name = names.find_map(|name| Some(name.trim().to_owned()).filter(|name| !name.is_empty()));
    name.ok_or_else(|| {
        io::Error::other(
            "this host has no name that another one could read: put a UUID into /etc/nvme/hostid, or \
             set TIDELOG_HOST_ID",
        )
    })
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
