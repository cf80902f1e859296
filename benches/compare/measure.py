"""Runs the pairs of a case: the peer and then Tidelog, again and again, on devices that are made once."""

import contextlib
import dataclasses
import os
import tempfile
import time

import figures

# A median of fewer says nothing; a bound asks for five.
PAIRS_LEAST = 3


@dataclasses.dataclass(frozen=True)
class Effort:
    """Number and length of runs. What has no limit is shown beside the rest, and gets less."""

    pairs: int
    pairs_shown: int
    seconds: float
    # For a case, with what is not measured; who is slow gets fewer pairs.
    budget: float
    budget_shown: float

    def of(self, case, kind):
        """Pairs, and seconds for all of them."""
        marked = case.limits_on(kind).is_any()
        return (self.pairs, self.budget) if marked else (self.pairs_shown, self.budget_shown)


def on_devices(case, kind, folder, effort, progress):
    """Makes the devices of a case, and measures it on them."""
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        theirs = stack.enter_context(kind(disk, case.devices))
        # What a peer writes to the devices would end the log's pool.
        ours = theirs if case.share_devices else stack.enter_context(kind(disk, case.devices))
        return measure(case, theirs, ours, effort, progress)


def measure(case, theirs, ours, effort, progress):
    """Runs the pairs; returns the figures of one case."""
    wanted, budget = effort.of(case, theirs.kind)
    until, pairs = time.monotonic() + budget, []
    case.peer.prepare(case.load, theirs, effort.seconds)
    # The first run of each warms up: it maps the memory behind the devices.
    for turn in range(wanted + 1):
        if len(pairs) >= PAIRS_LEAST and time.monotonic() > until:
            break
        pair = tuple(
            who.run(case.load, where, effort.seconds) for who, where in ((case.peer, theirs), (case.ours, ours))
        )
        if turn > 0:
            pairs.append(pair)
        progress.ran(turn, wanted)
    return {
        "case": case.name,
        "devices": theirs.kind,
        "peer": case.peer.name,
        "ours": case.ours.name,
        "pairs": len(pairs),
        "pairs_wanted": wanted,
        "seconds": effort.seconds,
        "load": os.getloadavg()[0],
        "threads": getattr(case.peer, "threads", None),
        "ratios": figures.ratios(pairs),
        "limits": dataclasses.asdict(case.limits_on(theirs.kind)),
        "peer_median": figures.medians([peer for peer, _ in pairs]),
        "our_median": figures.medians([mine for _, mine in pairs]),
        "samples": [[dataclasses.asdict(sample) for sample in pair] for pair in pairs],
    }
