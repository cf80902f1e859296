"""Tests of the conclusions of `make compare-training` from runs, without running any."""

import json
import pathlib
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "compare"))

import conclusions
import contenders
import drawing
import runs
import training
import zero_infinity_settings as zero
from peers import Failed
from store import Store

MIB = 1 << 20
STEPS = conclusions.WARM_STEPS + 3


def run_of(contender, seconds=1.0, peak=100, *, pool="loop", number=0, micro_batches=1, loss=1.5, first_peak=None):
    """A run whose steps are all alike, but for the first one's memory."""
    step = {
        "seconds": seconds,
        "loss": float(loss).hex(),
        "peak_bytes": peak,
        "bytes_read": 3 * MIB,
        "bytes_written": 2 * MIB,
    }
    steps = [{**step, "peak_bytes": first_peak or peak}, *[step] * (STEPS - 1)]
    return {
        "contender": contender,
        "micro_batches": micro_batches,
        "pool": None if contender in ("plain", "save-on-cpu", "fsdp2") else pool,
        "round": number,
        "settings": {},
        "setup_peak_bytes": 1,
        "load": 1.0,
        "steps": steps,
    }


def rows_of(found):
    ((_, rows),) = conclusions.tables(found).items()
    return {row["contender"]: row for row in rows}


def misses(found, name="tidelog"):
    return list(conclusions.misses(rows_of(found)[name]))


class Conclusions(unittest.TestCase):
    def test_twice_as_fast_with_the_same_bits_and_no_more_memory_is_met(self):
        found = [run_of("plain"), run_of("zero-infinity-lean", 2.0, 100), run_of("tidelog", 1.0, 100)]
        self.assertEqual(misses(found), [])
        self.assertEqual(rows_of(found)["tidelog"]["times_faster"]["median"], 2.0)

    def test_what_is_not_twice_as_fast_falls_short(self):
        found = [run_of("plain"), run_of("zero-infinity-lean", 1.9), run_of("tidelog", 1.0)]
        self.assertEqual(misses(found), ["1.90 times as fast as ZeRO-Infinity, not 2"])

    def test_more_memory_in_any_step_of_ours_falls_short(self):
        found = [run_of("plain"), run_of("zero-infinity-lean", 2.0, 100), run_of("tidelog", 1.0, 100, first_peak=110)]
        self.assertEqual(misses(found), ["1.10 of the memory of ZeRO-Infinity"])

    def test_what_the_reference_took_before_its_steps_were_warm_allows_us_nothing(self):
        reference = run_of("zero-infinity-lean", 2.0, 100, first_peak=200)
        found = [run_of("plain"), reference, run_of("tidelog", 1.0, 150)]
        self.assertEqual(misses(found), ["1.50 of the memory of ZeRO-Infinity"])
        self.assertEqual(rows_of(found)["zero-infinity-lean"]["peak_bytes"], 100)
        self.assertEqual(rows_of(found)["zero-infinity-lean"]["peak_ever_bytes"], 200)

    def test_another_bit_in_a_loss_falls_short(self):
        found = [run_of("plain"), run_of("zero-infinity-lean", 2.0), run_of("tidelog", loss=1.5 + 2**-23)]
        self.assertIn("losses differ", misses(found)[0])

    def test_the_losses_of_others_are_compared_and_nothing_is_asked(self):
        found = [run_of("plain"), run_of("zero-infinity-lean", 2.0, loss=1.75)]
        self.assertEqual(misses(found, "zero-infinity-lean"), [])
        row = rows_of(found)["zero-infinity-lean"]
        self.assertEqual((row["same_bits"], row["loss_off"]), (False, 0.25))

    def test_ratios_are_of_runs_of_the_same_round(self):
        found = [run_of("plain")]
        for number, speed in enumerate((1.0, 2.0, 4.0)):
            found += [run_of("zero-infinity-lean", 3 * speed, number=number), run_of("tidelog", speed, number=number)]
        faster = rows_of(found)["tidelog"]["times_faster"]
        self.assertEqual((faster["min"], faster["max"]), (3.0, 3.0))

    def test_a_round_without_the_reference_has_no_ratio(self):
        found = [run_of("plain"), run_of("tidelog")]
        self.assertIsNone(rows_of(found)["tidelog"]["times_faster"])
        self.assertEqual(misses(found), [])

    def test_only_warm_steps_are_timed(self):
        run = run_of("plain")
        for step in run["steps"][: conclusions.WARM_STEPS]:
            run["steps"][run["steps"].index(step)] = {**step, "seconds": 9.0}
        self.assertEqual(conclusions.seconds(run), 1.0)

    def test_pools_and_micro_batches_have_tables_of_their_own_and_who_has_no_pool_is_in_each(self):
        found = [run_of("plain"), run_of("tidelog"), run_of("tidelog", pool="files")]
        found += [run_of("plain", micro_batches=4), run_of("tidelog", micro_batches=4)]
        tables = conclusions.tables(found)
        self.assertEqual(list(tables), [(1, "loop"), (1, "files"), (4, "loop")])
        self.assertTrue(all([row["contender"] for row in rows] == ["plain", "tidelog"] for rows in tables.values()))

    def test_lean_settings_are_the_fastest_of_those_that_do_with_little_memory(self):
        tried = [
            {"name": "fast", "seconds": 1.0, "peak_bytes": 300},
            {"name": "least", "seconds": 4.0, "peak_bytes": 100},
            {"name": "little more", "seconds": 3.0, "peak_bytes": 130},
        ]
        chosen = conclusions.choose(tried)
        self.assertEqual((chosen["fastest"]["name"], chosen["lean"]["name"]), ("fast", "little more"))


