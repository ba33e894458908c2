"""What a Zygote does to its memory for its children's sake: measured, as they would feel it, and otherwise without a trace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.zygote.test_native import evaluate

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")

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

GROWTH = """
def kilobytes(kind):
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith(kind))
def mappings(objects):
    '''How many mappings objects lie in.'''
    from bisect import bisect
    ends = sorted(int(line.split()[0].partition("-")[2], 16) for line in open("/proc/self/maps"))
    return len({bisect(ends, id(each)) for each in objects})
def imported():
    '''As an import leaves them: small objects in arenas, larger ones in malloc's heap; and what is thrown away between.'''
    kept = []
    for number in range(6000):
        kept.append([str(number), b"x" * 900])
        bytes(70000)
    return kept + [{str(number): number} for number in range(20000)]
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


def test_arenas_lie_behind_each_other() -> None:
    apart = "kept = [object() for _ in range(200_000)]; import mmap; wall = []"
    between = "wall.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ)); kept += [object() for _ in range(200_000)]"
    steps = (
        f"_native.gather_arenas(); {apart}\nfor _ in range(5): {between}\nprint(json.dumps(mappings(kept[100_000:])))"
    )
    assert evaluate(program(GROWTH, steps)) == 1


def test_what_was_allocated_becomes_huge_pages_and_stays_as_it_was() -> None:
    steps = (
        "_native.gather_arenas(); _native.separate_growth(); kept = imported(); before = kilobytes('AnonHuge'); "
        "_native.join_pages(); after = kilobytes('AnonHuge'); "
        "print(json.dumps([before, after, kept == imported(), faults()]))"
    )
    before, after, same, faults = evaluate(program(FAULTS, GROWTH, steps))
    assert same
    assert faults > 0  # a child runs
    if not HUGE_PAGES.is_dir():
        pytest.skip("this kernel has no huge pages")
    assert after - before >= 4096  # of either allocator


def test_without_a_region_nothing_is_lost() -> None:
    steps = "_native.separate_growth(); kept = imported(); _native.join_pages(); print(json.dumps(kept == imported()))"
    assert evaluate(program(GROWTH, steps)) is True


def test_who_needs_more_than_the_region_has_the_usual_arenas() -> None:
    steps = "_native.gather_arenas(); kept = [bytes(400) for _ in range(900_000)]; print(json.dumps(mappings(kept)))"
    assert evaluate(program(GROWTH, steps)) > 1


def test_pieces_of_the_stack_leave_no_holes_between_arenas() -> None:
    deep = "def deep(n): return n and deep(n - 1)\nsys.setrecursionlimit(9000)\n"
    between = "\nfor _ in range(5): deep(5000); kept += [object() for _ in range(200_000)]\n"
    steps = f"_native.gather_arenas()\n{deep}kept = [object() for _ in range(200_000)]{between}"
    assert evaluate(program(GROWTH, steps, "print(json.dumps(mappings(kept[100_000:])))")) == 1
