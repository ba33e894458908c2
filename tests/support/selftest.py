"""The pytest plugin of `sockd selftest`: one line for each case as it ends, a summary by group, and the same as JSON.

    python -m pytest -p tests.support.selftest tests/abuse tests/faults [--all] [--group A,D] [--case A1] [--cases-json FILE]

Owns the report. Tests that are no case are left out. `--broken NAME` runs everything against a worker with one protection
taken away (`tests/support/broken.py`), which is how the suite shows that it can fail.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.broken import BREAKS, IN_TESTS
from tests.support.cases import ALL, Case, case_of, deselect

WORDS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
GROUPS = {
    "A": "file system and escape",
    "B": "processes, IPC, network",
    "C": "kernel surface",
    "D": "exhaustion",
    "E": "Zygotes",
    "F": "functions",
    "G": "daemon and host",
    "H": "API abuse",
    "I": "images",
    "J": "storage and initscripts",
    "K": "attacks from outside",
    "L": "services",
    "N": "private networks",
    "P": "sharing between functions",
    "S": "promises of SPECIFICATION.md",
    "T": "snapshots",
    "V": "WebAssembly functions",
    "W": "workers of a group",
}
WIDTH = 118
NO_SUCH_CASE = 3
"""The exit status for a wrong name, as of all commands (`sockd.client.console.output.NOT_FOUND`)."""


@dataclass
class Outcome:
    """What became of one case; `left` of its tests are still to come."""

    case: Case
    left: int = 0
    verdict: str = "skipped"
    happened: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.failed:
            self.verdict = "failed"
        elif report.passed and report.when == "call" and self.verdict == "skipped":
            self.verdict = "passed"
        if report.when == "teardown":
            self.happened += [str(text) for name, text in report.user_properties if name == "happened"]
        if report.skipped and isinstance(report.longrepr, tuple):
            self.happened.append(report.longrepr[2].removeprefix("Skipped: "))
        elif report.failed:
            self.happened.append(why(report))

    def row(self) -> dict[str, object]:
        """The case as JSON."""
        return {
            "id": self.case.id,
            "group": self.case.group,
            "did": self.case.did,
            "expect": self.case.expect,
            "happened": "; ".join(dict.fromkeys(self.happened)),
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
        }


def why(report: pytest.TestReport) -> str:
    """The first line of what a failed test said."""
    crash = getattr(report.longrepr, "reprcrash", None)
    words = crash.message if crash is not None else str(report.longrepr)
    return words.strip().splitlines()[0][:300] if words.strip() else "no reason"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selftest")
    group.addoption("--all", action="store_true", dest=ALL, help="the long cases, too")
    group.addoption("--group", default="", help="only these groups: A,D")
    group.addoption("--case", default="", help="only these cases: A1,B3")
    group.addoption("--cases-json", default="", metavar="FILE", help="write what happened")
    group.addoption(
        "--broken", default="", metavar="NAME", help="take one protection away; see tests/support/broken.py"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (name := config.getoption("--broken")) in IN_TESTS:
        BREAKS[name]()  # before the tests are imported, with what they name of ours
    config.pluginmanager.register(Report(config), "sockd-selftest")


class Report:
    """Collects outcomes and tells them."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._outcomes: dict[str, Outcome] = {}
        self._cases: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        groups = set(filter(None, config.getoption("--group").split(",")))
        ids = set(filter(None, config.getoption("--case").split(",")))
        everything = config.getoption(ALL)

        def wanted(case: Case | None) -> bool:
            if case is None or (groups and case.group not in groups) or (ids and case.id not in ids):
                return False
            return case.default or everything or case.id in ids

        deselect(config, items, wanted)
        if ids:
            config.option.all_cases = True
        for item in items:
            case = case_of(item)
            assert case is not None
            self._outcomes.setdefault(case.id, Outcome(case)).left += 1
            self._cases[item.nodeid] = case.id

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self._outcomes[self._cases[report.nodeid]]
        outcome.add(report)
        if report.when == "teardown":
            outcome.left -= 1
            if outcome.left == 0:
                self._tell(outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dots: each case has a line."""
        return (report.outcome, "", "") if report.failed or report.when == "call" or report.skipped else ("", "", "")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.ensure_newline()
        if not self._cases:
            terminalreporter.write_line("no case has this name; sockd selftest without --case runs all")
            return
        terminalreporter.section("cases by group", sep="-")
        for line in self._summary():
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        asked = self._config.getoption("--case") or self._config.getoption("--group")
        if asked and not self._cases:
            session.exitstatus = NO_SUCH_CASE
        if file := self._config.getoption("--cases-json"):
            rows = [outcome.row() for outcome in self._outcomes.values()]
            Path(file).write_text(json.dumps(rows, indent=1))

    def _tell(self, outcome: Outcome) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return
        row = outcome.row()
        reporter.ensure_newline()
        head = f"{row['id']:4} {WORDS[outcome.verdict]:8} {row['did']}"
        colour = {"passed": "green", "failed": "red", "skipped": "yellow"}[outcome.verdict]
        reporter.write_line(head, **{colour: True})
        for name, text in (("expected", row["expect"]), ("happened", row["happened"] or "as expected")):
            for line in textwrap.wrap(f"{name}: {text}", WIDTH, initial_indent=" " * 14, subsequent_indent=" " * 24):
                reporter.write_line(line)

    def _summary(self) -> Iterator[str]:
        counts: dict[str, Counter[str]] = {}
        for outcome in self._outcomes.values():
            counts.setdefault(outcome.case.group, Counter())[outcome.verdict] += 1
        total: Counter[str] = Counter()
        for group in sorted(counts):
            total += counts[group]
            yield _line(group, GROUPS.get(group, ""), counts[group])
        yield _line("all", "", total)


def _line(group: str, name: str, count: Counter[str]) -> str:
    reported = ", ".join(f"{count[verdict]} {word}" for verdict, word in (("passed", "ok"), *list(WORDS.items())[1:]))
    return f"{group:4} {name:26} {sum(count.values()):3} cases: {reported}"
