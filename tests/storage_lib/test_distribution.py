"""`sockd-storage` as it is installed, and what importing it costs a sandbox."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage_lib.conftest import LIBRARY
from tests.storage_lib.engine_end import EngineEnd

REPOSITORY = LIBRARY.parent
MOST_MODULES = 8
"""That it adds to those of a Zygote: 6, and what another Python may need."""
OFF_THE_DIET = {
    "boto3",
    "ctypes",
    "dataclasses",
    "threading",
    "typing",
    "uuid",
    "mmap",
    "logging",
    "concurrent.futures",
}
ZYGOTE = "from sockd_zygote import fork_server, linux, protocol, rehearsal; import site"


def run_after_zygote(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run code after what every Zygote has imported."""
    start = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(LIBRARY)!r}]; {ZYGOTE}; {code}"
    command = [sys.executable, "-I", "-S", *options, "-c", start]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, built and installed from a copy: a build leaves its own directories beside the source."""
    source, target = tmp_path_factory.mktemp("source") / "storage_lib", tmp_path_factory.mktemp("target")
    shutil.copytree(LIBRARY, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    run = subprocess.run(command, timeout=100, cwd="/", capture_output=True, text=True)
    if "build-system.requires" in run.stderr:
        pytest.skip(f"no index to get setuptools from: {run.stderr}")
    assert run.returncode == 0, run.stderr
    return target


@pytest.mark.timeout(120)
def test_what_is_installed_works_alone(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if "info" not in path.name and path.name[0] not in "._"}
    assert names == {"storage.py", "nosql.py", "sockd_initscript", "sockd_storage"}
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); import storage, nosql, sockd_initscript.adopt;"
        " import sockd_storage.network, sockd_storage.listing;"
        " assert storage.storage.get_instance() is storage.get_instance();"
        " assert nosql.nosql.get_instance() and sockd_initscript.link() is None"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_importing_it_costs_a_sandbox_next_to_nothing() -> None:
    code = "before = set(sys.modules); import storage; print(*set(sys.modules) - before)"
    imported = set(run_after_zygote(code).stdout.split())
    assert "storage" in imported
    assert not OFF_THE_DIET & imported
    assert len(imported) <= MOST_MODULES, imported


def test_a_function_that_uses_its_link_stays_on_the_diet() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine = EngineEnd(ours)
    with theirs:
        engine.message(0, b"x" * 300_000, "s3.GetObject", "bkt", "x", own=True)
        engine.checked(0, same=True)  # asked for where sockets are not counted, as in this cgroup
        code = (
            "import os, json; from sockd_zygote.handlers import egress; egress.begin();"
            " before = set(sys.modules); import storage;"
            " view = storage.download('bkt', 'x');"
            " assert len(view) == 300_000; print(*set(sys.modules) - before)"
        )
        start = f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}, {str(LIBRARY)!r}]; {ZYGOTE}; {code}"
        out = subprocess.run(
            [sys.executable, "-S", "-c", start],
            env={**os.environ, "SOCKD_INITSCRIPT_FD": f"{theirs.fileno()}:{os.fstat(theirs.fileno()).st_ino}"},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    engine.close()
    foreign = {
        name for name in out.split() if name.partition(".")[0] not in ("storage", "sockd_initscript", "sockd_storage")
    }
    assert foreign == {"mmap"}
