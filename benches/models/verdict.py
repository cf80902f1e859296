"""Verdict on two runs of a program of `make models`, one plain and one in a block."""

import statistics

# Of a step in a block.
FIGURES = ("bytes_written", "bytes_read", "evictions", "stalls", "stall_seconds")
COMPILATION = ("graphs", "breaks", "kernels")


def of(expected, got, budget):
    """Returns the differences that the block made, of which there must be none."""
    result = {key: got[key] for key in (*COMPILATION, "evictions", "notices")}
    result["block_peak_bytes"] = got["peak_bytes"]
    pairs = zip(expected["digests"], got["digests"], strict=False)
    wrong = [one[0] for one, other in pairs if one != other]
    compilation = [(key, expected[key], got[key]) for key in COMPILATION]
    changed = [f"{after} {key} instead of {before}" for key, before, after in compilation if before != after]
    if wrong or len(expected["digests"]) != len(got["digests"]):
        names = ", ".join(wrong[:5])
        return {**result, "verdict": "other bits", "reason": f"{len(wrong)} of {len(got['digests'])} differ: {names}"}
    if got["peak_bytes"] > budget:
        return {**result, "verdict": "over budget", "reason": f"{got['peak_bytes']} bytes instead of {budget}"}
    if changed:
        return {**result, "verdict": "compiled otherwise", "reason": ", ".join(changed)}
    if not got["evictions"]:
        return {**result, "verdict": "nothing moved", "reason": "the budget is enough"}
    return {**result, "verdict": "same bits"}


def times(pairs):
    """Medians of steps that were done in turn."""

    def median(of, key):
        return statistics.median(pair[of][key] for pair in pairs)

    plain, block = median(0, "seconds"), median(1, "seconds")
    figures = {f"{key}_per_step": median(1, key) for key in FIGURES}
    return {"plain_seconds": plain, "block_seconds": block, "ratio": block / plain, "steps": len(pairs), **figures}
