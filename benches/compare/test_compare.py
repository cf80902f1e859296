"""Tests of the conclusions of `make compare` from runs, without running any."""

import contextlib
import io
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import alone
import cases
import compare
import devices
import figures
import measure
import peers
import picture
import progress
import results
import spdk
from devices import LoopDevices, NoDevices
from figures import Limits
from peers import Failed, NoPeer, Sample
from python_peers import DeepSpeed, Environment


class Steady:
    """Peer that does the same each time, or one of several things in turn."""

    def __init__(self, name, *samples):
        self.name, self.samples, self.runs = name, samples, 0

    def check(self):
        pass

    def prepare(self, load, devices, seconds):
        pass

    def run(self, load, devices, seconds):
        self.runs += 1
        return self.samples[self.runs % len(self.samples)]


class Missing(Steady):
    def check(self):
        raise NoPeer("it is not installed")


class Nowhere:
    """Devices of a kind, without any."""

    kind, size = "loop, memory", None

    def __init__(self, _disk, count):
        self.names = ["none"] * count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def case(limits, ours, peer=None, name="peer:load"):
    return cases.Case(name, peer or Steady("peer", Sample(100.0, 1.0, 10.0)), ours, peers.Load("read", "1m", 1), limits)


class Bounds(unittest.TestCase):
    def test_ranks_are_those_of_the_sign_test(self):
        # P(at most k of n tosses are heads) is at most 0.05 for these k and for none larger.
        self.assertEqual([figures.lower_rank(count) for count in (4, 5, 8, 15, 30)], [None, 0, 1, 3, 10])

    def test_the_bound_is_below_the_true_median_at_least_as_often_as_it_says(self):
        chance = random.Random(1)
        wrong = sum(figures.summary([chance.lognormvariate(0, 1) for _ in range(15)])["lower"] > 1 for _ in range(2000))
        self.assertLess(wrong, 2000 * 0.03, "1.8 % would be by chance")
        self.assertGreater(wrong, 2000 * 0.005, "a bound that is never wrong says nothing")

    def test_a_summary_has_the_order_of_its_values(self):
        values = [random.Random(2).random() for _ in range(15)]
        figure = figures.summary(values)
        self.assertEqual([figure["min"], figure["max"]], [min(values), max(values)])
        self.assertEqual(figure["median"], statistics.median(values))
        self.assertEqual([figure["lower"], figure["upper"]], [sorted(values)[3], sorted(values)[11]])

    def test_ratios_are_ours_over_the_peers_pair_by_pair(self):
        found = figures.ratios([(Sample(2.0, 4.0), Sample(1.0, 2.0, 9.0)), (Sample(4.0, 1.0), Sample(8.0, 3.0, 9.0))])
        self.assertEqual([found["bytes_per_second"][what] for what in ("min", "median", "max")], [0.5, 1.25, 2.0])
        self.assertEqual(found["cpu_seconds_per_gib"]["max"], 3.0)
        self.assertIsNone(found["p99_us"], "what one of them does not tell is not compared")


class Verdicts(unittest.TestCase):
    def missed(self, limits, *samples):
        ours = Steady("ours", *samples)
        pairs = [(Sample(100.0, 1.0), ours.run(None, None, None)) for _ in range(15)]
        return list(figures.misses(limits, figures.ratios(pairs)))

    def test_each_limit_is_looked_at(self):
        for limits, ours, expected in [
            (Limits(1.0, 0.97, 1.05), [Sample(100.0, 1.05)], []),
            (Limits(median_min=1.0), [Sample(99.0, 1.0)], ["median 0.990 is below 1.0"]),
            (Limits(cpu_max=0.7), [Sample(200.0, 0.8)], ["CPU per byte 0.800 is above 0.7"]),
            (Limits(), [Sample(1.0, 9.0)], []),
        ]:
            self.assertEqual(self.missed(limits, *ours), expected)
        wavering = [Sample(speed, 1.0) for speed in (110.0, 90.0, 110.0)]
        self.assertEqual(self.missed(Limits(1.0, 0.97), *wavering), ["lower bound 0.900 is below 0.97"])

    def test_too_few_pairs_do_not_meet_a_bound(self):
        found = figures.ratios([(Sample(1.0, 1.0), Sample(2.0, 1.0))] * 4)
        self.assertEqual(list(figures.misses(Limits(lower_min=0.97), found)), ["too few pairs for a lower bound"])

    def test_a_limit_on_cpu_time_that_nobody_told_is_missed(self):
        found = figures.ratios([(Sample(1.0, 0.0), Sample(2.0, 1.0))] * 15)
        self.assertEqual(list(figures.misses(Limits(cpu_max=1.0), found)), ["the CPU time of a run is not known"])


