"""Tests of what `make bench-scale` concludes from runs, without running any."""

import argparse
import pathlib
import unittest

import scale
from scale import Case, Cost, Machine, Result

MACHINE = Machine(devices=8, read=14, write=10, iops=2.5e6, cores=32, memory=460)
SIZES = (4 << 10, 64 << 10, 256 << 10, 1 << 20)


def result(size, user, kernel):
    """A row of one second, of operations that cost as much as two `Cost`s say."""
    operations = 1000
    seconds = (operations * (cost.operation + cost.byte * size) for cost in (user, kernel))
    return Result(operations * size, operations, *seconds)


class TestScale(unittest.TestCase):
    def test_a_line_is_found_again_and_is_never_below_nothing(self):
        cost = scale.line([(size, 3e-6 + 2e-10 * size) for size in SIZES])
        self.assertAlmostEqual(cost.operation, 3e-6)
        self.assertAlmostEqual(cost.byte, 2e-10)
        self.assertEqual(scale.line([(4096, 2e-6), (8192, 1e-6)]).byte, 0)
        self.assertEqual(scale.line([(4096, 1e-6), (8192, 9e-6)]).operation, 0)

    def test_costs_are_those_of_one_reactor_and_one_device_in_memory(self):
        user, kernel = Cost(2e-6, 1e-10), Cost(5e-6, 4e-10)
        rows = {Case("memory", "read", 1, 1, size): result(size, user, kernel) for size in SIZES}
        for other in (Case("simulated", "read", 1, 1, 4096), Case("memory", "write", 1, 1, 4096)):
            rows[other] = result(4096, Cost(1, 0), Cost(1, 0))
        rows[Case("memory", "read", 2, 2, 4096)] = result(4096, Cost(1, 0), Cost(1, 0))
        for found, expected in zip(scale.costs(rows, "read"), (user, kernel)):
            self.assertAlmostEqual(found.operation, expected.operation)
            self.assertAlmostEqual(found.byte, expected.byte)
        self.assertIsNone(scale.costs(rows, "write"), "one size makes no line")

    def test_no_core_copies_what_an_ssd_moves_and_each_limit_is_its_own(self):
        cost = Cost(1e-6, 1e-10), Cost(3e-6, 5e-10)
        limits = scale.projected(MACHINE, cost, "read", 1 << 20)
        self.assertAlmostEqual(limits["devices"], 8 * 14)
        self.assertAlmostEqual(limits["cores"], 32 * (1 << 20) / (4e-6 + 1e-10 * (1 << 20)) / 1e9)
        self.assertAlmostEqual(limits["memory"], 460 / 3)
        small = scale.projected(MACHINE, cost, "write", 4096)
        self.assertAlmostEqual(small["devices"], 8 * 10, msg="operations are no limit yet")
        slow = scale.projected(MACHINE._replace(iops=1e6), cost, "write", 4096)
        self.assertAlmostEqual(slow["devices"], 8 * 4.096)

    def test_reactors_of_simulated_devices_are_pools_that_share_them_out(self):
        case = Case("simulated", "read", 2, 4, 1 << 20)
        words = scale.command(case, "bench", pathlib.Path("/f"), 1)
        names = [word for word in words if word.startswith("--filename=")]
        self.assertEqual(names, ["--filename=/f/device0:/f/device2", "--filename=/f/device1:/f/device3"])
        self.assertFalse([word for word in words if word.startswith("--reactors")])
        words = scale.command(case._replace(kind="memory"), "bench", pathlib.Path("/f"), 1)
        self.assertIn("--reactors=2", words)
        self.assertEqual(sum(word.startswith("--name=") for word in words), 1)

    def test_no_row_has_more_reactors_than_devices(self):
        options = argparse.Namespace(only=["memory"], reactors=[1, 2], devices=[1, 2], sizes=[4096])
        counts = [(case.reactors, case.devices) for case in scale.cases(options)]
        self.assertEqual(counts, 2 * [(1, 1), (1, 2), (2, 2)])


if __name__ == "__main__":
    unittest.main()
