"""The pytest plugin of runs in several processes: one that died breaks the run off, which is more than a failed test.

Owns nothing. pytest-xdist blames the test that ran; CI asks failed tests once more (scripts/test), and what the dead
process had still to do would be asked by nobody.
"""

from __future__ import annotations

from typing import Any

import pytest

_died = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """One of the processes has ended, in order or with an error."""
    if error:
        node.config.stash[_died] = str(error)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _died in session.config.stash:
        session.exitstatus = pytest.ExitCode.INTERRUPTED