class Runs(unittest.TestCase):
    def compare(self, chosen, *words, kinds=None):
        """The exit status, what was written, and the picture."""
        output = pathlib.Path(self.folder.name, "out.json")
        arguments = ["compare.py", "--devices=loop", f"--files={self.folder.name}", f"--output={output}", *words]
        with (
            mock.patch.object(sys, "argv", arguments),
            mock.patch.object(cases, "cases", lambda *_: chosen),
            mock.patch.dict(compare.KINDS, {"loop": kinds or Nowhere}),
            mock.patch.object(alone, "cases", lambda *_: []),
            contextlib.redirect_stdout(io.StringIO()) as self.said,
            contextlib.redirect_stderr(io.StringIO()) as self.progress,
        ):
            status = compare.main()
        return status, json.loads(output.read_text()), output.with_suffix(".svg").read_text()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_pairs_are_interleaved_and_the_first_is_not_counted(self):
        turns = []
        peer, ours = Steady("peer", Sample(100.0, 1.0)), Steady("ours", Sample(100.0, 1.0))
        for who in (peer, ours):
            run = who.run
            who.run = lambda *given, run=run, who=who: turns.append(who.name) or run(*given)
        status, written, _ = self.compare([case(Limits(1.0, 0.97, 1.05), ours, peer)], "--pairs=5")
        self.assertEqual(turns, ["peer", "ours"] * 6)
        self.assertEqual((status, len(written["results"][0]["samples"])), (0, 5))

    def test_a_miss_makes_the_status_one_and_the_picture_red(self):
        fast, slow = Steady("ours", Sample(100.0, 1.0, 5.0)), Steady("ours", Sample(50.0, 1.0, 5.0))
        chosen = [case(Limits(1.0), fast, name="a:fast"), case(Limits(1.0), slow, name="a:slow")]
        status, written, drawn = self.compare(chosen)
        self.assertEqual((status, written["missed"]), (1, ["a:slow: median 0.500 is below 1.0"]))
        root = xml.etree.ElementTree.fromstring(drawn)
        dots = [dot.get("fill") for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
        self.assertEqual(sorted(dots), sorted([picture.GOOD, picture.BAD, *[picture.PLAIN] * 4]))
        limits, figure = {"median_min": 1.0, "lower_min": 0.97}, {"median": 1.1, "lower": 0.9}
        self.assertFalse(picture.is_met(limits, "bytes_per_second", figure), "its bound is too low")
        self.assertIn("falls short: a:slow", self.said.getvalue())

    def test_what_is_missing_is_said_and_makes_the_status_three(self):
        absent = Missing("peer")

        class None_(Nowhere):
            def __enter__(self):
                raise NoDevices("loop devices need root")

        ours = Steady("ours", Sample(100.0, 1.0))
        status, written, _ = self.compare([case(Limits(1.0), ours, absent)])
        self.assertEqual((status, written["not_measured"]), (3, ["peer:load (loop, memory): it is not installed"]))
        status, written, _ = self.compare([case(Limits(1.0), ours)], kinds=None_)
        self.assertEqual((status, written["not_measured"]), (3, ["peer:load (loop, memory): loop devices need root"]))
        self.assertEqual(ours.runs, 0)

    def test_parts_add_up_and_the_verdict_is_of_all(self):
        slow, fast = Steady("ours", Sample(50.0, 1.0)), Steady("ours", Sample(100.0, 1.0))
        chosen = [case(Limits(1.0), slow, name="a:one"), case(Limits(1.0), fast, name="b:two")]
        self.assertEqual(self.compare(chosen, "--only=a:")[0], 1)
        status, written, _ = self.compare(chosen, "--only=b:", "--add")
        self.assertEqual((status, [it["case"] for it in written["results"]]), (1, ["a:one", "b:two"]))
        again = [case(Limits(1.0), fast, name="a:one")]
        status, written, _ = self.compare(again, "--add")
        self.assertEqual((status, len(written["results"])), (0, 2))
        self.assertEqual(self.compare(chosen, "--only=b:")[0], 0, "without --add it begins anew")

    def test_what_was_missing_and_is_there_now_is_missing_no_more(self):
        ours = Steady("ours", Sample(100.0, 1.0))
        self.assertEqual(self.compare([case(Limits(1.0), ours, Missing("peer"))])[0], 3)
        self.assertEqual(self.compare([case(Limits(1.0), ours)], "--add")[0], 0)

    def test_a_run_that_fails_is_told_and_the_others_go_on(self):
        class Failing(Steady):
            def run(self, load, devices, seconds):
                raise Failed("exit 1")

        chosen = [
            case(Limits(1.0), Failing("ours"), name="a:broken"),
            case(Limits(1.0), Steady("ours", Sample(100.0, 1.0)), name="b:well"),
        ]
        status, written, _ = self.compare(chosen)
        self.assertEqual((status, written["not_measured"]), (3, ["a:broken (loop, memory): exit 1"]))
        self.assertEqual([it["case"] for it in written["results"]], ["b:well"])

    def test_what_was_ended_in_the_middle_is_resumed(self):
        class Ended(Steady):
            def run(self, load, devices, seconds):
                raise KeyboardInterrupt

        first, second = Steady("ours", Sample(100.0, 1.0)), Steady("ours", Sample(100.0, 1.0))
        with self.assertRaises(KeyboardInterrupt):
            self.compare([case(Limits(1.0), first, name="a:one"), case(Limits(1.0), Ended("ours"), name="b:two")])
        runs = first.runs
        again = [case(Limits(1.0), first, name="a:one"), case(Limits(1.0), second, name="b:two")]
        status, written, _ = self.compare(again, "--resume")
        self.assertEqual((status, [it["case"] for it in written["results"]]), (0, ["a:one", "b:two"]))
        self.assertEqual((first.runs, second.runs), (runs, 16), "what was there is not measured again")

    def test_a_file_system_that_is_still_busy_is_unmounted_a_little_later(self):
        statuses = iter([32, 32, 0])
        with mock.patch.object(devices.subprocess, "run") as run, mock.patch.object(devices.time, "sleep"):
            run.side_effect = lambda *_, **__: subprocess.CompletedProcess([], next(statuses))
            devices.unmount("/mounted")
        self.assertEqual(run.call_count, 3)

    def test_devices_go_when_it_is_terminated(self):
        gone = []

        class Terminated(Steady):
            def run(self, load, devices, seconds):
                os.kill(os.getpid(), signal.SIGTERM)

        class Kept(Nowhere):
            def __exit__(self, *_):
                gone.append(self.names)

        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        with self.assertRaisesRegex(SystemExit, "143"):
            self.compare([case(Limits(1.0), Terminated("ours"))], kinds=Kept)
        self.assertEqual(gone, [["none"] * 2] * 2)

    def test_a_case_that_takes_too_long_has_fewer_pairs_and_no_verdict_from_them(self):
        times = iter(range(0, 10_000, 10))
        with mock.patch.object(measure.time, "monotonic", lambda: next(times)):
            status, written, _ = self.compare([case(Limits(1.0), Steady("ours", Sample(100.0, 1.0)))], "--budget=75")
        (result,) = written["results"]
        self.assertEqual((status, result["pairs"]), (3, 10))
        self.assertEqual(written["not_measured"], ["peer:load (loop, memory): 10 of 15 pairs in time"])
        status, written, _ = self.compare([case(Limits(1.0), Steady("ours", Sample(100.0, 1.0)))], "--resume")
        self.assertEqual((status, written["results"][0]["pairs"]), (0, 15), "it is measured again")

    def test_what_has_no_limit_gets_fewer_pairs_and_a_name_that_nothing_has_is_an_error(self):
        _, written, _ = self.compare([case(Limits(), Steady("ours", Sample(100.0, 1.0)))])
        self.assertEqual(written["results"][0]["pairs"], 5)
        with self.assertRaisesRegex(SystemExit, "no case here has 'nothing'"):
            self.compare([case(Limits(), Steady("ours", Sample(1.0, 1.0)))], "--only=nothing")

    def test_two_at_once_are_refused(self):
        with compare.alone_here(self.folder.name), self.assertRaisesRegex(SystemExit, "another comparison"):
            self.compare([case(Limits(), Steady("ours", Sample(1.0, 1.0)))])

    def test_each_line_says_what_was_found_and_whether_that_is_enough(self):
        slow, fast = Steady("ours", Sample(50.0, 1.0, 5.0)), Steady("ours", Sample(100.0, 1.0, 5.0))
        self.compare(
            [
                case(Limits(1.0), slow, name="a:slow"),
                case(Limits(1.0), fast, name="b:fast"),
                case(Limits(), fast, name="c:any"),
            ]
        )
        lines = {line.split()[0]: line for line in self.said.getvalue().splitlines() if ":" in line.partition(" ")[0]}
        self.assertIn("0.500  0.500  0.500  0.500", lines["a:slow"])
        for name, verdict in [
            ("a:slow", "MISSED: median 0.500 is below 1.0"),
            ("b:fast", " met"),
            ("c:any", "no limit"),
        ]:
            self.assertTrue(lines[name].endswith(verdict), lines[name])


class Alone(unittest.TestCase):
    def result(self, percent):
        return {
            "case": "alone:idle",
            "devices": "loop, memory",
            "alone": {"cpu_percent": percent},
            "limits": {"cpu_percent_max": 0.1},
        }

    def test_an_engine_that_is_not_idle_is_a_miss(self):
        self.assertEqual(results.misses(self.result(0.0999)), [])
        self.assertEqual(results.misses(self.result(0.2)), ["cpu_percent 0.2000 is above 0.1"])
        self.assertTrue(results.row(self.result(0.05)).endswith("cpu_percent 0.0500 met"))

    def test_threads_that_work_are_seen_and_those_of_the_benchmark_are_not(self):
        busy = "import threading,time; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start(); time.sleep(60)"
        with (
            mock.patch.multiple(alone, IDLE_SECONDS=0.5, WARM_SECONDS=0.2),
            subprocess.Popen([sys.executable, "-c", busy]) as running,
        ):
            try:
                self.assertGreater(alone.engine_seconds_while_idle(running), 0.02)
                with mock.patch.object(alone, "BENCHMARKS", ("python",)):
                    self.assertIsNone(alone.engine_seconds_while_idle(running), "no engine is not an idle one")
            finally:
                running.kill()


class TimeLeft(unittest.TestCase):
    def test_it_is_what_the_turns_so_far_took(self):
        now, out = [0.0], io.StringIO()
        line = progress.Progress([4, 16], out, lambda: now[0])
        line.begins("a")
        self.assertIsNone(line.left())
        for turn in range(4):
            now[0] += 3
            line.ran(turn, 3)
        line.ends()
        self.assertEqual(line.left(), 48)
        line.begins("b")
        self.assertEqual(out.getvalue().splitlines()[-1], "[2/2] b: begins, 0:48 left")


class Cases(unittest.TestCase):
    def test_every_case_has_a_name_of_its_own(self):
        names = [
            it.name
            for it in [
                *cases.cases("program", Environment(pathlib.Path("a"), pathlib.Path("b"))),
                *alone.cases("program"),
            ]
        ]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(
            {name.partition(":")[0] for name in names},
            {"fio-io_uring", "fio-libaio", "deepspeed", "safetensors", "torch-save", "spdk", "alone"},
        )

    def test_a_report_becomes_a_sample(self):
        way = {"io_bytes": 5, "bw_bytes": 2**31, "clat_ns": {"percentile": {"99.000000": 7000}}}
        report = json.dumps({"jobs": [{"read": {"io_bytes": 0}, "write": way, "usr_cpu": 30.0, "sys_cpu": 70.0}]})
        self.assertEqual(peers.sample_of(f"fio: a note\n{report}"), Sample(2**31, 0.5, 7.0))

    def test_perfs_table_becomes_a_sample(self):
        table = "Device  :  IOPS  MiB/s\nTCP (addr:a) NSID 1 from core  1:  4.0  16.1  7.6\nTotal   :  8010.71  31.29  7990.78  93.81\n"
        self.assertEqual(spdk.total_mib(table), 31.29)
        with self.assertRaisesRegex(Failed, "no total"):
            spdk.total_mib("nothing")

    def test_controllers_are_for_both_sides_without_the_kernel_alone(self):
        known = list(cases.cases("program", Environment(pathlib.Path("a"), pathlib.Path("b"))))
        for it in known:
            self.assertEqual(it.is_for(spdk.Controllers), it.name.startswith("spdk:"))
            self.assertFalse(it.name.startswith("spdk:") and it.is_for(LoopDevices))

    def test_limits_are_those_that_are_asked_for(self):
        asked = {
            it.name: it.limits
            for it in cases.cases("program", Environment(pathlib.Path("a"), pathlib.Path("b")))
            if it.limits.is_any()
        }
        as_fast = Limits(1.0, 0.97, 1.05)
        self.assertEqual(
            asked,
            {
                **{f"fio-io_uring:raw-{load}": as_fast for load in ("read", "write", "randread-4k")},
                "fio-io_uring:log-read": Limits(0.75),
                "fio-io_uring:log-write": Limits(0.85),
                "deepspeed:raw-write-2-devices": Limits(1.05, cpu_max=0.7),
                "deepspeed:raw-read-2-devices": Limits(1.2, cpu_max=0.7),
                "deepspeed:log-read-2-devices": Limits(1.2, cpu_max=0.7),
                "deepspeed:raw-write-1-devices": Limits(1.05),
                **{f"deepspeed:{level}-read-1-devices": Limits(1.3) for level in ("raw", "log")},
                **{f"spdk:{load}": Limits(0.95) for load in ("randread-4k", "read-128k", "write-128k")},
            },
        )
        (idle,) = alone.cases("program")
        self.assertEqual(idle.cpu_percent_max, 0.1)

    def test_tensors_that_are_larger_than_operations_are_as_many_bytes_in_flight(self):
        load, on = peers.Load("read", "1m", 32), mock.Mock(names=["one"], size="64m")
        words = peers.Tidelog("program", "log", tensors="8m").command(load, on, 1)
        last = dict(word.split("=", 1) for word in words[1:])
        self.assertEqual([last[word] for word in ("--bs", "--iodepth", "--stripe_unit")], ["8m", "4", "1m"])

    def test_one_worker_serves_all_and_a_new_one_comes_after_it_died(self):
        program = (
            "import os,sys,json\nfor line in sys.stdin:\n"
            " if json.loads(line)['way'] == 'die': sys.exit('error: it is dead')\n"
            " print(os.getpid(), flush=True)"
        )
        with Environment(pathlib.Path("a"), pathlib.Path("b")) as environment:
            environment.command = lambda *_: {"args": [sys.executable, "-c", program], "text": True}
            first, second = (environment.ask({"way": "answer"}) for _ in range(2))
            self.assertEqual(first, second)
            with self.assertRaisesRegex(Failed, "die ended in the middle of a run: error: it is dead"):
                environment.ask({"way": "die"})
            self.assertNotEqual(environment.ask({"way": "answer"}), first)

    def test_a_worker_that_is_not_waited_for_is_gone(self):
        with Environment(pathlib.Path("a"), pathlib.Path("b")) as environment:
            environment.command = lambda *_: {
                "args": [sys.executable, "-c", "import time\ntime.sleep(60)"],
                "text": True,
            }
            previous = signal.signal(signal.SIGALRM, lambda *_: sys.exit("enough"))
            self.addCleanup(signal.signal, signal.SIGALRM, previous)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with (
                self.assertRaisesRegex(SystemExit, "enough"),
                mock.patch.object(environment, "end_worker", wraps=environment.end_worker) as ended,
            ):
                environment.ask({"way": "answer"})
            ended.assert_called_once()
            self.assertIsNone(environment.worker)

    def test_deepspeed_gets_its_best_number_of_threads_once_for_both_of_our_levels(self):
        asked = []

        class Environment_:
            def ask(self, words):
                asked.append(words["threads"])
                return {"bytes_per_second": {1: 5.0, 2: 7.0, 4: 6.0}[words["threads"]], "cpu_seconds_per_gib": 1.0}

        peer, on = DeepSpeed(Environment_()), mock.Mock(kind="any", names=["one"], files=lambda: ["file"])
        for _ in range(2):
            peer.prepare(peers.Load("read", "1m", 32, size="4m"), on, 1)
        self.assertEqual((asked, peer.threads), ([1, 2, 4], 2))

    def test_an_environment_that_cannot_be_made_is_tried_once(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
            environment = Environment(pathlib.Path(folder, "env"), pathlib.Path(folder, "project"))
            for _ in range(2):
                with self.assertRaisesRegex(NoPeer, "there is no torch in .*make setup"):
                    environment.version("deepspeed")
            self.assertEqual(said.getvalue().count("installing"), 1)


if __name__ == "__main__":
    unittest.main()
