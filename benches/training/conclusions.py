"""Conclusions from runs: a row for each contender, and whether it is what it must be."""

import statistics

import figures
from contenders import CEILING, CONTENDERS, REFERENCE

TIMES_FASTER_MIN = 2.0  # Tidelog in the program's own order beside the reference
ON_MARK = "tidelog"  # whose time that is asked of
LITTLE = 1.3  # times the least memory that any of ZeRO-Infinity's settings takes
# Steps that only warm up: an optimizer has no state yet, DeepSpeed learns the order of modules, Tidelog plans.
WARM_STEPS = 7


def key(run):
    """Runs of one key are compared with each other."""
    return run["micro_batches"], run["pool"]


def find(runs, contender, pool):
    """Runs of a contender beside those on a pool: who has none is beside all of them."""
    return {run["round"]: run for run in runs if run["contender"] == contender and run["pool"] in (pool, None)}


def timed(run):
    """Seconds of its steps, once they are warm."""
    return [step["seconds"] for step in run["steps"][WARM_STEPS:]]


def seconds(run):
    return statistics.median(timed(run))


def peak(runs, first=WARM_STEPS):
    """The most that any step of any run held, from one on."""
    return max(step["peak_bytes"] for run in runs.values() for step in run["steps"][first:])


def losses(runs):
    """The steps' losses of one run, all of which are the same where a contender has the same bits each time."""
    return [[step["loss"] for step in run["steps"]] for run in runs.values()]


def furthest(runs, others):
    """The largest difference of a loss from the others' of that step."""
    (expected, *_) = losses(others)
    return max(
        abs(float.fromhex(mine) - float.fromhex(theirs))
        for found in losses(runs)
        for mine, theirs in zip(found, expected, strict=True)
    )


def are_same_bits(runs, others):
    (expected, *_) = losses(others)
    return all(found == expected for found in losses(runs))


def row(contender, pool, runs):
    """The figures of one contender; `None` where it has no run."""
    mine = find(runs, contender.name, pool)
    if not mine:
        return None
    ceiling, reference = find(runs, CEILING, pool), find(runs, REFERENCE, pool)
    medians = [seconds(run) for run in mine.values()]
    both = [seconds(reference[number]) / seconds(run) for number, run in mine.items() if number in reference]
    warm = [step for run in mine.values() for step in run["steps"][WARM_STEPS:]]
    return {
        "contender": contender.name,
        "words": contender.words,
        "pool": pool,
        "rounds": len(mine),
        "seconds": figures.summary(medians),
        "peak_bytes": peak(mine),
        "peak_ever_bytes": max(peak(mine, 0), *(run["setup_peak_bytes"] for run in mine.values())),
        "bytes_read": statistics.median(step["bytes_read"] for step in warm),
        "bytes_written": statistics.median(step["bytes_written"] for step in warm),
        "times_faster": figures.summary(both) if both else None,
        "same_bits": are_same_bits(mine, ceiling) if ceiling else None,
        "loss_off": furthest(mine, ceiling) if ceiling else None,
        # Of ours every step counts, of the reference those that are timed.
        "peak_over_reference": peak(mine, 0) / peak(reference) if reference else None,
        "settings": next(iter(mine.values()))["settings"],
        "load": max(run["load"] for run in mine.values()),
    }


def tables(runs):
    """Rows by micro-batches and pool, the program's order first."""
    found = {}
    for micro_batches in sorted({run["micro_batches"] for run in runs}):
        of_these = [run for run in runs if run["micro_batches"] == micro_batches]
        for pool in sorted({run["pool"] for run in of_these} - {None}, reverse=True):
            rows = (row(contender, pool, of_these) for contender in CONTENDERS)
            found[micro_batches, pool] = [each for each in rows if each]
    return found


def misses(row):
    """Describes the figures of a row that fall short. Others are shown, and nothing is asked of them."""
    contender = next(each for each in CONTENDERS if each.name == row["contender"])
    if not contender.is_ours:
        return
    if row["same_bits"] is False:
        yield f"losses differ from the plain run's by up to {row['loss_off']:.3g}"
    if row["peak_over_reference"] and row["peak_over_reference"] > 1:
        yield f"{row['peak_over_reference']:.2f} of the memory of ZeRO-Infinity"
    if contender.name == ON_MARK and row["times_faster"] and row["times_faster"]["median"] < TIMES_FASTER_MIN:
        yield f"{row['times_faster']['median']:.2f} times as fast as ZeRO-Infinity, not {TIMES_FASTER_MIN:g}"


def text(row):
    """A line of the table."""
    faster = row["times_faster"]
    bits = {True: "same bits", False: f"off by {row['loss_off']:.2g}" if row["loss_off"] is not None else "", None: ""}
    return (
        f"{row['words']:<38} {row['seconds']['median']:7.3f} s ({row['seconds']['min']:.3f} to {row['seconds']['max']:.3f})"
        f" {row['peak_bytes'] / 2**20:6.0f} MiB  read {row['bytes_read'] / 2**20:5.0f}, written "
        f"{row['bytes_written'] / 2**20:5.0f} MiB  {faster['median'] if faster else float('nan'):5.2f} x  {bits[row['same_bits']]}"
    )


def choose(tried):
    """Chooses from settings that were tried: the fastest, and the fastest of those that do with little memory."""
    least = min(each["peak_bytes"] for each in tried)
    lean = [each for each in tried if each["peak_bytes"] <= LITTLE * least]

    def speed(each):
        return each["seconds"]

    return {"fastest": min(tried, key=speed), "lean": min(lean, key=speed)}
