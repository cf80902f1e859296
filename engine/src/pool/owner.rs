//! Ownership of namespaces that more than one host can reach: NVMe over a fabric. A host claims
//! them when it opens a pool and gives them back when it closes the last share of it. What another
//! host has claimed is refused, whatever is to be done with it, until that host gives it back or
//! somebody takes it over who knows that the host is gone.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::OpenError;
use super::format::random_id;
use super::members::{Member, MemberAccess, Members};
use crate::layout::{BLOCK_BYTES, OWNER_OFFSET, Owner, SHARES_MAX};
use crate::path::{MemberSource, OpenMode};

/// Time for which a new claim must persist before it counts. Two hosts that claim at once both see
/// the later one then: a host whose claim took longer than half of this to be written looks again.
const SETTLE: Duration = Duration::from_secs(2);

/// The host that owns a namespace; what only this host reaches has none.
pub(super) fn owner(member: &Member) -> io::Result<Option<Owner>> {
    if !member.is_remote() {
        return Ok(None);
    }
    Ok(read(member)?.filter(|owner| owner.owns))
}

/// Returns the owner, if it is another host than this one.
pub(super) fn other_owner(member: &Member) -> io::Result<Option<Owner>> {
    let Some(owner) = owner(member)? else { return Ok(None) };
    Ok((owner.host != this_host()?).then_some(owner))
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
    let is_new = |(_, claim): &(&Member, Claim)| claim.is_new;
    if claims.iter().any(is_new) {
        std::thread::sleep(SETTLE);
    }
    for (member, claim) in claims {
        let owner = read(member).ok().flatten();
        if owner.as_ref().is_none_or(|owner| owner.claim != claim.number) {
            return Err(OpenError::OwnedElsewhere { device: member.name(), owner });
        }
    }
    Ok(())
}

struct Claim {
    number: u128,
    /// True if the claim was not this host's before.
    is_new: bool,
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
        let number = random_id().map_err(io::Error::other)?;
        let generation = last.map_or(0, |owner| owner.generation) + 1;
        let owner =
            Owner { host: host.clone(), owns: true, generation, claim: number, since: now() };
        member.write(OWNER_OFFSET, &owner.encode(pool))?;
        if !is_new || begun.elapsed() < SETTLE / 2 {
            return Ok(Ok(Claim { number, is_new }));
        }
    }
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

/// Takes away from another host what it has not given back. That host must be gone: nothing keeps
/// it from writing. Returns who owned what.
///
/// # Errors
/// A device cannot be had, or is no pool's.
pub fn take_over<Source: MemberSource>(
    sources: &[Source],
) -> Result<Vec<(String, Owner)>, OpenError> {
    let access = MemberAccess { shares: 0..SHARES_MAX, mode: OpenMode::default() };
    let mut taken = Vec::new();
    for (place, source) in sources.iter().enumerate() {
        let member = Member::open_whoever_owns_it(source, place, &access)?;
        let failed = |source| OpenError::System {
            what: format!("cannot take over {}", member.name()),
            source,
        };
        let superblock = member
            .superblock()
            .map_err(|source| OpenError::Superblock { device: member.name(), source })?;
        let Some(owner) = read(&member).map_err(failed)?.filter(|owner| owner.owns) else {
            continue;
        };
        let left = Owner { owns: false, ..owner.clone() };
        member.write(OWNER_OFFSET, &left.encode(superblock.pool)).map_err(failed)?;
        taken.push((member.name(), owner));
    }
    Ok(taken)
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
