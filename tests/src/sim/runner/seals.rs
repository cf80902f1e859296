//! Seals: what stood when they were made, whatever has become of the tensors.

use std::collections::{BTreeMap, BTreeSet};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Destination;
use tidelog_engine::pool::{Batch, SealError};
use tidelog_engine::schedule::Urgency;

use super::{Check, DURABLE, Runner, tensor, text, widened};
use crate::sim::commits::{Changes, SealChanges, Started};
use crate::sim::coverage::Under;
use crate::sim::model::{Content, Sealed};

/// Source of a seal's contents besides current versions.
enum Held {
    Nothing,
    /// Contents of another seal.
    BySeal(u8),
    /// Puts of its batch.
    ByBatch(Sealed),
}

/// The seals that there are, with what they hold and how long that is.
pub(in crate::sim) type FoundSeals = BTreeMap<u8, BTreeMap<(u16, bool), u64>>;

fn called(name: u8) -> String {
    format!("seal {name}")
}

fn id_of((id, durable): (u16, bool)) -> TensorId {
    tensor(id, durable)
}

fn key_of(id: TensorId) -> (u16, bool) {
    let durable = id.0 >= DURABLE;
    ((if durable { id.0 - DURABLE } else { id.0 }) as u16, durable)
}

impl Runner<'_> {
    pub(super) fn seal(
        &mut self,
        name: u8,
        tensors: (&[u8], &[u8]),
        dropped: Option<u8>,
        flight: bool,
    ) -> Check {
        if self.model.in_doubt.is_some() {
            return Ok(()); // which `commit_failed` has checked
        }
        let mut batch = self.pool()?.batch();
        let mut seals = SealChanges::new();
        let dropped = dropped.filter(|it| *it != name);
        // The names of both say whether what the one holds goes on to the other.
        let from = dropped.filter(|it| (name ^ it) & 1 == 1);
        let held = match from {
            Some(from) => Held::BySeal(from),
            None => Held::Nothing,
        };
        if let Some(sealed) = self.begin_seal(&mut batch, name, tensors, held)? {
            seals.insert(name, Some(sealed));
        }
        if let Some(dropped) = dropped {
            self.drop_in(&mut batch, dropped, &mut seals)?;
        }
        self.start_batch(batch, Changes::new(), seals, flight)
    }

    /// Puts tensors and seals them beside others in one commit: the seal holds what the commit
    /// puts.
    pub(super) fn put_and_seal(
        &mut self,
        name: u8,
        puts: &[(u8, Content, u8)],
        durable: &[u8],
        flight: bool,
    ) -> Check {
        if self.model.in_doubt.is_some() {
            return Ok(());
        }
        let (puts, _) = widened(puts, &[]);
        let (mut batch, changes) = self.batch(&puts, &[])?;
        let put = changes.iter().filter_map(|(id, change)| Some(((*id, true), (*change)?)));
        let put: Sealed = put.collect();
        let ids: Vec<u8> =
            put.keys().map(|(id, _)| *id as u8).chain(durable.iter().copied()).collect();
        let mut seals = SealChanges::new();
        if let Some(sealed) = self.begin_seal(&mut batch, name, (&[], &ids), Held::ByBatch(put))? {
            seals.insert(name, Some(sealed));
        }
        self.start_batch(batch, changes, seals, flight)
    }

    pub(super) fn give_up_seal(&mut self, name: u8, scratch: &[u8]) -> Check {
        let mut batch = self.pool()?.batch();
        self.begin_seal(&mut batch, name, (scratch, &[]), Held::Nothing)?;
        Ok(())
    }

    pub(super) fn drop_seal(&mut self, name: u8, flight: bool) -> Check {
        if self.model.in_doubt.is_some() {
            return Ok(());
        }
        let (mut batch, mut seals) = (self.pool()?.batch(), SealChanges::new());
        self.drop_in(&mut batch, name, &mut seals)?;
        self.start_batch(batch, Changes::new(), seals, flight)
    }

    pub(super) fn get_sealed(&mut self, name: u8, nth: u8) -> Check {
        self.process_completions()?;
        let Some(sealed) = self.model.seals.get(&name).filter(|it| !it.is_empty()) else {
            return Ok(());
        };
        let (&key, &content) =
            sealed.iter().nth(usize::from(nth) % sealed.len()).expect("one of them");
        self.read_sealed(name, key, content)
    }

    pub(in crate::sim) fn found_seals(&self) -> Result<FoundSeals, String> {
        let pool = self.pool()?;
        let seals = pool.seals().map_err(text)?.into_iter().map(|seal| {
            let number = seal.name.strip_prefix("seal ").and_then(|it| it.parse().ok());
            let tensors = pool.sealed_tensors(&seal.name).map_err(text)?.into_iter();
            let tensors = tensors.map(|it| (key_of(it.id), it.length.0)).collect();
            Ok((number.ok_or("a seal that nobody made")?, tensors))
        });
        seals.collect()
    }

    /// Every seal is there with what it holds, and no other.
    pub(super) fn check_seals(&mut self) -> Check {
        let seals = self.model.seals.clone();
        let lengths = |sealed: &Sealed| -> BTreeMap<(u16, bool), u64> {
            sealed.iter().map(|(key, content)| (*key, content.length.into())).collect()
        };
        let expected: BTreeMap<_, _> =
            seals.iter().map(|(name, sealed)| (*name, lengths(sealed))).collect();
        let found = self.found_seals()?;
        if found != expected {
            return Err(format!("seals are {found:?}, not {expected:?}"));
        }
        for (name, sealed) in &seals {
            for (&key, &content) in sealed {
                self.read_sealed(*name, key, content)?;
            }
        }
        Ok(())
    }

    /// The bytes of what a seal holds, if they can be read.
    pub(in crate::sim) fn sealed_bytes(
        &mut self,
        name: u8,
        key: (u16, bool),
    ) -> Result<Option<Vec<u8>>, String> {
        let length = self.found_seals()?.get(&name).and_then(|it| it.get(&key)).copied();
        let length = length.ok_or("it is not there")?;
        let memory = Destination::buffer(length as usize);
        let (seal, id) = (called(name), id_of(key));
        let read = self.pool()?.get_sealed(&seal, id, 0..length, memory, Urgency::Urgent, None);
        let ticket = read.map_err(text)?;
        let ended = ticket.wait();
        self.count_struck(Under::Get);
        Ok(ended.ok().and_then(|_| ticket.take_bytes()))
    }

    fn read_sealed(&mut self, name: u8, key: (u16, bool), content: Content) -> Check {
        let length = u64::from(content.length);
        let memory = Destination::buffer(length as usize);
        let (seal, id) = (called(name), id_of(key));
        let read = self.pool()?.get_sealed(&seal, id, 0..length, memory, Urgency::Urgent, None);
        let ticket = read.map_err(text)?;
        let outcome = ticket.wait();
        self.count_struck(Under::Get);
        if self.is_lost(&outcome) {
            self.lost_sealed.insert((key.0, key.1, content));
        }
        let what = format!("{key:?} of {seal}");
        self.compare(&what, None, content, &outcome, &ticket, &content.bytes())
    }

    /// Begins a seal of those of these tensors that are there, or that are `held`. `None` if that
    /// was refused, as it may be.
    fn begin_seal(
        &mut self,
        batch: &mut Batch,
        name: u8,
        (scratch, durable): (&[u8], &[u8]),
        held: Held,
    ) -> Result<Option<Sealed>, String> {
        self.process_completions()?;
        let is_own = matches!(held, Held::ByBatch(_));
        let (from, held) = match held {
            // What it is once the commits have ended that are under way is not known yet.
            Held::BySeal(from) if self.commits.is_empty() => {
                let held = self.model.seals.get(&from).cloned();
                (held.is_some().then_some(from), held.unwrap_or_default())
            }
            Held::ByBatch(put) => (None, put),
            Held::BySeal(_) | Held::Nothing => (None, Sealed::new()),
        };
        let scratch = scratch.iter().map(|id| (u16::from(*id), false));
        let durable = durable.iter().map(|id| (u16::from(*id), true));
        let is_there =
            |key: &(u16, bool)| held.contains_key(key) || self.model.standing(*key).is_some();
        let keys: BTreeSet<(u16, bool)> = scratch.chain(durable).filter(is_there).collect();
        let ids = keys.iter().map(|key| id_of(*key));
        let begun = match from {
            Some(from) => batch.seal_from(&called(name), &called(from), ids),
            None => batch.seal(&called(name), ids),
        };
        self.count_struck(Under::Commit);
        // Making room may have taken commits and writes on.
        self.process_completions()?;
        match begun {
            Ok(()) => {
                let sealed = |key: &(u16, bool)| {
                    let content = held.get(key).copied().or_else(|| self.model.standing(*key));
                    Ok((*key, content.ok_or("a seal of nothing")?))
                };
                keys.iter().map(sealed).collect::<Result<Sealed, String>>().map(Some)
            }
            Err(SealError::Unknown { .. })
                if keys
                    .iter()
                    .any(|key| !held.contains_key(key) && self.model.standing(*key).is_none()) =>
            {
                Ok(None)
            }
            // A put that has failed meanwhile is none.
            Err(SealError::Unknown { .. })
                if is_own && (self.allowed_errors.writes || self.is_down()) =>
            {
                Ok(None)
            }
            Err(SealError::PoolFull { needed, available, .. }) if needed > available => Ok(None),
            Err(SealError::IndexFull { needed, room, .. }) if needed > room => Ok(None),
            Err(SealError::Announce(_))
                if self.allowed_errors.any() || self.is_any_unreadable() || self.is_down() =>
            {
                Ok(None)
            }
            Err(error) => Err(format!("the seal was refused: {error}")),
        }
    }

    fn drop_in(&mut self, batch: &mut Batch, name: u8, seals: &mut SealChanges) -> Check {
        self.process_completions()?;
        let expected = self.seals_then().contains_key(&name);
        if batch.drop_seal(&called(name)).is_ok() != expected {
            return Err(format!("dropping seal {name} should answer {expected}"));
        }
        if expected {
            seals.insert(name, None);
        }
        Ok(())
    }

    fn start_batch(
        &mut self,
        batch: Batch,
        changes: Changes,
        seals: SealChanges,
        flight: bool,
    ) -> Check {
        if self.model.in_doubt.is_some() {
            return Ok(());
        }
        let commit = batch.start_commit().map_err(text)?;
        self.commits.push(Started { commit: commit.clone(), changes, seals });
        if !flight {
            // What it came to is seen where every commit's end is.
            drop(commit.wait());
            self.count_struck(Under::Commit);
        }
        Ok(())
    }
}
