"""A case of the fault-injection suite: what is done to a worker, what must come of it, and what came.

A case is a pytest test with the marker `case`; `make test` runs the default ones as it runs everything, `sockd selftest`
runs them with the plugin `tests/support/selftest.py`, which tells people about each. Several tests may share an id: they
are one case, as bad as the worst of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

ALL = "all_cases"
"""The option that keeps the cases outside the default set."""
_ID = re.compile(r"[A-Z]+[0-9]+")

Happened = Callable[[str], None]
"""What the fixture `happened` is: says in words what was seen; kept when the test fails afterwards, too."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the suite."""

    id: str
    did: str
    expect: str
    default: bool

    @property
    def group(self) -> str:
        """The letters that its id begins with."""
        return self.id.rstrip("0123456789")


def case(id: str, did: str, *, expect: str, default: bool = True) -> pytest.MarkDecorator:
    """Mark a test as a case.

    Args:
        id: group letter and number, such as "A1"; did, expect: in words, without the final stop.
        default: whether it runs without --all."""
    if not _ID.fullmatch(id):
        raise ValueError(f"{id!r} is not an id of a case")
    return pytest.mark.case(Case(id, did, expect, default))


def case_of(item: pytest.Item) -> Case | None:
    """The case that a test belongs to."""
    marker = item.get_closest_marker("case")
    return marker.args[0] if marker else None


def deselect(config: pytest.Config, items: list[pytest.Item], keep: Callable[[Case | None], bool]) -> None:
    """Take out the tests whose case is not to be kept."""
    kept = [item for item in items if keep(case_of(item))]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if not keep(case_of(item))])
        items[:] = kept


def leave_out_long_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What an ordinary run of the tests does: only the default set."""
    if not config.getoption(ALL, default=False):
        deselect(config, items, lambda case: case is None or case.default)


@pytest.fixture
def happened(request: pytest.FixtureRequest) -> Happened:
    """Keeps what the test saw, for its line in the report."""
    return lambda text: request.node.user_properties.append(("happened", text))
