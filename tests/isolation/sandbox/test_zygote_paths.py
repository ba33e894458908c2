"""What imports of a Zygote append to sys.path is in each of its forks where a start of the function's own has it."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.isolation.farm.zygote import Zygote
from tests.support.harness import Harness

pytestmark = pytest.mark.root

VENDORED = {
    "p.py": "import os, sys\nfrom sys import path as kept\n"
    "sys.path.append(os.path.join(os.path.dirname(__file__), '_vendor'))\nsys.path.append('/opt/outside')\n",
    "_vendor/inner.py": "x = 7\n",
    "_vendor/inner-3.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: inner\nVersion: 3.0\n",
}
"""Does as setuptools, which appends the directory of the distributions that it carries."""
SECOND = "import sys\nimport inner\nsys.path.append('/opt/second')\nseen = sys.path[:]\n"
ASK = """
import sys
import p, q
import inner
from importlib.metadata import version
def handler(event): return [sys.path, q.seen[-3:], p.kept is sys.path, inner.x, version("inner")]
"""


def chain(harness: Harness) -> tuple[Zygote, list[str]]:
    """A Zygote that has imported q, whose parent has imported p; the paths of both."""
    paths = [harness.add_package("p", VENDORED)]
    parent = harness.spawn(modules=["p"])
    paths.append(harness.add_package("q", {"q.py": SECOND}))
    child = harness.spawn(parent, modules=["q"])
    return child, paths


@pytest.mark.parametrize("start", ["fork", "spare"])
def test_entries_are_there_through_a_chain_of_zygotes(harness: Harness, start: str) -> None:
    child, paths = chain(harness)
    own = harness.answer(ASK, paths=paths)
    assert own[0][:3] == ["/var/task", *paths]
    assert own[0][-3:] == own[1] == ["/packages/p/_vendor", "/opt/outside", "/opt/second"]
    assert own[2:] == [True, 7, "3.0"]
    learned: list[Any] = [
        harness.start(ASK, zygote=child, spare=start == "spare", paths=paths).answer() for _ in range(2)
    ]
    assert learned == [own, own]


REFUSED = {
    "import sys; sys.path.insert(0, '/opt/a')\n": "an import changes the order of sys.path",
    "import os, sys\nif os.getcwd() not in sys.path: sys.path.append(os.getcwd())\n": "appends the function's directory",
}


@pytest.mark.parametrize("source", REFUSED)
def test_entries_whose_place_no_fork_can_know_are_refused(harness: Harness, source: str) -> None:
    harness.add_package("p", {"p.py": source})
    (complaint,) = harness.import_modules(harness.spawn(), ["p"]).left
    assert REFUSED[source] in complaint
