"""Checkpoints by reference: state that is in the log already becomes a checkpoint without a copy.

A checkpoint is a seal: a set of versions in the log under a name, by one commit. What is out and
unchanged is named; what has changed since it was last out is written once, and leaves without another
write. A checkpoint lives as long as its pool: `Checkpoints.export` writes a file of its own.
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import os
import re
import threading
from types import TracebackType
from typing import Any, Protocol

import torch

from tidelog import _devices, _errors
from tidelog._whole import whole
from tidelog.abi._native import Session
from tidelog.abi._seals import Pool, Seal, Tickets
from tidelog.checkpoints import _safetensors
from tidelog.checkpoints._manifest import Writer
from tidelog.checkpoints._saved import MANIFEST, Parts, Saved
from tidelog.dispatch._access import Access
from tidelog.dispatch._performer import Performer
from tidelog.memory import _record
from tidelog.memory._record import Storage, data_ptr, nbytes, run_updates
from tidelog.native._module import Ledger, Record
from tidelog.output._figures import StrPath

# Puts in flight.
_IN_FLIGHT = 16

_serials = itertools.count()
# The manifest of whichever checkpoint is being made stands under one name.
_manifests = threading.Lock()


class Block(Protocol):
    """Block as writing a checkpoint needs it."""

    ledger: Ledger
    session: Session
    performer: Performer
    access: Access


@whole
def write(tide: Block, name: str, state: object) -> None:
    """Writes the state of a program as a checkpoint of its block's pool."""
    with contextlib.closing(Pool.of_session(tide.session)) as pool:
        writer, copied = Writer(), _Copied(tide, pool)
        try:
            content = writer.manifest(state, lambda: copied.ids_of(writer.storages))
            copied.seal(name, content)
        except BaseException:
            copied.give_up()
            raise
        finally:
            copied.forget()


@whole
def hold(tide: Block, pool: Pool, name: str, storages: list[Storage]) -> list[str]:
    """Seals what storages of a block have now; returns their ids. It is no checkpoint, but one can be
    made of it."""
    copied = _Copied(tide, pool)
    try:
        copied.ids_of(storages)
        copied.hold(name)
        return copied.ids
    except BaseException:
        copied.give_up()
        raise
    finally:
        copied.forget()


def seal(pool: Pool, name: str, manifest: bytes, ids: list[str], staged: str | None = None) -> None:
    """Makes a checkpoint of what is held as `staged`, which is let go by the same commit. On any thread."""
    puts = _Puts(pool)
    puts.ids = ids
    try:
        puts.seal(name, manifest, staged)
    finally:
        puts.forget()


class _Puts:
    """Puts for one checkpoint: scratch tensors, whose names go once the seal holds them."""

    def __init__(self, pool: Pool) -> None:
        self.ids: list[str] = []
        self._pool = pool
        self._prefix = f"checkpoint {next(_serials)} of process {os.getpid()}"
        self._names: list[str] = []
        self._tickets: Tickets = []
        self._kept: list[object] = []

    def keep(self, storage: torch.UntypedStorage) -> str:
        """Begins to write a storage in host memory; returns the id."""
        name, length = f"{self._prefix}, {len(self._names)}", nbytes(storage)
        self._kept.append(storage)
        self._put(name, data_ptr(storage) if length else 0, length)
        if len(self._tickets) >= _IN_FLIGHT:
            self._settle()
        return self._pool.named(name)

    def hold(self, name: str) -> None:
        """Holds all of it under a name, if there is anything."""
        self._settle()
        if self.ids:
            with self._pool.batch() as batch:
                self._pool.seal(batch, name, self.ids)

    def seal(self, name: str, manifest: bytes, staged: str | None = None) -> None:
        """Holds all of it under a name, and this manifest; and what another seal holds, which ends."""
        memory = torch.frombuffer(bytearray(manifest), dtype=torch.uint8).untyped_storage()
        with _manifests:
            self._kept.append(memory)
            try:
                self._put(MANIFEST, data_ptr(memory), len(manifest))
                self._settle()
                ids = [*self.ids, self._pool.named(MANIFEST)]
                with self._pool.batch() as batch:
                    if staged is None:
                        self._pool.seal(batch, name, ids)
                    else:
                        self._pool.seal_from(batch, name, staged, ids)
                        self._pool.drop_seal(batch, staged)
            finally:
                self.forget()

    def forget(self) -> None:
        """Forgets the names of puts, also where a put failed."""
        try:
            self._settle()
        finally:
            while self._names:
                with contextlib.suppress(_errors.PoolError):  # what failed left no tensor
                    self._pool.delete(self._names.pop())

    def _put(self, name: str, address: int, length: int) -> None:
        self._names.append(name)
        self._pool.put(self._tickets, name, address, length)

    def _settle(self) -> None:
        self._pool.wait_all(self._tickets)
        self._kept.clear()


