"""A pytest plugin for gpu.sh: one row for each test file, or for each test, and what has not begun when the time is up
is left.

    PYTHONPATH=tests/hardware python -m pytest -p rows --rows-by file --rows-to FILE --rows-until SECONDS_SINCE_1970 ...

Each line of FILE is a word (FACT, FAILED, LEFT), the row's name and what there is to say, with tabs between them. It is
there as soon as the row's tests are done, whatever becomes of the others.
"""

import collections
import time

import pytest

TIME_UP = "the time was up"


def pytest_addoption(parser):
    parser.addoption("--rows-by", choices=["file", "test"], default="file")
    parser.addoption("--rows-to")
    parser.addoption("--rows-until", type=float, default=float("inf"))


def pytest_configure(config):
    config.pluginmanager.register(Deadline(config.getoption("--rows-until")))
    # xdist's workers report to the process that started them.
    if config.getoption("--rows-to") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Rows(config.getoption("--rows-to"), config.getoption("--rows-by")))


class Deadline:
    def __init__(self, until):
        self._until = until

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self):
        if time.time() > self._until:
            pytest.skip(TIME_UP)


class Rows:
    def __init__(self, to, by):
        self._to, self._by = to, by
        self._expected = {}  # for each row the tests that are not done yet
        self._rows = collections.defaultdict(Row)

    def pytest_collection_finish(self, session):
        self._expect(item.nodeid for item in getattr(session, "items", ()))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self._expect(ids)

    def pytest_collectreport(self, report):
        if not report.passed:
            self._rows[self._name(report.nodeid)].add(report)

    def pytest_runtest_logreport(self, report):
        self._rows[self._name(report.nodeid)].add(report)

    def pytest_runtest_logfinish(self, nodeid):
        name = self._name(nodeid)
        self._expected[name].discard(nodeid)
        if not self._expected[name]:
            self._tell(name)

    def pytest_sessionfinish(self):
        for name in list(self._rows):
            self._tell(name)

    def _expect(self, ids):
        if not self._expected:
            for nodeid in ids:
                self._expected.setdefault(self._name(nodeid), set()).add(nodeid)

    def _name(self, nodeid):
        file, _, test = nodeid.partition("::")
        return test.partition("[")[0] if self._by == "test" and test else file.rpartition("/")[2].removesuffix(".py")

    def _tell(self, name):
        word, text = self._rows.pop(name).verdict(len(self._expected.get(name, ())))
        with open(self._to, "a") as file:
            file.write(f"{word}\t{name}\t{text}\n")


class Row:
    """Result of the tests of one row."""

    def __init__(self):
        self._ids = collections.defaultdict(set)
        self._why = {}  # the first failure, the first skip

    def add(self, report):
        kind = report.outcome
        if kind == "skipped" and skip_reason(report).endswith(TIME_UP):
            kind = "late"
        if kind != "passed" or report.when == "call":
            self._ids[kind].add(report.nodeid)
            self._why.setdefault(kind, report)

    def verdict(self, never_ran):
        passed, failed, skipped = (len(self._ids[kind]) for kind in ("passed", "failed", "skipped"))
        late = len(self._ids["late"]) + never_ran
        counts = [
            f"{count} {word}" for count, word in ((failed, "failed"), (passed, "passed"), (skipped, "skipped")) if count
        ]
        if failed:
            report = self._why["failed"]
            return "FAILED", f"{', '.join(counts)}: {report.nodeid.rpartition('/')[2]}: {crash(report)}"
        if late:
            return "LEFT", f"{TIME_UP} before {late} of its {late + passed + skipped} tests"
        if not passed:
            return "LEFT", skip_reason(self._why["skipped"]) if skipped else "no test of it ran"
        return "FACT", ", ".join(counts)


def skip_reason(report):
    told = report.longrepr[2] if isinstance(report.longrepr, (tuple, list)) else str(report.longrepr)
    return first_line(told.removeprefix("Skipped: "))


def crash(report):
    told = getattr(report.longrepr, "reprcrash", None)
    lines = str(report.longrepr).strip().splitlines()
    return first_line(told.message) if told else first_line(lines[-1] if lines else "no word")


def first_line(text):
    return (text.strip().splitlines() or [""])[0].replace("\t", " ")[:300]
