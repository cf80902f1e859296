#!/usr/bin/env python3
"""Holds the figures in pages to the files of measured results in docs/figures.

    scripts/docs/figures.py            ends with 1 where a table is not what its file says; a part of `make tidy`
    scripts/docs/figures.py --collect  takes what measurements left in target into docs/figures, and writes the tables;
                                       with names (demo, models ...) only these

A table stands between the comments <!-- figures: NAME --> and <!-- end of figures -->. Each file says what made
it, when, and on what machine.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "figures"
PAGES = ("README.md", "docs/measurements.md", "docs/models.md", "docs/integrations.md")
TABLE = re.compile(r"(<!-- figures: ([a-z-]+) -->\n)(.*?)(<!-- end of figures -->\n)", re.DOTALL)

# Cases of `make compare` in words, in the order of the table.
CASES = {
    "fio-io_uring:raw-read": "raw reads, 1 MiB",
    "fio-io_uring:raw-write": "raw writes, 1 MiB",
    "fio-io_uring:raw-randread-4k": "raw random reads, 4 KiB, depth 64",
    "fio-io_uring:log-read": "log reads with checksums",
    "fio-io_uring:log-write": "log writes with checksums",
    "deepspeed:raw-write-2-devices": "raw writes, two devices",
    "deepspeed:raw-read-2-devices": "raw reads, two devices",
    "deepspeed:log-read-2-devices": "log reads, two devices",
    "deepspeed:raw-write-1-devices": "raw writes, one device",
    "deepspeed:raw-read-1-devices": "raw reads, one device",
    "deepspeed:log-read-1-devices": "log reads, one device",
}
LOOP = "loop, memory"
POOLS = {"loop": "memory", "files": "disk"}  # of `make compare-training`

BUSY_LOAD = 2  # above it, other programs ran beside what was measured, whose load is 1

# Models of benches/fit.py in words.
MODELS = {
    "gpt2": "gpt2, 8 layers of 512",
    "llama": "llama, 8 layers of 512",
    "qwen3": "qwen3, 10 layers of 384",
    "opt": "opt, 6 layers of 512",
    "mistral": "mistral, 8 layers of 448",
    "gpt_neox": "gpt-neox, 7 layers of 512",
    "phi": "phi, 7 layers of 512",
    "bloom": "bloom, 7 layers of 512",
    "deit": "deit, 7 layers of 448",
    "vit": "vit, 8 layers of 384",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs="*", choices=COLLECTED, help="take new results, and write the tables")
    names = parser.parse_args().collect
    collecting = names is not None
    for name in (names or COLLECTED) if collecting else ():
        collect(name, COLLECTED[name])
    wrong = {page: right for page in PAGES if (right := corrected(text := (ROOT / page).read_text())) != text}
    for page, right in wrong.items():
        if collecting:
            (ROOT / page).write_text(right)
            print(f"wrote the tables of {page}")
        else:
            print(
                f"{page}: a table is not what docs/figures says: run scripts/docs/figures.py --collect", file=sys.stderr
            )
    return 1 if wrong and not collecting else 0


def corrected(page):
    """The page with its tables as the files have them."""
    return TABLE.sub(lambda table: table[1] + TABLES[table[2]]() + table[4], page)


# -- from target to docs/figures ------------------------------------------------------------------


def collect(name, condense):
    """Takes the results of one measurement, where there are any that are newer."""
    source, kept = ROOT / "target" / f"{name}.json", FOLDER / f"{name}.json"
    if not source.exists():
        return
    before = json.loads(kept.read_text()) if kept.exists() else {"results": []}
    made = {
        "date": datetime.date.fromtimestamp(source.stat().st_mtime).isoformat(),
        "machine": machine(),
    }
    results = condense(json.loads(source.read_text()))
    fresh = {result["case"]: {**result, **made} for result in results}
    # Of the same day, the one that is taken now is the last.
    kept_results = [max(fresh.pop(result["case"], result), result, key=_date) for result in before["results"]]
    FOLDER.mkdir(exist_ok=True)
    document = {"made_by": MADE_BY[name], "results": [*kept_results, *fresh.values()]}
    kept.write_text(json.dumps(document, indent=2) + "\n")
    print(f"took {len(results)} results of {MADE_BY[name]}")


def _date(result):
    return result["date"]


def machine():
    """Describes this machine, in the words of the files."""
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "processor": processor[1] if processor else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / 2**20),
        "linux": ".".join(platform.release().split(".")[:2]),
    }


def of_compare(document):
    """Ratios of throughput and of CPU time, without the samples."""
    return [
        {
            "case": result["case"],
            "peer": result["peer"],
            "ours": result["ours"],
            "pairs": result["pairs"],
            "throughput": _shortened(result["ratios"]["bytes_per_second"], ("median", "lower")),
            "cpu_time": _shortened(result["ratios"]["cpu_seconds_per_gib"], ("min", "median", "max")),
        }
        for result in document["results"]
        # Too few pairs give no lower bound: no figure to stand on.
        if result["devices"] == LOOP and result["case"] in CASES and result["ratios"]["bytes_per_second"]["lower"]
    ]


def _shortened(ratios, names):
    return ratios and {name: round(ratios[name], 3) for name in names}


def of_demo(document):
    """Returns all figures of a document."""
    return [{"case": "demo", **document}]


def of_fit(document):
    """The step's time of each model, expected and measured."""
    return [
        {
            "case": row["model"],
            "expected_seconds": round(row["expected"]["step_seconds"], 3),
            "measured_seconds": round(row["measured_seconds"], 3),
        }
        for row in document
    ]


