"""Installing: from a closure to directories that sandboxes import from, once each, and nothing else left behind."""

from __future__ import annotations

import asyncio
import json
import marshal
import os
import random
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from uv import find_uv_bin

from sockd.caches.distribution import Closure, Distribution
from sockd.caches.install_cache import InstallCache
from sockd.caches.uv import BASE_PYTHON
from sockd.config import PackageConfig
from sockd.errors import BadRequest, Draining, InstallFailed, PackagesFailed, ResolveFailed
from tests.support.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio

Opened = Callable[..., AbstractAsyncContextManager[InstallCache]]
NOISE = random.Random(1).randbytes(200_000)
"""Data that no wheel makes smaller."""


def unused(key: str) -> tuple[str, ...]:
    return ()


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    try:
        yield index
    finally:
        index.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def opened(state: Path, index: PackageIndex) -> Opened:
    """Opens the install cache of `state`, as a starting daemon does."""

    @asynccontextmanager
    async def open_cache(**settings: object) -> AsyncIterator[InstallCache]:
        config = msgspec.convert({"index_url": index.url, **settings}, PackageConfig)
        cache = InstallCache(config, state / "packages", state / "tmp")
        await cache.recover()
        try:
            yield cache
        finally:
            await cache.aclose()

    return open_cache


@pytest.fixture
async def cache(opened: Opened) -> AsyncIterator[InstallCache]:
    async with opened() as cache:
        yield cache


def nothing_half_done(state: Path) -> bool:
    """Whether tmp and uv's cache hold nothing that is neither published nor finished."""
    return os.listdir(state / "tmp" / "packages") == [] and not list((state / "uv-cache").glob(".tmp*"))


def stored(state: Path) -> set[str]:
    return set(os.listdir(state / "packages")) - {".meta"}


