"""What functions with packages do in first and in learned starts alike: start interpreters, import very much."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import COMMAND
from tests.faults.packages import SLOW, deploy, package
from tests.support.cases import Happened, case
from tests.support.package_index import wheel
from tests.support.private_worker import PrivateWorker

pytestmark = pytest.mark.root

CHILDREN = """
import multiprocessing, os, subprocess, sys
import has_children

def work(number):
    import has_children
    return has_children.__file__, number * number

def f(event):
    code = "import has_children, f; print(has_children.__file__)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/tmp")
    answer = [child.stdout.strip() or child.stderr]
    for method in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            answer.append(pool.map(work, [3])[0])
    options = [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", "import has_children"]
    return answer, subprocess.run(options).returncode, os.environ["PYTHONPATH"], sys.path
"""
BIG_MODULES = 3000


@pytest.fixture
def unhurried(tmp_path: Path) -> Iterator[PrivateWorker]:
    """A worker with the deadlines of every worker: the folder's are shorter than so many imports may take."""
    worker = PrivateWorker(tmp_path, zygotes="")
    try:
        yield worker
    finally:
        worker.close()


@case(
    "P8",
    "a function starts interpreters: sys.executable, multiprocessing's three ways, with its own options",
    expect="each finds the function's packages and code, in a first and a learned start; sys.path is as it was",
)
def test_interpreters_that_a_function_starts_find_its_packages(house: PrivateWorker, happened: Happened) -> None:
    settings = {"reuse_sandbox": False, "memory_mb": 256, "timeout_s": 20}
    deploy(house, "children", "has-children", CHILDREN, package("has-children"), **settings)
    first = house.call("children")
    house.daemon.when(lambda: house.daemon.node("has-children==1.0"), deadline_s=house.patience_s)
    learned = house.call("children")
    happened(f"first: {first}; learned: {learned}")
    answers, status, variable, path = first
    where = answers[0]
    assert where.startswith("/packages/has-children-1.0-") and where.endswith("/has_children.py")
    assert answers[1:] == [[where, 9]] * 3 and status == 0
    directory = where.rpartition("/")[0]
    assert variable == f"/var/task:{directory}" and path[:2] == ["/var/task", directory]
    assert learned == first


@case(
    "P8",
    f"a package of {BIG_MODULES} modules that tries {BIG_MODULES} others which are not there",
    expect="a learned start has nothing left to import",
)
@pytest.mark.timeout(180)
def test_a_package_of_thousands_of_modules_is_learned(unhurried: PrivateWorker, happened: Happened) -> None:
    house = unhurried
    body = SLOW + (
        f"import importlib\nfor _number in range({BIG_MODULES}):\n"
        "    importlib.import_module(f'{__name__}.provider_of_something_{_number}')\n"
        "    try: importlib.import_module(f'optional_dependency_{_number}')\n"
        "    except ImportError: pass\n"
    )
    files: dict[str, str | bytes] = {f"huge/provider_of_something_{number}.py": "" for number in range(BIG_MODULES)}
    code = "import sys\nbefore = len(sys.modules)\nimport huge\nhere = len(sys.modules) - before\ndef f(event): return here"
    settings = {"reuse_sandbox": False, "memory_mb": 256, "timeout_s": 60, "init_timeout_s": 60}
    deploy(house, "huge", "huge", code, wheel("huge", "1.0", {**files, "huge/__init__.py": body}), **settings)
    first = house.call("huge")
    house.daemon.when(lambda: house.daemon.node("huge==1.0"), deadline_s=30)
    learned = house.call("huge")
    happened(f"imported by the first start: {first} modules, by the learned one: {learned}")
    assert first > BIG_MODULES and learned == 0


SMALL_BLOCKS = (
    sys.executable,
    "-c",
    "import sys; from sockd.plain import uids as worker_uids; worker_uids.ROOT_UIDS = 1024; "
    "from sockd.farm import uids; uids.LEAST = 2; from sockd.cli.main import main; sys.argv[0] = 'sockd'; main()",
    *COMMAND[3:],
)
"""A worker whose Zygotes have uids for 3 sandboxes each, and none for children."""


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[PrivateWorker]:
    worker = PrivateWorker(tmp_path, command=SMALL_BLOCKS)
    try:
        yield worker
    finally:
        worker.close()


@case(
    "P9",
    "more sandboxes at a time than a Zygote has uids for; packages whose Zygote would be too deep for its block",
    expect="each start succeeds, from the next Zygote that can; the deeper Zygote is made of another parent",
)
def test_starts_succeed_without_uids(cramped: PrivateWorker, happened: Happened) -> None:
    house = cramped
    code = "import time\nimport p_base\ndef f(event):\n    time.sleep(event)\n    return p_base.__name__\n"
    deploy(house, "base", "p-base", code, package("p-base"), concurrency=8, memory_mb=64)
    assert house.call("base", 0) == "p_base"
    house.daemon.when(lambda: house.daemon.node("p-base==1.0"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: house.call("base", 0.5), range(8)))
    assert answers == ["p_base"] * 8
    wheels = [package("p-deep")]
    both = "import p_base, p_deep\ndef f(event): return p_deep.__name__\n"
    house.deploy("deep", both, requirements=["p-base", "p-deep"], wheels=wheels, reuse_sandbox=False)
    assert house.call("deep") == "p_deep"
    # One start is not always reason enough: made of the root, this Zygote imports p_base again, which may have looked slow.
    house.daemon.when(lambda: house.call("deep") and house.daemon.node("p-base==1.0", "p-deep==1.0"))
    assert house.call("deep") == "p_deep"
    starts = {", ".join(sorted(node["packages"])): node["starts"] for node in house.daemon.nodes()}
    happened(f"starts by Zygote: {starts}")
    assert starts["p-base==1.0"] >= 3 and "p-base==1.0, p-deep==1.0" in starts


STANDARD = """
import sys
before = len(sys.modules)
import asyncio, csv, decimal, email.message, hashlib, http.client, logging, sqlite3, ssl, uuid, zoneinfo
import urllib.request, xml.etree.ElementTree
here = len(sys.modules) - before
def f(event):
    return here, asyncio.run(asyncio.sleep(0, str(decimal.Decimal(1)))), ssl.RAND_bytes(8).hex()
"""


@case(
    "P8",
    "functions that import the standard library alone: with a variable that ssl reads, a module of that name, zygote=none",
    expect="a learned start imports nothing and has random numbers of its own; the others import for themselves",
)
def test_the_standard_library_is_imported_ahead(house: PrivateWorker, happened: Happened) -> None:
    settings: dict[str, Any] = {"reuse_sandbox": False, "memory_mb": 128}
    house.deploy("standard", STANDARD, **settings)
    house.call("standard")
    node = house.daemon.when(lambda: house.daemon.node("standard-library"), deadline_s=house.patience_s)
    assert node["children"] == []
    learned, again = house.call("standard"), house.call("standard")
    assert learned[:2] == again[:2] == [0, "1"] and learned[2] != again[2]
    house.deploy("variable", STANDARD, env={"OPENSSL_CONF": "/var/task/none.cnf"}, **settings)
    house.deploy("shadow", {"f.py": STANDARD, "uuid.py": "mine = 1"}, **settings)
    house.deploy("without", STANDARD, zygote="none", **settings)
    house.deploy("only", STANDARD, zygote="stdlib", **settings)
    counts = {name: house.call(name)[0] for name in ("variable", "shadow", "without", "only")}
    happened(f"modules that a start imported itself: learned 0, {counts}")
    assert all(counts[name] > 50 for name in ("variable", "shadow", "without")) and counts["only"] == 0
    assert house.cli("ls", "--json").returncode == 0
    kinds = {each["name"]: each["zygote"] for each in house.json("/functions")}
    assert (kinds["without"], kinds["only"], kinds["standard"]) == ("none", "stdlib", "packages")