class Plan(unittest.TestCase):
    def plan(self, **more):
        arguments = {"only": "", "rounds": 2, "micro_batches": [1], "kinds": ["loop", "files"], **more}
        return list(training.plan(types.SimpleNamespace(**arguments)))

    def test_every_round_has_everybody_on_every_pool_and_goes_the_other_way_round(self):
        chosen = [(contender.name, kind) for contender, _, kind, number in self.plan() if number == 0]
        self.assertEqual(chosen[0], ("plain", None))
        self.assertEqual([kind for name, kind in chosen if name == "tidelog"], ["loop", "files"])
        last = [contender.name for contender, _, _, number in self.plan() if number == 1]
        self.assertEqual(last[-1], "plain")

    def test_layer_wise_needs_several_micro_batches(self):
        names = {contender.name for contender, *_ in self.plan()}
        self.assertNotIn("tidelog-layers", names)
        names = {contender.name for contender, *_ in self.plan(micro_batches=[4])}
        self.assertIn("tidelog-layers", names)

    def test_a_budget_leaves_room_for_what_the_process_holds_beside_it(self):
        ours = next(each for each in contenders.CONTENDERS if each.name == "tidelog-half")
        self.assertEqual(contenders.budget(ours, 2 * contenders.OUTSIDE_BYTES), 0)

    def test_settings_that_are_tried_change_what_there_is(self):
        for name, changed in zero.TRIED.items():
            self.assertLessEqual(changed.keys(), zero.DEFAULTS.keys(), name)


class Processes(unittest.TestCase):
    def told(self, *lines, stderr=""):
        return runs.Runner.told(types.SimpleNamespace(stdout="\n".join(map(json.dumps, lines)), stderr=stderr), 1)

    def test_a_process_that_ended_early_is_told_with_its_error(self):
        with self.assertRaisesRegex(Failed, "after 0 of 1 steps: .*out of memory"):
            self.told({"what": "torch"}, stderr="Traceback\nRuntimeError: out of memory\n")

    def test_what_a_process_told_is_one_run(self):
        told = self.told({"what": "torch"}, {"base_bytes": 5, "setup_seconds": 1}, {"seconds": 2.0, "loss": "0x1p+0"})
        self.assertEqual((told["what"], told["base_bytes"], len(told["steps"])), ("torch", 5, 1))
        self.assertNotIn("seconds", told)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = pathlib.Path(folder.name, "training.json")

    def store(self, resume, steps=STEPS):
        return Store(self.output, resume, {"steps": steps, "threads": 1})

    def test_runs_of_other_lengths_are_not_mixed(self):
        self.store(False).add(run_of("tidelog"))
        with self.assertRaisesRegex(SystemExit, "name another --output"):
            self.store(True, steps=STEPS + 1)

    def test_a_run_that_was_ended_goes_on(self):
        self.store(False).add(run_of("tidelog"))
        self.assertTrue(self.store(True).has(contenders.CONTENDERS[5], 1, "loop", 0))
        self.assertFalse(self.store(False).has(contenders.CONTENDERS[5], 1, "loop", 0))

    def test_the_picture_has_every_row(self):
        store = self.store(False)
        for name in ("plain", "zero-infinity-lean", "tidelog"):
            store.add(run_of(name))
        picture = xml.etree.ElementTree.fromstring(self.output.with_suffix(".svg").read_text())
        words = [element.text for element in picture.iter() if element.tag.endswith("text")]
        for name in ("plain torch, all in memory", "ZeRO-Infinity, in little memory", "Tidelog"):
            self.assertIn(name, words)

    def test_other_bits_are_red(self):
        found = [run_of("plain"), run_of("tidelog", loss=2.0)]
        self.assertIn(drawing.BAD, drawing.draw(conclusions.tables(found), {"kernel": "6", "cpus": 2}))


if __name__ == "__main__":
    unittest.main()
