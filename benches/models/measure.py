"""Runs the programs of `make models` in processes, and says what each run showed."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import shutil
import time

import torch
import torch._dynamo
import torch._inductor.codecache
import torch._inductor.compile_fx
import transformers  # noqa: F401

import roles
import tidelog  # noqa: F401
import verdict
from catalog import PROGRAMS

SHARE = 0.35  # of the peak
WARM_UP_STEPS_MAX, PLANNED_STEPS, TIMED_STEPS = 8, 2, 6
BUDGETS_MAX = 6  # that are tried where one op alone needs more than the share
AGAIN_MAX = 8  # runs without Tidelog, where bits differ
LIMIT_S = 400  # for one process
AT_ONCE = 2  # processes in which peaks are measured: nothing is timed in them


class Failed(Exception):
    """A process failed, and what it said. `refused`: its BudgetError."""

    def __init__(self, answer):
        super().__init__(answer.get("failed") or answer["refused"])
        self.refused = "refused" in answer
        self.least = answer.get("least")


class Child:
    """A process that trains a program."""

    def __init__(self, role, name, way, start="fork", **settings):
        self._pool = settings["pool"]
        self._ends_at = time.monotonic() + LIMIT_S
        context = multiprocessing.get_context(start)
        self.connection, theirs = context.Pipe()
        arguments = (role, name, way == "compiled", theirs, settings)
        self._process = context.Process(target=roles.main, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, word):
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(word)
        return self.receive()

    def receive(self):
        """The next thing that the process says."""
        if not self.connection.poll(max(0, self._ends_at - time.monotonic())):
            raise Failed({"failed": f"did not end within {LIMIT_S} s"})
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise Failed({"failed": f"ended with exit code {self._process.exitcode}"}) from None
        if isinstance(answer, dict) and ("failed" in answer or "refused" in answer):
            raise Failed(answer)
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()
        self._process.join(0.2 if self._process.exitcode is None else None)
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        shutil.rmtree(self._pool, ignore_errors=True)


def import_all():
    """Imports modules that are imported at first use: once for all processes, which are forks of this one. No step is
    done: it would start threads.
    """
    torch.optim.AdamW([torch.zeros(1)])
    PROGRAMS["gpt2"].make()
    with torch.no_grad():
        torch.compile(lambda x: torch.tanh(x @ x) + 1)(torch.zeros(2, 2))
    torch._dynamo.reset()


class Measuring:
    """One call of `make models`."""

    def __init__(self, arguments, folder):
        import_all()
        self._threads = arguments.threads
        self._folder, self._work = folder, arguments.work
        self._stops_at = time.monotonic() + 60 * arguments.minutes
        self._runs = 0

    def is_time(self):
        return time.monotonic() < self._stops_at

    def peaks(self, chosen):
        """Yields (program, peak) in the order in which they are found; graphs are compiled for it, and kept. A
        failure is in the peak's place."""
        waiting, running = list(chosen), {}
        while running or (waiting and self.is_time()):
            while waiting and len(running) < AT_ONCE and self.is_time():
                each = waiting.pop(0)
                child = self._child("peak", *each)
                running[child.connection] = each, child
            ready = multiprocessing.connection.wait(list(running), timeout=LIMIT_S)
            for connection in ready or list(running):
                each, child = running.pop(connection)
                with child:
                    try:
                        yield each, child.receive()
                    except Failed as failure:
                        yield each, failure

    def _child(self, role, name, way, **settings):
        self._runs += 1
        label = f"{name.replace(', ', '-').replace(' ', '-')}-{way}"
        return Child(
            role,
            name,
            way,
            log=str(self._work / f"{label}-{role}.log"),
            pool=str(self._folder / str(self._runs)),
            threads=self._threads,
            **settings,
        )

    def result(self, name, way, peak):
        """A row of the table."""
        row = {"program": name, "kind": PROGRAMS[name].kind, "way": way, "threads": self._threads}
        row["load"] = os.getloadavg()[0]
        if isinstance(peak, Failed):
            return {**row, **self._without_a_block(name, way, peak)}
        row.update(peak)
        budget, refusals = int(SHARE * peak["peak_bytes"]), []
        while True:
            try:
                return {**row, "refused_at": refusals, **self._in_turn(name, way, budget)}
            except Failed as failure:
                if not failure.refused or failure.least is None or len(refusals) == BUDGETS_MAX:
                    return {**row, **self._without_a_block(name, way, failure)}
                refusals.append({"budget_bytes": budget, "reason": str(failure)})
                budget = max(failure.least, int(1.02 * budget))

    def _in_turn(self, name, way, budget):
        """Trains plain and in a block, step by step in turn."""
        with (
            self._child("plain", name, way) as plain,
            self._child("block", name, way, budget=budget, mode="auto") as block,
        ):
            for each in (plain, block):
                each.receive()
            planned, phase = 0, ""
            for warm in range(1, WARM_UP_STEPS_MAX + 1):
                plain.ask("step")
                phase = block.ask("step")["phase"]
                planned += phase == "planned"
                if planned == PLANNED_STEPS:
                    break
            pairs = [(plain.ask("step"), block.ask("step")) for _ in range(TIMED_STEPS)]
            expected, got = plain.ask("end"), block.ask("end")
        found = verdict.of(expected, got, budget)
        if found["verdict"] == "other bits":
            found |= self._of_itself(name, way, warm + TIMED_STEPS)
        return {**found, **verdict.times(pairs), "phase": phase, "budget_bytes": budget}

    def _of_itself(self, name, way, steps):
        """Describes other bits where the program has not the same bits twice without Tidelog either: in processes that
        are not forks of one, tensors have other addresses.
        """
        found = set()
        for again in range(1, AGAIN_MAX + 1):
            with self._child("plain", name, way, start="spawn") as plain:
                plain.receive()
                for _ in range(steps):
                    plain.ask("step")
                found.add(str(plain.ask("end")["digests"]))
            if len(found) > 1:
                return {"verdict": "not reproducible", "reason": f"without Tidelog {again} runs had two results"}
        return {}

    def _without_a_block(self, name, way, failure):
        """Returns the reason why there are no figures: whether the program runs without Tidelog says whose failure it
        is.
        """
        reason = str(failure).strip()[:2000]
        try:
            with self._child("plain", name, way) as plain:
                plain.receive()
                plain.ask("step")
        except Failed as of_plain:
            return {"verdict": "does not run without Tidelog", "reason": str(of_plain).strip()[:2000]}
        return {"verdict": "refused" if failure.refused else "failed", "reason": reason}