def run_with(state: Path, cache: InstallCache, closure: Closure, code: str) -> str:
    """What `code` prints in the base interpreter with the closure on sys.path."""
    paths = [path.replace("/packages", str(state / "packages"), 1) for path in cache.paths(closure)]
    program = f"import sys; sys.path[:0] = {paths!r}\n{code}"
    command = [BASE_PYTHON, "-I", "-B", "-c", program]
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

    async def test_everyone_may_read_and_nobody_may_write_whatever_the_umask(
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


class TestFailures:
    """Typed, in the installer's words, and nothing left behind."""

    @pytest.fixture
    def published(self, index: PackageIndex) -> Callable[..., Closure]:
        """A closure of one wheel on the index, which need not be the one that it says."""

        def publish(file: tuple[str, bytes], digest: str = "") -> Closure:
            name, version = file[0].split("-")[:2]
            digest = digest or index.add(file)
            return Closure.of([Distribution(name=name, version=version, digest=digest, url=index.file_url(file[0]))])

        return publish

    async def test_a_wheel_that_changed_on_the_index_is_refused(
        self, cache: InstallCache, index: PackageIndex, state: Path, published: Callable[..., Closure]
    ) -> None:
        file = wheel("lib", "1.0", {"lib.py": ""})
        index.add(file)
        with pytest.raises(InstallFailed, match=r"lib 1\.0: ") as failure:
            await cache.ensure(published(file, digest="0" * 64))
        assert "Hash mismatch" in failure.value.message and failure.value.status == 503
        assert stored(state) == set() and nothing_half_done(state)

    @pytest.mark.parametrize(
        ("file", "words"),
        [
            (("lib-1.0-py3-none-any.whl", b"not a zip"), "lib 1.0"),
            (wheel("lib", "1.0", {"lib.py": ""}, tag="cp27-cp27m-win32"), "lib 1.0"),
            (wheel("lib", "1.0", {"noise": NOISE * 8}), "over 1 MB"),
            (wheel("lib", "1.0", {f"noise{n}": NOISE for n in range(6)}), "over 1 MB"),
        ],
        ids=["not a zip", "another platform", "one huge file", "many files"],
    )
    async def test_a_wheel_that_must_not_be_used_is_refused(
        self, opened: Opened, state: Path, published: Callable[..., Closure], file: tuple[str, bytes], words: str
    ) -> None:
        async with opened(max_package_mb=1) as cache:
            with pytest.raises(InstallFailed) as failure:
                await cache.ensure(published(file))
        assert words in failure.value.message and str(state) not in failure.value.message
        assert stored(state) == set() and nothing_half_done(state)

    async def test_a_path_in_a_wheel_leads_nowhere_else(
        self, cache: InstallCache, state: Path, published: Callable[..., Closure]
    ) -> None:
        closure = published(wheel("lib", "1.0", {"lib.py": "", "../../escaped.py": "", "/tmp/escaped.py": ""}))
        await cache.ensure(closure)
        assert not list(state.rglob("escaped.py")) and not Path("/tmp/escaped.py").exists()
        assert stored(state) == closure.keys

    async def test_a_link_in_a_wheel_reads_no_host_file(
        self, cache: InstallCache, state: Path, published: Callable[..., Closure], tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret.py"
        secret.write_text("password = 'hunter2'")
        closure = published(wheel("lib", "1.0", {"lib.py": str(secret)}, modes={"lib.py": 0o120777}))
        try:
            await cache.ensure(closure)
        except InstallFailed as failure:
            assert "neither a file nor a directory" in failure.message
        for path in (state / "packages").rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or b"hunter2" not in path.read_bytes()

    async def test_a_missing_wheel_says_so_and_the_others_are_installed(
        self, cache: InstallCache, index: PackageIndex, state: Path
    ) -> None:
        good = Distribution(
            name="good", version="1.0", digest=index.add(wheel("good", "1.0", {"good.py": ""})),
            url=index.file_url("good-1.0-py3-none-any.whl"),
        )  # fmt: skip
        gone = [
            Distribution(name=name, version="1.0", digest="1" * 64, url=index.file_url(f"{name}-1.0-py3-none-any.whl"))
            for name in ("gone", "lost")
        ]
        with pytest.raises(InstallFailed) as failure:
            await cache.ensure(Closure.of([good, *gone]))
        assert "gone 1.0: " in failure.value.message and "lost 1.0: " in failure.value.message
        assert stored(state) == {good.key} and nothing_half_done(state)

    async def test_an_install_that_takes_too_long_is_killed_and_leaves_nothing(
        self, opened: Opened, index: PackageIndex, state: Path, published: Callable[..., Closure]
    ) -> None:
        file = wheel("lib", "1.0", {"noise": NOISE, "lib.py": ""})
        index.stalled.add(file[0])
        async with opened(install_deadline_s=1) as cache:
            with pytest.raises(InstallFailed, match="longer than 1 s"):
                await cache.ensure(published(file))
            assert not index.stalling.is_set() or index.abandoned.wait(5)
            assert stored(state) == set() and nothing_half_done(state)

    async def test_closing_kills_what_runs_and_leaves_nothing(
        self, cache: InstallCache, index: PackageIndex, state: Path, published: Callable[..., Closure]
    ) -> None:
        file = wheel("lib", "1.0", {"noise": NOISE, "lib.py": ""})
        index.stalled.add(file[0])
        waiting = asyncio.create_task(cache.ensure(published(file)))
        assert await asyncio.to_thread(index.stalling.wait, 10)
        await cache.aclose()
        with pytest.raises(Draining):
            await waiting
        assert index.abandoned.wait(5)
        assert stored(state) == set() and nothing_half_done(state)

    async def test_a_daemon_that_is_killed_takes_its_installs_along(
        self, index: PackageIndex, state: Path, published: Callable[..., Closure]
    ) -> None:
        file = wheel("lib", "1.0", {"noise": NOISE, "lib.py": ""})
        index.stalled.add(file[0])
        program = (
            "import sys, uvloop\nfrom pathlib import Path\n"
            "from sockd.caches.install_cache import *\nfrom sockd.caches.distribution import Closure\n"
            "async def main(state):\n"
            "    cache = InstallCache(PackageConfig(), state / 'packages', state / 'tmp')\n"
            "    await cache.recover()\n"
            "    await cache.ensure(Closure.from_json(sys.argv[2]))\n"
            "uvloop.run(main(Path(sys.argv[1])))\n"
        )
        command = [sys.executable, "-c", program, str(state), published(file).to_json().decode()]
        with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as daemon:
            assert await asyncio.to_thread(index.stalling.wait, 15)
            daemon.kill()
        assert index.abandoned.wait(5)
        cache = InstallCache(PackageConfig(), state / "packages", state / "tmp")
        await cache.recover()
        assert stored(state) == set() and nothing_half_done(state)


class TestRecovery:
    """A crash at any moment: the metadata file decides."""

    @pytest.fixture
    async def closure(self, cache: InstallCache, index: PackageIndex) -> Closure:
        """An installed closure of two."""
        index.add(wheel("app", "1.0", {"app.py": ""}, requires=("lib",)))
        index.add(wheel("lib", "1.0", {"lib.py": ""}))
        closure = await cache.resolve("app")
        await cache.ensure(closure)
        return closure

    async def test_a_clean_store_stays_as_it_is(self, cache: InstallCache, closure: Closure, state: Path) -> None:
        assert await cache.recover() == []
        assert stored(state) == closure.keys

    @pytest.mark.parametrize(
        "damage",
        [
            lambda meta, directory: meta.unlink(),
            lambda meta, directory: meta.write_bytes(meta.read_bytes()[:20]),
            lambda meta, directory: meta.write_bytes(b""),
            lambda meta, directory: directory.rename(directory.parent / "elsewhere"),
            lambda meta, directory: meta.write_text(
                json.dumps(json.loads(meta.read_text()) | {"python": "cpython-39"})
            ),
            lambda meta, directory: meta.write_text(json.dumps(json.loads(meta.read_text()) | {"key": "other"})),
        ],
        ids=["unpublished", "torn record", "empty record", "no directory", "another Python", "another key"],
    )
    async def test_half_a_package_is_none_and_is_installed_again(
        self, cache: InstallCache, closure: Closure, state: Path, damage: Callable[[Path, Path], None]
    ) -> None:
        app, lib = closure.distributions
        damage(state / "packages" / ".meta" / f"{app.key}.json", state / "packages" / app.key)
        (state / "tmp" / "packages" / "install-abc").mkdir()
        (state / "tmp" / "packages" / "record.json").touch()
        (state / "uv-cache" / ".tmpabc").mkdir()
        await cache.recover()
        assert stored(state) == {lib.key} and nothing_half_done(state)
        assert os.listdir(state / "packages" / ".meta") == [f"{lib.key}.json"]
        await cache.ensure(closure)
        assert stored(state) == closure.keys

    async def test_a_directory_without_record_is_replaced_by_an_install(
        self, cache: InstallCache, closure: Closure, index: PackageIndex, state: Path
    ) -> None:
        index.add(wheel("late", "1.0", {"late.py": ""}))
        late = await cache.resolve("late")
        (key,) = late.keys
        (state / "packages" / key / "half").mkdir(parents=True)
        await cache.ensure(late)
        assert not (state / "packages" / key / "half").exists()
        await cache.recover()
        assert nothing_half_done(state)


class TestRemoval:
    """Packages that nobody uses go; the disk is free afterwards."""

    @pytest.fixture
    async def closure(self, cache: InstallCache, index: PackageIndex) -> Closure:
        index.add(wheel("lib", "1.0", {"lib.py": "", "noise": NOISE}))
        closure = await cache.resolve("lib")
        await cache.ensure(closure)
        return closure

    async def test_a_removed_package_is_gone_from_store_and_uvs_cache(
        self, cache: InstallCache, closure: Closure, state: Path
    ) -> None:
        (key,) = closure.keys
        await cache.remove(key, users=unused)
        assert stored(state) == set() and cache.snapshot() == [] and nothing_half_done(state)
        assert not list((state / "uv-cache").rglob("noise"))

    async def test_a_package_in_use_stays_and_its_users_are_named(
        self, cache: InstallCache, closure: Closure, state: Path
    ) -> None:
        (key,) = closure.keys
        with pytest.raises(BadRequest, match="used by alpha, beta"):
            await cache.remove(key, users=lambda key: ("beta", "alpha"))
        assert stored(state) == closure.keys
        assert cache.snapshot(lambda key: ("alpha",))[0].used_by == ("alpha",)

    async def test_what_is_not_installed_cannot_be_removed(self, cache: InstallCache) -> None:
        with pytest.raises(BadRequest, match=r"no package \.\./\.\./etc"):
            await cache.remove("../../etc", users=unused)

    async def test_an_install_during_the_removal_wins(self, cache: InstallCache, closure: Closure, state: Path) -> None:
        (key,) = closure.keys
        await asyncio.gather(cache.remove(key, users=unused), cache.ensure(closure))
        assert stored(state) == closure.keys == {each.key for each in cache.snapshot()}

    async def test_a_removal_does_not_break_an_install_that_is_running(
        self, cache: InstallCache, closure: Closure, index: PackageIndex, state: Path
    ) -> None:
        index.add(wheel("lib", "2.0", {"lib.py": "", "noise": NOISE}))
        index.add(wheel("other", "1.0", {"other.py": "", "noise": NOISE}))
        more = await cache.resolve("lib==2.0\nother")
        (key,) = closure.keys
        await asyncio.gather(cache.ensure(more), cache.remove(key, users=unused))
        assert stored(state) == more.keys

    async def test_a_preload_that_fails_in_part_installs_the_rest(
        self, cache: InstallCache, index: PackageIndex, state: Path
    ) -> None:
        index.add(wheel("lib", "1.0", {"lib.py": ""}))
        index.add(wheel("lib", "2.0", {"lib.py": ""}))
        assert [each.keys for each in await cache.preload(["lib<2"])] == [stored(state)]
        with pytest.raises(PackagesFailed, match="nothing-like-this"):
            await cache.preload(["nothing-like-this", "lib"])
        assert len(stored(state)) == 2


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory whose uv cache serves all tests with real packages."""
    return tmp_path_factory.mktemp("packages")


class TestRealPackages:
    """The public index, or the one that this machine is set up for: what people really write."""

    @pytest.fixture
    async def cache(self, shared: Path, tmp_path: Path) -> AsyncIterator[InstallCache]:
        cache = InstallCache(PackageConfig(), shared / tmp_path.name, shared / "tmp" / tmp_path.name)
        await cache.recover()
        yield cache
        await cache.aclose()

    @pytest.mark.parametrize(
        ("requirements", "code", "printed"),
        [
            ("six==1.15.0", "import six; print(six.__version__)", "1.15.0"),
            ("six==1.16.0", "import six; print(six.__version__)", "1.16.0"),
            ("certifi", "import certifi, os; print(os.path.getsize(certifi.where()) > 100000)", "True"),
            (
                "zope.event\nzope.interface",
                "import zope.event, zope.interface; print(len(zope.__path__), zope.interface.Interface.__name__)",
                "2 Interface",
            ),
            (
                "charset-normalizer==3.4.0",
                "import importlib.metadata as m; print([e.name for e in m.entry_points(group='console_scripts')])",
                "['normalizer']",
            ),
            ("numpy==2.1.3", "import numpy; print(numpy.linalg.inv([[2.0]])[0][0])", "0.5"),
        ],
    )  # fmt: skip
    async def test_it_imports(
        self, cache: InstallCache, shared: Path, tmp_path: Path, requirements: str, code: str, printed: str
    ) -> None:
        closure = await cache.resolve(requirements)
        await cache.ensure(closure)
        paths = [str(shared / tmp_path.name / key) for key in sorted(closure.keys)]
        program = f"import sys; sys.path[:0] = {paths!r}\n{code}"
        command = [BASE_PYTHON, "-I", "-S", "-B", "-c", program]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert (ran.stdout.strip(), ran.stderr) == (printed, "")

    async def test_a_pth_file_is_recorded(self, cache: InstallCache) -> None:
        closure = await cache.resolve("setuptools==75.1.0")
        await cache.ensure(closure)
        (key,) = closure.keys
        assert cache.metadata(key).pth_files == ("distutils-precedence.pth",)

    async def test_the_chosen_wheel_is_the_one_that_uv_installs(self, cache: InstallCache, tmp_path: Path) -> None:
        """The choice among several wheels is ours; uv's own, from the same lock file, must be equal."""
        closure = await cache.resolve("markupsafe\nprotobuf\nlxml==5.3.0\ncharset-normalizer")
        installed = {}
        for each in closure.distributions:
            target = tmp_path / each.name
            command = [find_uv_bin(), "-q", "pip", "install", "--dry-run", "-v", "--no-deps", "--only-binary=:all:"]
            command += [f"--python={BASE_PYTHON}", f"--target={target}", f"{each.name}=={each.version}"]
            words = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
            installed[each.name] = each.url.rpartition("/")[2] in words
        assert installed == dict.fromkeys(installed, True)

    async def test_a_package_without_wheel_is_refused(self, cache: InstallCache) -> None:
        with pytest.raises(ResolveFailed, match=r"sgmllib3k==1\.0\.0 has no usable wheels"):
            await cache.resolve("sgmllib3k==1.0.0")