class _Copied(_Puts):
    """The storages of a block in the log: those that are there, and those that are put there."""

    def __init__(self, tide: Block, pool: Pool) -> None:
        super().__init__(pool)
        self._tide = tide
        self._clean: list[Record] = []  # of the storages that this has written, and that have a copy since

    def ids_of(self, storages: list[Storage]) -> list[str]:
        """The ids of these storages' bytes. What has no copy and could leave is written as its copy: it
        is clean then. The rest (what is pinned, a GPU's, unknown to the block) is put for this checkpoint."""
        performer = self._tide.performer
        run_updates(storages)
        self._tide.session.settle()
        records = [self._tide.ledger.record_of(storage) for storage in storages]
        # What is on its way out has its copy once it is there: nothing is written a second time.
        performer.await_leaving([record for record in records if record is not None])
        described = [self._describe(record, storage) for record, storage in zip(records, storages, strict=True)]
        found = self._copies(described, write=False)
        missing = [each for each in described if each[0] >= 0 and each[0] not in found]
        found.update(self._written(missing))
        for storage, (number, _, _) in zip(storages, described, strict=True):
            self.ids.append(found[number] if number in found else self._write(storage))
        return self.ids

    def _written(self, missing: list[tuple[int, int, int]]) -> dict[int, str]:
        """The ids of copies that are written now, of those that can have one."""
        ledger = self._tide.ledger
        known = [ledger.record_at(number) for number, address, _ in missing if address]
        records = [record for record in known if record is not None and record.state == _record.SETTLED]
        # From before they are clean every modification is reported.
        for record in records:
            self._clean.append(record)
            ledger.mark(record, _record.CLEAN)
        found = self._copies(missing, write=True)
        for record in records:
            if record.id not in found:
                ledger.modifies(record)
        return found

    def _copies(self, described: list[tuple[int, int, int]], *, write: bool) -> dict[int, str]:
        asked = [each for each in described if each[0] >= 0]
        copies = self._pool.copies(self._tide.session, asked, write=write)
        return {number: copy for (number, _, _), copy in zip(asked, copies, strict=True) if copy}

    def give_up(self) -> None:
        """Gives up the checkpoint: what was written for it does not take the room of what must leave."""
        for record in self._clean:
            if record.state == _record.CLEAN:
                self._tide.ledger.modified(record)

    def _describe(self, record: Record | None, storage: Storage) -> tuple[int, int, int]:
        """Describes a storage for comparison: number, address (0: out), length; no number: it has none."""
        length = nbytes(storage)
        if record is None or not record.reported or length == 0:
            return (-1, 0, length)
        away, on_host = record.state & _record.AWAY, storage.device.type == "cpu"
        # Bytes that an alias changes unseen are compared with those of the copy.
        address = data_ptr(storage) if on_host and not away else 0
        return (record.id, address, length)

    def _write(self, storage: Storage) -> str:
        record = storage._tide
        if record is not None and record.state & _record.AWAY:
            self._settle()  # what is being read may leave, for this one to come
            self._tide.access.bring_back(storage)
        return self.keep(storage if storage.device.type == "cpu" else storage.cpu())


