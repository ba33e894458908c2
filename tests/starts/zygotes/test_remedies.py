"""The remedies in the reasons of functions that share little: one for each kind of change by the function's own code."""

from __future__ import annotations

import pytest

from sockd.starts.zygotes.top_levels.remedies import remedy
from sockd.starts.zygotes.top_levels.top_level import Module, Step, TopLevel


def top(before: str) -> TopLevel:
    return TopLevel((Step("numpy", "numpy-1-a", -1, before, (), (Module("numpy-1-a", "numpy", 0.1),)),))


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("", ""),
        ("os.environ['A']", "set it in env of sockd.toml, or import numpy before it"),
        (
            "what it imports from one start to another (line 3 of f.py)",
            "import numpy without a condition, before that line",
        ),
        ("what it does from one start to another (line 3 of f.py)", "import numpy before that line"),
        ("what it may do next, by an answer of the network,", "import numpy before that request"),
        (
            "what it may do next, by an answer of a program that it starts,",
            "import numpy before that program is started",
        ),
        ("what it passes on from one start to another (line 3 of f.py)", "import numpy before that line"),
        ("what it calls of C libraries, by ctypes,", "import numpy before that call"),
        ("what is loaded, as a thread of it imports base,", "import numpy before the thread starts"),
        ("yaml.Dumper, the root logger", "import numpy before that"),
    ],
)
def test_each_change_has_a_remedy(before: str, words: str) -> None:
    assert remedy(top(before)) == words


def test_the_import_of_a_package_is_named_and_no_part_of_the_standard_library() -> None:
    idna = Step("encodings.idna", "", -1, "os.environ['A']", (), (Module("", "encodings.idna", 0.1),))
    late = TopLevel((idna, *top("os.environ['A']").steps))
    assert late.change == "the function's own code changes os.environ['A'] before it imports numpy"
    assert TopLevel((idna,)).change.endswith("before it imports encodings.idna")
