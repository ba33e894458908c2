"""What every test gets: a private mount namespace, a balanced ledger, uvloop, no blocking call in the event loop, and no
descriptor closed that a loop watches.

Async tests are marked `anyio` and run on the daemon's own loop. A blocking socket call or sleep inside sockd, while an
event loop runs in the same thread, raises blockbuster.BlockingError; reads and writes of files do not, because those of
cgroup files and the registry are meant to happen there (they take microseconds).
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import signal
import tomllib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import uvloop
from blockbuster import BlockBuster
from hypothesis.internal import charmap

from sockd.linux import mounts
from sockd.linux.event_loop import EventLoop
from tests.support import broken_off, cases, examples, failpoints, leftovers, watched_descriptors
from tests.support.emulated import SLOWER
from tests.support.ledger import Ledger, claim_group
from tests.support.parts import part_of
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs

examples.register_profiles()

LONGEST = ("test_installed.py",)
TESTS = Path(__file__).parent
OF_ROOT = ("abuse", "daemon", "faults")
"""Folders whose tests start workers, which needs root."""
ALL_NEED_ROOT = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.root\b", re.MULTILINE)
"""In the text of a file: that its tests do."""
BLOCKING = ("time.sleep", "socket.", "ssl.", "builtins.input")
GUARD = watched_descriptors.install(is_fatal=False)
_schemas = itertools.count(1)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """The million objects of modules and tests stay: no garbage collection examines them, neither now nor after a test."""
    gc.disable()
    result = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_finish(session: pytest.Session) -> None:
    """Hypothesis makes a table of all characters once for each checkout: not within the timeout of the test that asks first."""
    if any(hasattr(item, "obj") and hypothesis.is_hypothesis_test(item.obj) for item in session.items):
        charmap.charmap()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="", metavar="1/2", help="run the files of one of several parts alone")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(broken_off)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As in a shell's background; the programs that the tests start and end with it would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.geteuid() == 0:
        # Before any thread exists: unshare concerns the calling thread alone, and later ones inherit from it.
        mounts.enter_private_namespace()
        claim_group()
        if not hasattr(config, "workerinput"):  # once for all processes of the run
            leftovers.sweep()
    # libuv keeps a pipe for signals from its first loop to the end of the process; no test is to blame for it.
    uvloop.new_event_loop().close()
    # Python processes that tests start have the guard of event loops, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(watched_descriptors.SITE), os.environ.get("PYTHONPATH")))
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which `make check` runs no test: half of them."""
    if not collection_path.is_relative_to(TESTS):
        return None
    expression, part = config.option.markexpr, config.getoption("part", default="")
    is_other = part and collection_path.match("test_*.py") and collection_path not in files_of_part(part, expression)
    return is_other or is_left_out(collection_path, expression) or None


@functools.cache
def files_of_part(part: str, expression: str) -> frozenset[Path]:
    """The files of one part of all those that are not left out."""
    return part_of((file for file in TESTS.rglob("test_*.py") if not is_left_out(file, expression)), part)


def is_left_out(path: Path, expression: str) -> bool:
    """Whether an expression of marks selects no test of a file, or of a folder."""
    file = path.relative_to(TESTS.parent)
    return ("not slow" in expression and str(file) in slow_files()) or ("not root" in expression and needs_root(file))


def needs_root(file: Path) -> bool:
    """Whether each test of a file, or of a folder, needs root."""
    if file.parts[1:2] and file.parts[1] in OF_ROOT:
        return True
    return file.suffix == ".py" and ALL_NEED_ROOT.search((TESTS.parent / file).read_text()) is not None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what `make check` leaves out, before `-m` selects: tests that start workers, and those of slow files."""
    file = item.path.relative_to(TESTS.parent) if item.path.is_relative_to(TESTS) else item.path
    if file.parts[1:2] and file.parts[1] in OF_ROOT:
        item.add_marker("root")
    if str(file) in slow_files():
        item.add_marker("slow")
    if SLOWER > 1:
        marker = item.get_closest_marker("timeout")
        timeout_s = marker.args[0] if marker else float(item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(timeout_s * SLOWER), append=False)


@functools.cache
def slow_files() -> frozenset[str]:
    """The files of tests/slow.toml, by their paths in the repository."""
    return frozenset(tomllib.loads((TESTS / "slow.toml").read_text())["files"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases.leave_out_long_cases(config, items)
    leave_out_families(config, items)
    # The longest files begin first: there are all the others for another process to run meanwhile.
    items.sort(key=lambda item: item.path.name not in LONGEST)


def leave_out_families(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They are run by `-m families` alone: they fetch and compile for minutes."""
    if "families" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("families")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("families")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A machine that is meant to run everything must not pass because it lacks what the tests need.
    # (The reason alone is looked at, and the words whole: the repository, or a file that lacks, may be in /root.)
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and os.environ.get("SOCKD_CI") == "1" and "needs root" in reason:
        report.outcome = "failed"
    return report


@pytest.fixture(autouse=True)
def ledger() -> Iterator[Ledger]:
    """The count before the test; checked after it, and whenever the test calls `ledger.check()`."""
    ledger = Ledger()
    yield ledger
    ledger.check()


@pytest.fixture(autouse=True)
def loop_guard() -> Iterator[watched_descriptors.Guard]:
    """Fails the test for what its loops' callbacks did: an error that is raised there is only logged."""
    yield GUARD
    found = GUARD.take_violations()
    assert not found, "\n".join(found)


@pytest.fixture(autouse=True, scope="session")
def _no_blocking_calls() -> Iterator[None]:
    # By the beginnings of paths: `sockd_zygote` would count as `sockd`.
    others = ["sockd_initscripts", "sockd_storage_lib", "sockd_zygote"]
    detector = BlockBuster(scanned_modules=["sockd"], excluded_modules=others)
    chosen = [function for name, function in detector.functions.items() if name.startswith(BLOCKING)]
    for function in chosen:
        function.activate()
    yield
    for function in chosen:
        function.deactivate()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The daemon's own event loop."""
    return "asyncio", {"loop_factory": EventLoop}


@pytest.fixture
def nth_call() -> Callable[..., Iterator[int]]:
    """`for n in nth_call(syscalls, "mount"):` runs its body until n calls were not needed; see support/failpoints.py."""
    return failpoints.nth_call


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that all tests of this process share."""
    with postgres_server(programs()) as server:
        yield server


@pytest.fixture
def postgres_dsn(request: pytest.FixtureRequest, ledger: Ledger) -> str:
    """The connection string of an empty schema."""
    with ledger.replacing():  # the first test that asks starts the server, and does not end it
        server: PostgresServer = request.getfixturevalue("postgres")
    schema = f"test_{next(_schemas)}"
    server.run(f"CREATE SCHEMA {schema}")
    return server.dsn(schema)
