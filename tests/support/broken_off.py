"""The pytest plugin of runs in several processes: one that died breaks the run off, which is more than a failed test.

Owns nothing. pytest-xdist blames the test that ran; CI asks failed tests once more (scripts/test), and what the dead process had
still to do would be asked by nobody. How it ended is reported at the end of the run, behind all failures.
"""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

PATIENCE_S = 5.0
_died = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """One of the processes has ended, in order or with an error."""
    if error:
        node.config.stash[_died] = f"{node.gateway.id} ended: {how(node)}; {error}"


def how(node: Any) -> str:
    """Its exit status; a negative one is a signal."""
    process = getattr(getattr(node.gateway, "_io", None), "popen", None)
    try:
        return f"status {process.wait(PATIENCE_S)}" if process is not None else "nobody knows its status"
    except subprocess.TimeoutExpired:
        return "it does not answer, but runs"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _died in session.config.stash:
        session.exitstatus = pytest.ExitCode.INTERRUPTED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last words of a run that broke off."""
    if _died in terminalreporter.config.stash:
        terminalreporter.section("the run broke off")
        terminalreporter.write_line(terminalreporter.config.stash[_died])