def of_models(document):
    """Each program, eager and compiled: what is in the tables."""
    keys = ("program", "kind", "way", "verdict", "threads", "peak_bytes", "steps", "graphs", "breaks")
    results = []
    for row in document["results"]:
        result = {"case": f"{row['program']}: {row['way']}", **{key: row[key] for key in keys if key in row}}
        if "reason" in row:
            result["reason"] = row["reason"].splitlines()[0][:200]
        if "ratio" in row:
            result["share"] = round(row["budget_bytes"] / row["peak_bytes"], 4)
            result["plain_seconds"] = round(row["plain_seconds"], 4)
            result["ratio"] = round(row["ratio"], 3)
            result["kernels_per_step"] = row["kernels_launched"]
            result["load"] = round(row["load"], 1)
        if row.get("refused_at"):
            result["refused"] = row["refused_at"][0]["reason"].split(" does not fit")[0]
        results.append(result)
    return results


def of_stacks(document):
    """Each program of another library: what is in the table."""
    results = []
    for row in document:
        result = {"case": row["stack"], **{key: row[key] for key in ("title", "libraries", "verdict")}}
        if row["reason"]:
            result["reason"] = row["reason"].splitlines()[0][:300]
        if "budget_bytes" in row:
            result |= {key: row[key] for key in ("peak_bytes", "budget_bytes", "share")}
            result |= {key: round(row[key], 3) for key in ("seconds", "plain_seconds")}
            result["load"] = round(row["load"], 1)
        results.append(result)
    return results


def of_training(document):
    """Each contender on each pool, without the single steps."""
    results = []
    for row in document["results"]:
        place = f"{row['micro_batches']} micro-batches, {row['pool']}"
        faster = row["times_faster"]
        results.append(
            {
                "case": f"{row['contender']}: {place}",
                "words": row["words"],
                "micro_batches": row["micro_batches"],
                "pool": row["pool"],
                "rounds": row["rounds"],
                "seconds": _shortened(row["seconds"], ("min", "median", "max")),
                "peak_mib": round(row["peak_bytes"] / 2**20),
                "peak_ever_mib": round(row["peak_ever_bytes"] / 2**20),
                "read_mib": round(row["bytes_read"] / 2**20),
                "written_mib": round(row["bytes_written"] / 2**20),
                "times_faster": _shortened(faster, ("min", "median", "max")),
                "same_bits": row["same_bits"],
                "loss_off": row["loss_off"],
                "settings": row["settings"],
                "load": round(row["load"], 1),
            }
        )
    return results


COLLECTED = {
    "compare": of_compare,
    "demo": of_demo,
    "fit": of_fit,
    "models": of_models,
    "stacks": of_stacks,
    "training": of_training,
}
MADE_BY = {
    "compare": "make compare",
    "demo": "make demo",
    "fit": "python benches/fit.py",
    "models": "make models",
    "stacks": "make test-integrations",
    "training": "make compare-training",
}


# -- from docs/figures to tables ------------------------------------------------------------------


def results(name):
    """The results of a measurement by case."""
    return {each["case"]: each for each in json.loads((FOLDER / f"{name}.json").read_text())["results"]}


def table(head, rows):
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|\n" for line in lines)