class Checkpoints:
    """The checkpoints of a pool, outside of a block or inside the one that has the pool open.

        with tidelog.Checkpoints("/mnt/nvme/tide") as checkpoints:
            state = checkpoints.restore("step 1000")

    They live as long as the pool; `export` writes a file that does not need it. With `degraded` one device of a pool
    with two copies may be missing."""

    def __init__(
        self,
        pool: StrPath | Pool,
        *,
        read_only: bool = True,
        share: int = 0,
        buffered: bool = False,
        degraded: bool = False,
    ):
        if isinstance(pool, Pool):
            self._pool = pool
        else:
            devices = _devices.listed(pool)
            self._pool = Pool.at(devices, read_only=read_only, share=share, buffered=buffered, degraded=degraded)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the pool back."""
        self._pool.close()

    def list(self) -> list[Seal]:
        """The checkpoints by name: of each its time, its tensors, their bytes, and the bytes of space
        that it alone holds."""
        return self._pool.seals()

    def verify(self, name: str) -> None:
        """Reads all of a checkpoint and compares it with its checksums; DeviceError where bytes are
        lost."""
        self._pool.verify(name)

    def delete(self, *names: str) -> None:
        """Deletes checkpoints, by one commit. What they alone held is free."""
        with self._pool.batch() as batch:
            for name in names:
                self._pool.drop_seal(batch, name)

    def restore(self, name: str, *, weights_only: bool = True) -> Any:
        """The state that a checkpoint holds, in new memory of the host. Tied weights are tied again."""
        return Saved(self._pool, name).state(weights_only=weights_only)

    def parts(self, name: str, *, weights_only: bool = True) -> Parts:
        """Returns the contents of a checkpoint, each tensor read when it is asked for:
        `parts(name)["model.layer.weight"]`. Of use while these checkpoints are open.
        """
        return Parts(Saved(self._pool, name), weights_only=weights_only)

    def export(self, name: str, path: StrPath) -> None:
        """Writes the tensors of a checkpoint to a safetensors file, a piece at a time, under the
        names that lead to them ("model.layer.weight"), and waits until it is on the disk. Numbers and
        texts are in its metadata; the file is there whole or not at all."""
        _safetensors.export(Saved(self._pool, name), os.fspath(path))

    def import_(self, path: StrPath, name: str) -> None:
        """Keeps the tensors of a safetensors file as a checkpoint, a dict by their names, without having
        all of the file in memory. The numbers and texts of its metadata come with them."""
        file, writer, puts = _safetensors.File(os.fspath(path)), Writer(), _Puts(self._pool)
        writer.storages.extend(file.storages)
        try:
            puts.ids.extend(puts.keep(storage) for storage in file.storages)
            puts.seal(name, writer.manifest(file.state, lambda: puts.ids))
        finally:
            puts.forget()

    def retain(self, *, last: int, every: int = 0, prefix: str = "") -> builtins.list[str]:
        """Retains of the checkpoints whose names are `prefix` and a number the `last` highest, and those whose number
        is a multiple of `every`; deletes the others and returns their names. The highest is verified first: where it
        has lost bytes, nothing is deleted.
        """
        if last < 1:
            raise ValueError(f"last is {last}: at least one checkpoint is kept.")
        numbered: list[tuple[int, str]] = []
        for seal in self.list():
            match = re.fullmatch(re.escape(prefix) + r"(\d+)", seal["name"])
            if match:
                numbered.append((int(match[1]), seal["name"]))
        numbered.sort()
        gone = [name for number, name in numbered[:-last] if not every or number % every]
        if gone:
            self.verify(numbered[-1][1])
            self.delete(*gone)
        return gone


def restore(pool: StrPath, name: str, *, weights_only: bool = True) -> Any:
    """The state that `tide.checkpoint(name)` has kept in a pool, in new memory of the host."""
    with Checkpoints(pool) as checkpoints:
        return checkpoints.restore(name, weights_only=weights_only)
