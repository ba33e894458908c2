"""Installing: from a closure to directories that sandboxes import from, once each."""

from __future__ import annotations

import asyncio
import marshal
import os
import stat
import subprocess
from pathlib import Path

import pytest

from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from tests.starts.packages.install.store import NOISE, Opened, nothing_half_done, stored
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


def run_with(state: Path, cache: InstallCache, closure: Closure, code: str) -> str:
    """What `code` prints in the base interpreter with the closure on sys.path."""
    paths = [path.replace("/packages", str(state / "packages"), 1) for path in cache.paths(closure)]
    program = f"import sys; sys.path[:0] = {paths!r}\n{code}"
    command = [OWN_PYTHON.executable, "-I", "-B", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


class TestInstalled:
    """What a sandbox gets."""

    async def test_a_closure_is_imported_from_directories_of_its_own(
        self, cache: InstallCache, index: PackageIndex, state: Path
    ) -> None:
        index.add(wheel("app", "1.0", {"app/__init__.py": "import lib; word = lib.word"}, requires=("lib",)))
        index.add(wheel("lib", "2.0", {"lib.py": "word = 'hello'"}))
        closure = await cache.resolve("app")
        lines: list[str] = []
        await cache.ensure(closure, progress=lines.append)
        assert stored(state) == closure.keys
        assert run_with(state, cache, closure, "import app; print(app.word)") == "hello"
        assert [line.split(":")[0] for line in lines[:2]] == ["installing app 1.0", "installing lib 2.0"]
        assert len(lines) == 4 and nothing_half_done(state)

    async def test_versions_live_side_by_side(self, cache: InstallCache, index: PackageIndex, state: Path) -> None:
        for version in ("1.0", "2.0"):
            index.add(wheel("lib", version, {"lib.py": f"version = {version!r}"}))
        for version in ("1.0", "2.0"):
            closure = await cache.resolve(f"lib=={version}")
            await cache.ensure(closure)
            assert run_with(state, cache, closure, "import lib; print(lib.version)") == version
        assert len(stored(state)) == 2

    async def test_bytecode_is_there_and_names_the_sandboxs_paths(
        self, cache: InstallCache, index: PackageIndex, state: Path
    ) -> None:
        index.add(wheel("lib", "1.0", {"lib/__init__.py": "", "lib/deep/er.py": "x = 1", "lib/template.py": "{{ x }}"}))
        closure = await cache.resolve("lib")
        await cache.ensure(closure)
        (key,) = closure.keys
        (compiled,) = (state / "packages" / key / "lib" / "deep" / "__pycache__").iterdir()
        data = compiled.read_bytes()
        assert int.from_bytes(data[4:8], "little") == 0b01  # by hash, not checked (PEP 552)
        assert marshal.loads(data[16:]).co_filename == f"/packages/{key}/lib/deep/er.py"

    async def test_everyone_may_read_and_no_one_may_write_whatever_the_umask(
        self, cache: InstallCache, index: PackageIndex, state: Path
    ) -> None:
        files = {"lib/__init__.py": "", "lib/data/a.txt": "x", "lib-1.0.data/scripts/tool": "#!python\n"}
        index.add(wheel("lib", "1.0", files, modes={"lib/data/a.txt": 0o100600, "lib/__init__.py": 0o104777}))
        before = os.umask(0o077)
        try:
            closure = await cache.resolve("lib")
            await cache.ensure(closure)
        finally:
            os.umask(before)
        (key,) = closure.keys
        root = state / "packages" / key
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.rglob("*"))}
        assert set(modes.values()) <= {0o755, 0o644}
        assert modes[root] == 0o755 and modes[root / "lib" / "data" / "a.txt"] == 0o644
        assert not list(root.rglob(".lock"))

    async def test_what_sandboxes_must_know_is_recorded(
        self, cache: InstallCache, opened: Opened, index: PackageIndex
    ) -> None:
        files: dict[str, str | bytes] = {
            "single.py": "",
            "_native.cpython-311-x86_64-linux-gnu.so": b"",
            "spaced/part/x.py": "",
            "pack/__init__.py": "",
            "data_only/x.txt": "",
            "lib.pth": "import os",
            "lib.libs/libz.so.1": b"",
            "lib-1.0.data/data/share/example.py": "",
            "lib-1.0.data/scripts/tool": "#!python\n",
        }
        index.add(wheel("lib", "1.0", files))
        index.add(wheel("plain", "1.0", {"plain.py": ""}))
        closure = await cache.resolve("lib\nplain")
        await cache.ensure(closure)
        lib, plain = (cache.metadata(each.key) for each in closure.distributions)
        assert set(lib.modules) - {"_native"} == {"single", "spaced", "pack"}
        assert (lib.pth_files, lib.has_bin, plain.pth_files, plain.has_bin) == (("lib.pth",), True, (), False)
        assert cache.pth_paths(closure) == [f"/packages/{lib.key}"]
        assert cache.bin_paths(closure) == [f"/packages/{lib.key}/bin"]
        assert cache.paths(closure) == [f"/packages/{lib.key}", f"/packages/{plain.key}"]
        async with opened() as restarted:
            assert restarted.metadata(lib.key) == lib
            assert [each.key for each in restarted.snapshot()] == [lib.key, plain.key]


class TestSharing:
    """Many who want the same."""

    async def test_concurrent_callers_install_once(self, cache: InstallCache, index: PackageIndex, state: Path) -> None:
        index.add(wheel("lib", "1.0", {"lib.py": "", "noise": NOISE}))
        closure = await cache.resolve("lib")
        index.requests.clear()
        await asyncio.gather(*(cache.ensure(closure) for _ in range(20)))
        assert sum(path.startswith("/files/") for path in index.requests) <= 1
        assert stored(state) == closure.keys

    async def test_what_is_installed_runs_nothing_and_needs_no_index(
        self, cache: InstallCache, index: PackageIndex
    ) -> None:
        index.add(wheel("lib", "1.0", {"lib.py": ""}))
        closure = await cache.resolve("lib")
        await cache.ensure(closure)
        index.requests.clear()
        ensured = cache.ensure(closure)
        with pytest.raises(StopIteration):  # done without waiting once
            ensured.send(None)
        assert index.requests == []

    async def test_a_cancelled_caller_does_not_stop_the_install(
        self, cache: InstallCache, index: PackageIndex, state: Path
    ) -> None:
        index.add(wheel("lib", "1.0", {"lib.py": ""}))
        closure = await cache.resolve("lib")
        begun = asyncio.Event()
        caller = asyncio.create_task(cache.ensure(closure, progress=lambda line: begun.set()))
        await begun.wait()
        other = asyncio.create_task(cache.ensure(closure))
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await other
        assert stored(state) == closure.keys