def headline():
    """Returns the rows that a visitor reads first."""
    demo, compared, fits = results("demo")["demo"], results("compare"), results("fit").values()
    slower = demo["offloaded"]["seconds_per_step"] / demo["plain"]["seconds_per_step"]
    bits = "the same bits" if demo["same_bits"] else "OTHER BITS"
    busy = ", on a busy machine" if demo["load"] > BUSY_LOAD else ""
    furthest = max(abs(each["measured_seconds"] / each["expected_seconds"] - 1) for each in fits)

    def ratio(case):
        return f"{compared[case]['throughput']['median']:.2f} times"

    def faster(pool):
        return f"{results('training')[f'tidelog: 1 micro-batches, {pool}']['times_faster']['median']:.2f} times"

    rows = [
        (
            f"A GPT in {demo['fraction']:.0%} of its memory",
            f"{bits}; a step takes {slower:.2f} times as long{busy}",
            "make demo",
        ),
        (
            "A training step in the memory that ZeRO-Infinity takes",
            f"{faster('loop')} as fast with the pool in memory, {faster('files')} on a disk",
            "make compare-training",
        ),
        ("Raw reads of 1 MiB", f"{ratio('fio-io_uring:raw-read')} fio's throughput", "make compare"),
        ("Reads from the log, checksums compared", f"{ratio('fio-io_uring:log-read')} fio's raw reads", "make compare"),
        ("Raw reads, two devices", f"{ratio('deepspeed:raw-read-2-devices')} DeepSpeed's throughput", "make compare"),
        (
            "Reads from the log, two devices",
            f"{ratio('deepspeed:log-read-2-devices')} DeepSpeed's raw reads",
            "make compare",
        ),
        (
            f"Steps that `tidelog fit` expects, {len(fits)} models",
            f"at most {furthest:.0%} off",
            "python benches/fit.py",
        ),
    ]
    return table(("what", "measured", "repeat"), [(what, figure, f"`{repeat}`") for what, figure, repeat in rows])


def compare():
    """Tidelog beside its peers."""
    found = results("compare")
    rows = []
    for case, words in CASES.items():
        if result := found.get(case):
            ratio, spent = result["throughput"], result["cpu_time"]
            cpu = f"{spent['min']:.2f} to {spent['max']:.2f}" if spent else ""
            peer = result["peer"].split(" aio")[0].split(" --")[0].replace("deepspeed", "DeepSpeed")
            if case.startswith("fio-io_uring:log"):
                peer += ", raw"
            rows.append((words, peer, f"{ratio['median']:.3f} [{ratio['lower']:.3f}]", cpu, result["date"]))
    return table(("case", "peer", "throughput", "CPU time", "measured"), rows)


def demo():
    """The last run of the demo."""
    last = results("demo")["demo"]
    plain, tide = last["plain"], last["offloaded"]
    off = ", ".join(f"{name} {abs(value):.1%}" for name, value in last["simulation_off"].items())
    rows = [
        (
            "peak of tensors and staging",
            f"{plain['peak_bytes'] / 2**20:.1f} MiB",
            f"{tide['peak_bytes'] / 2**20:.1f} MiB",
        ),
        ("step time", f"{plain['seconds_per_step']:.3f} s", f"{tide['seconds_per_step']:.3f} s"),
        (
            "moved out, in, per step",
            "",
            f"{tide['bytes_written_per_step'] / 2**20:.0f}, {tide['bytes_read_per_step'] / 2**20:.0f} MiB",
        ),
        ("stalls per step", "", f"{tide['stalls_per_step']:.0f}, {tide['stall_seconds_per_step']:.3f} s"),
        ("simulation off by", "", off),
        ("load of the machine, of which 1 is the demo's", "", f"{last['load']:.1f}"),
        *([("note", "", last["note"])] if "note" in last else []),
        ("measured", last["date"], last["date"]),
    ]
    return table(("figure", "plain", f"in {last['fraction']:.0%}"), rows)


def training():
    """Every contender of `make compare-training`."""
    rows = []
    for each in results("training").values():
        seconds, faster = each["seconds"], each["times_faster"]
        bits = "the same" if each["same_bits"] else f"off by {each['loss_off']:.0e}"
        rows.append(
            (
                POOLS[each["pool"]],
                each["words"],
                f"{seconds['median']:.2f} s ({seconds['min']:.2f} to {seconds['max']:.2f})",
                f"{faster['median']:.2f} ({faster['min']:.2f} to {faster['max']:.2f})" if faster else "",
                f"{each['peak_mib']}, {each['peak_ever_mib']} MiB",
                f"{each['read_mib']}, {each['written_mib']} MiB",
                bits,
                f"{each['rounds']}, {each['load']:.0f}",
                each["date"],
            )
        )
    head = ("pool", "who", "step", "times ZeRO-Infinity", "peak, with first steps", "read, written", "losses")
    return table((*head, "rounds, load", "measured"), rows)


