"""The pytest plugin of the run that asks failed tests once more (scripts/test): they are counted, and more than a few fail it.

Owns the count. A test that passes now has failed by a race, in itself or in sockd; a run with many of those says nothing.
"""

from __future__ import annotations

import pytest

MOST = 3
_asked = pytest.StashKey[list[str]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is left after --last-failed has chosen."""
    session.config.stash[_asked] = [item.nodeid for item in session.items]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run, if it has not failed."""
    if len(session.config.stash.get(_asked, [])) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name them."""
    asked = terminalreporter.config.stash.get(_asked, [])
    failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])}
    terminalreporter.section(f"{len(asked)} asked twice, of which {len(failed)} failed again; at most {MOST} may be")
    for nodeid in asked:
        terminalreporter.write_line(f"{'failed twice' if nodeid in failed else 'unsteady'}: {nodeid}")
