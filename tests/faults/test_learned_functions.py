"""What functions with packages do in first and in learned starts alike: start interpreters, import very much."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import COMMAND, RunningDaemon
from tests.faults.packages import SLOW, deploy, package
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import wheel

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
def test_interpreters_that_a_function_starts_find_its_packages(worker: PrivateWorker, happened: Happened) -> None:
    settings = {"reuse_sandbox": False, "memory_mb": 256, "timeout_s": 20}
    deploy(worker, "children", "has-children", CHILDREN, package("has-children"), **settings)
    first = worker.call("children")
    learned = worker.call_learned("children")
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
    worker = unhurried
    body = SLOW + (
        f"import importlib\nfor _number in range({BIG_MODULES}):\n"
        "    importlib.import_module(f'{__name__}.provider_of_something_{_number}')\n"
        "    try: importlib.import_module(f'optional_dependency_{_number}')\n"
        "    except ImportError: pass\n"
    )
    files: dict[str, str | bytes] = {f"huge/provider_of_something_{number}.py": "" for number in range(BIG_MODULES)}
    code = "import huge, sys\ndef f(event): return len([name for name in sys.modules if name.startswith('huge')])"
    settings = {"reuse_sandbox": False, "memory_mb": 256, "timeout_s": 60, "init_timeout_s": 60}
    deploy(worker, "huge", "huge", code, wheel("huge", "1.0", {**files, "huge/__init__.py": body}), **settings)
    first = worker.invoke("huge")
    worker.daemon.wait_verified(deadline_s=90)
    learned = worker.invoke("huge")
    imported = [worker.json(f"/traces/{each.headers['x-amzn-requestid']}")["imported"] for each in (first, learned)]
    happened(f"imported by the first start: {len(imported[0])} modules or more, by the learned one: {len(imported[1])}")
    assert first.json == learned.json == BIG_MODULES + 1
    assert imported[0] and imported[1] == []


@case(
    "P8",
    "a function sets a variable, then imports a package that does not read it",
    expect="a Zygote with the package serves it, and the variable is the function's",
)
def test_a_variable_that_a_package_does_not_read_ends_no_sharing(worker: PrivateWorker) -> None:
    package_code = "import os\nOTHER = os.environ.get('OTHER_MODE')\n"
    code = "import os\nos.environ['OWN_MODE'] = 'own'\nimport reads_other\ndef f(event): return os.environ['OWN_MODE']"
    deploy(worker, "sets", "reads-other", code, package("reads-other", package_code), reuse_sandbox=False)
    assert worker.call("sets") == "own"
    learned = worker.daemon.run_learned("sets")
    trace = worker.json(f"/traces/{learned.headers['x-amzn-requestid']}")
    assert learned.json == "own"
    assert trace["imported"] == [] and "reads-other" in trace["zygote"]


SMALL_BLOCKS = (
    sys.executable,
    "-c",
    "import sys; from sockd.base import uids as worker_uids; worker_uids.ROOT_UIDS = 704; "
    "from sockd.isolation.farm import uids; uids.LEAST = 2; "
    "from sockd.client.cli.main import main; sys.argv[0] = 'sockd'; main()",
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
    worker = cramped
    code = "import time\nimport p_base\ndef f(event):\n    time.sleep(event)\n    return p_base.__name__\n"
    deploy(worker, "base", "p-base", code, package("p-base"), concurrency=8, memory_mb=64)
    assert worker.call("base", 0) == "p_base"
    assert worker.call_learned("base", 0) == "p_base"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: worker.call("base", 0.5), range(8)))
    assert answers == ["p_base"] * 8
    wheels = [package("p-deep")]
    both = "import p_base, p_deep\ndef f(event): return p_deep.__name__\n"
    worker.deploy("deep", both, requirements=["p-base", "p-deep"], wheels=wheels, reuse_sandbox=False)
    assert worker.call("deep") == "p_deep"
    # One start is not always reason enough: made of the root, this Zygote imports p_base again, which may have looked slow.
    worker.daemon.when(lambda: worker.call("deep") and worker.daemon.node("p-base==1.0", "p-deep==1.0"))
    assert worker.call_learned("deep") == "p_deep"
    starts = {", ".join(sorted(node["packages"])): node["starts"] for node in worker.daemon.nodes()}
    happened(f"starts by Zygote: {starts}")
    assert starts["p-base==1.0"] >= 2 and "p-base==1.0, p-deep==1.0" in starts


STANDARD = """
import asyncio, csv, decimal, email.message, hashlib, http.client, logging, sqlite3, ssl, uuid, zoneinfo
import urllib.request, xml.etree.ElementTree
def f(event):
    return asyncio.run(asyncio.sleep(0, str(decimal.Decimal(1)))), ssl.RAND_bytes(8).hex(), getattr(uuid, "mine", 0)
"""


def used_for_the_standard_library(daemon: RunningDaemon) -> dict[str, Any] | None:
    """The Zygote that has most of its modules, once two starts were from it."""
    nodes = [node for node in daemon.nodes() if node["packages"] == {"the standard library"}]
    largest = max(nodes, key=lambda node: int(node["modules"]), default=None)
    return largest if largest is not None and largest["starts"] >= 2 else None


@case(
    "P8",
    "functions that import the standard library alone: with a variable that ssl reads, a module of that name, zygote=none",
    expect="each is served by a Zygote that has imported what its own start imports, and has random numbers of its own; what "
    "differs is imported by its function, and all with zygote=none",
)
def test_the_standard_library_is_imported_ahead(worker: PrivateWorker, happened: Happened) -> None:
    settings: dict[str, Any] = {"reuse_sandbox": False, "memory_mb": 128}
    worker.deploy("standard", STANDARD, **settings)
    own = worker.call("standard")
    learned, again = worker.call_learned("standard"), worker.call_learned("standard")
    assert own[0] == learned[0] == again[0] == "1" and len({own[1], learned[1], again[1]}) == 3
    # Another case's function may have a Zygote of few modules, which serves until this one's is there.
    node = worker.daemon.when(lambda: worker.call_learned("standard") and used_for_the_standard_library(worker.daemon))
    assert node["modules"] > 50 and node["starts"] >= 2 and node["children"] == []
    worker.deploy("variable", STANDARD, env={"OPENSSL_CONF": "/var/task/none.cnf"}, **settings)
    worker.deploy("shadow", {"f.py": STANDARD, "uuid.py": "mine = 1"}, **settings)
    worker.deploy("without", STANDARD, zygote="none", **settings)
    worker.deploy("only", STANDARD, zygote="stdlib", **settings)
    names = ("variable", "shadow", "without", "only")
    starts = {name: (worker.call(name), worker.daemon.run_learned(name)) for name in names}
    zygotes = {
        name: worker.json(f"/traces/{start.headers['x-amzn-requestid']}")["zygote"]
        for name, (_, start) in starts.items()
    }
    happened(f"served by: {zygotes}")
    for name, (first, start) in starts.items():
        assert first[::2] == start.json[::2] == ["1", int(name == "shadow")]
    assert zygotes["variable"] == zygotes["without"] == "root Zygote"
    assert zygotes["only"] == "the standard library"
    assert worker.cli("ls", "--json").returncode == 0
    kinds = {each["name"]: each["zygote"] for each in worker.json("/functions")}
    assert (kinds["without"], kinds["only"], kinds["standard"]) == ("none", "stdlib", "packages")
