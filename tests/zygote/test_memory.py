"""What a Zygote does to its memory for its children's sake: measured, as they would feel it, and otherwise without a trace."""

from __future__ import annotations

import re

import pytest

from tests.zygote.test_native import evaluate

FAULTS = """
def faults():
    import json, resource
    ours, theirs = os.pipe()
    if os.fork() == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        json.loads(json.dumps({"a": [1, 2.5, "text"], "b": sorted(range(100), reverse=True)}))
        os.write(theirs, b"%d" % (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
        os._exit(0)
    os.wait()
    return int(os.read(ours, 20))
faults()
"""

MAPPED = """
import re
def mapped():
    '''(permissions, path) -> bytes, of files.'''
    found = {}
    for line in open("/proc/self/maps"):
        begin, end, kind, path = re.match(r"(\\w+)-(\\w+) (\\S+) \\S+ \\S+ \\d+ *(.*)", line).groups()
        if path.startswith("/"):
            found[f"{kind} {path}"] = found.get(f"{kind} {path}", 0) + int(end, 16) - int(begin, 16)
    return found
"""

GAPS = """
def pages(size):
    '''How many pages the next ten blocks of a size lie in.'''
    return len({id(block) >> 12 for block in [bytes(size - 33) for _ in range(10)]})
def make_gaps(size):
    kept = [bytes(size - 33) for _ in range(20000)]
    del kept[::100]
    return kept
"""


def program(*parts: str) -> str:
    """Parts of a program as one argument of exec."""
    return f"exec({''.join(parts)!r})"


def test_children_inherit_how_code_is_mapped() -> None:
    before, after = evaluate(
        program(FAULTS, "before = faults(); _native.share_code(); print(json.dumps([before, faults()]))")
    )
    assert after < before - 1, (before, after)  # 4 fewer in Debian's interpreter, which is one file; 9 with a libpython


def test_code_is_as_read_only_as_before() -> None:
    before, after = evaluate(program(MAPPED, "a = mapped(); _native.share_code(); print(json.dumps([a, mapped()]))"))
    assert before == after
    assert not [name for name in after if re.match("rwx", name)]


@pytest.mark.parametrize("size", [64, 512, 800])
def test_what_comes_after_the_filling_lies_together(size: int) -> None:
    steps = f"kept = make_gaps({size}); before = pages({size}); _native.fill_gaps(); "
    before, after = evaluate(program(GAPS, steps, f"print(json.dumps([before, pages({size})]))"))
    assert before > 5
    assert after <= 3 + 10 * size // 4096
