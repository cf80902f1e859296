"""Tests of what `make test-integrations` concludes from runs of stacks, without running any."""

import unittest

import stacks


def run(lines=("0 loss 0x1p+0",), peak=90, read=1, phase="planned"):
    figures = {"peak_bytes": peak, "totals": {"bytes_read": read}, "phase": phase, "held_back": ["step 3: why not"]}
    return {"lines": [list(lines)], "figures": [figures]}


class Verdicts(unittest.TestCase):
    def test_a_run_as_it_should_be(self):
        self.assertEqual(stacks.judged(run(), run(), 100), ("same bits", ""))

    def test_one_bit_is_enough(self):
        verdict, why = stacks.judged(run(), run(["0 loss 0x1.8p+0"]), 100)
        self.assertEqual(verdict, "other bits")
        self.assertIn("'0 loss 0x1p+0' is '0 loss 0x1.8p+0'", why)

    def test_a_line_less_is_other_bits(self):
        self.assertEqual(stacks.judged(run(), run([]), 100)[0], "other bits")

    def test_a_budget_that_was_not_kept(self):
        self.assertEqual(stacks.judged(run(), run(peak=101), 100)[0], "over budget")

    def test_a_run_in_which_nothing_moved_shows_nothing(self):
        self.assertEqual(stacks.judged(run(), run(read=0), 100)[0], "failed")

    def test_a_run_without_a_plan_says_why(self):
        self.assertEqual(stacks.judged(run(), run(phase="profiling"), 100), ("no plan", "step 3: why not"))
        found = stacks.judged(run(), run(phase="profiling"), 100, unplanned="steps differ")
        self.assertEqual(found, ("same bits", "without a plan: steps differ"))


class Commands(unittest.TestCase):
    def test_a_fake_gpu_is_below_tidelog_alone(self):
        stack = stacks.STACKS["torchtitan-fake-gpu"]
        self.assertNotIn(stacks.FAKE_GPU, stacks.command_of(stack, [], "fake"))
        words = stacks.command_of(stack, ["--memory", "1MiB"], "fake")
        self.assertEqual(words[words.index(stacks.FAKE_GPU) + 1 :][:2], ["fake", "run"])
        self.assertNotIn("tidelog", words)


class Errors(unittest.TestCase):
    def test_a_budget_that_is_too_small_is_told_before_what_it_led_to(self):
        said = "[rank1]: RuntimeError: BudgetError: no room\n[rank0]: RankError: rank 1 has ended\ntorch.distributed.elastic.X: Y\n"
        self.assertEqual(stacks.last_error(said), "RuntimeError: BudgetError: no room")

    def test_the_last_error_is_told(self):
        self.assertEqual(stacks.last_error("KeyError: 1\nValueError: two\nin between\n"), "ValueError: two")
        self.assertEqual(stacks.last_error(""), "it said nothing")


if __name__ == "__main__":
    unittest.main()