def fit():
    """Returns the steps that `tidelog fit` expects, beside the measured ones."""
    rows = []
    for name, result in results("fit").items():
        expected, measured = result["expected_seconds"], result["measured_seconds"]
        rows.append(
            (MODELS[name], f"{expected:.2f} s", f"{measured:.2f} s", f"{measured / expected:.2f}", result["date"])
        )
    return table(("model", "expected", "took", "ratio", "measured"), rows)


def models():
    """Each program of `make models`."""
    programs = {}
    for each in results("models").values():
        programs.setdefault((each["kind"], each["program"]), {})[each["way"]] = each
    rows = []
    for (kind, name), ways in programs.items():
        eager, compiled = ways.get("eager"), ways.get("compiled")
        graphs = f"{compiled['graphs']}, {compiled['breaks']}" if compiled and "graphs" in compiled else ""
        kernels = str(compiled.get("kernels_per_step", "")) if compiled else ""
        remarks = "; ".join(filter(None, (_remark(each) for each in ways.values())))
        rows.append((name, kind, *_cells(eager), *_cells(compiled), kernels, graphs, remarks))
    head = (
        "program",
        "kind",
        "peak",
        "step",
        "eager",
        "peak",
        "step",
        "compiled",
        "kernels",
        "graphs, breaks",
        "remarks",
    )
    return table(head, rows)


def _cells(result):
    """The peak, the plain step, and what the block made of it."""
    if result is None:
        return "", "", "not run"
    if "ratio" not in result:
        return "", "", result["verdict"]
    bits = "" if result["verdict"] == "same bits" else f"{result['verdict']}, "
    peak, step = f"{result['peak_bytes'] / 2**20:.0f} MiB", f"{1000 * result['plain_seconds']:.0f} ms"
    busy = "~" if result["load"] > BUSY_LOAD else ""
    return peak, step, f"{bits}{busy}{result['ratio']:.2f} x"


def _remark(result):
    if "refused" in result:
        needs = f"{result['way']} in {result['share']:.0%}" if "share" in result else result["way"]
        return f"{needs}: `{result['refused'][:60]}` does not fit in less"
    if result["verdict"] != "same bits":
        # A reason may be anything: no table ends in it.
        return f"{result['way']}: " + re.sub(r"[|<>`\s]+", " ", result.get("reason", ""))[:120]
    return ""


def models_together():
    """Returns the number of programs with the same bits, by kind, and the cost of their steps."""
    kinds = {}
    for each in results("models").values():
        kinds.setdefault(each["kind"], {}).setdefault(each["way"], []).append(each)
    rows = []
    for kind, ways in kinds.items():
        cells = []
        for way in ("eager", "compiled"):
            found = ways.get(way, [])
            ratios = sorted(each["ratio"] for each in found if "ratio" in each)
            same = sum(each["verdict"] == "same bits" for each in found)
            busy = "~" if any(each.get("load", 0) > BUSY_LOAD for each in found) else ""
            middle = f"{busy}{statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
            cells += [f"{same} of {len(found)}", middle]
        rows.append((kind, *cells))
    return table(("kind", "eager: same bits", "step", "compiled: same bits", "step"), rows)


def stacks():
    """Returns what programs of other libraries did in a part of their memory."""
    rows = []
    for each in results("stacks").values():
        name, ran = f"{each['title']} ({each['libraries']})", "budget_bytes" in each
        if not ran:
            rows.append((name, "", "", "", each["verdict"], _sentence(each["reason"]), each["date"]))
            continue
        budget = f"{each['budget_bytes'] / 2**20:.0f} MiB, {each['share']:.0%}"
        busy = "~" if each["load"] > BUSY_LOAD else ""
        time = f"{busy}{each['plain_seconds']:.2f} s, {busy}{each['seconds']:.2f} s"
        words = ("the same" if each["verdict"] == "same bits" else each["verdict"], _sentence(each.get("reason", "")))
        bits = ", ".join(filter(None, words))
        rows.append((name, "yes", "0", budget, bits, time, each["date"]))
    return table(("stack", "unedited", "lines", "budget", "bits", "step, plain and in the block", "measured"), rows)


def _sentence(reason):
    """A reason may be anything: no table ends in it."""
    return re.sub(r"[|<>\s]+", " ", reason)


TABLES = {
    "headline": headline,
    "compare": compare,
    "demo": demo,
    "fit": fit,
    "models": models,
    "stacks": stacks,
    "training": training,
    "models-together": models_together,
}


if __name__ == "__main__":
    sys.exit(main())
