"""Installs that fail: typed, in the installer's words, and nothing left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sockd.base.config import PackageConfig
from sockd.base.errors import Draining, InstallFailed, PackagesFailed
from sockd.starts.packages.distribution import Closure, Distribution
from sockd.starts.packages.install_cache import InstallCache
from tests.starts.packages.install.store import NOISE, Opened, nothing_half_done, stored
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


@pytest.fixture
def published(index: PackageIndex) -> Callable[..., Closure]:
    """A closure of one wheel on the index, which need not be the one that it says."""

    def publish(file: tuple[str, bytes], digest: str = "") -> Closure:
        name, version = file[0].split("-")[:2]
        digest = digest or index.add(file)
        return Closure.of([Distribution(name=name, version=version, digest=digest, url=index.file_url(file[0]))])

    return publish


async def test_a_wheel_that_changed_on_the_index_is_refused(
    cache: InstallCache, index: PackageIndex, state: Path, published: Callable[..., Closure]
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
    opened: Opened, state: Path, published: Callable[..., Closure], file: tuple[str, bytes], words: str
) -> None:
    async with opened(max_package_mb=1) as cache:
        with pytest.raises(InstallFailed) as failure:
            await cache.ensure(published(file))
    assert words in failure.value.message and str(state) not in failure.value.message
    assert stored(state) == set() and nothing_half_done(state)


async def test_a_path_in_a_wheel_leads_nowhere_else(
    cache: InstallCache, state: Path, published: Callable[..., Closure]
) -> None:
    closure = published(wheel("lib", "1.0", {"lib.py": "", "../../escaped.py": "", "/tmp/escaped.py": ""}))
    await cache.ensure(closure)
    assert not list(state.rglob("escaped.py")) and not Path("/tmp/escaped.py").exists()
    assert stored(state) == closure.keys


async def test_a_link_in_a_wheel_reads_no_host_file(
    cache: InstallCache, state: Path, published: Callable[..., Closure], tmp_path: Path
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
    cache: InstallCache, index: PackageIndex, state: Path
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


async def test_a_preload_that_fails_in_part_installs_the_rest(
    cache: InstallCache, index: PackageIndex, state: Path
) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    index.add(wheel("lib", "2.0", {"lib.py": ""}))
    assert [each.keys for each in await cache.preload(["lib<2"])] == [stored(state)]
    with pytest.raises(PackagesFailed, match="nothing-like-this"):
        await cache.preload(["nothing-like-this", "lib"])
    assert len(stored(state)) == 2


async def test_an_install_that_takes_too_long_is_killed_and_leaves_nothing(
    opened: Opened, index: PackageIndex, state: Path, published: Callable[..., Closure]
) -> None:
    file = wheel("lib", "1.0", {"noise": NOISE, "lib.py": ""})
    index.stalled.add(file[0])
    async with opened(install_deadline_s=1) as cache:
        with pytest.raises(InstallFailed, match="longer than 1 s"):
            await cache.ensure(published(file))
        assert not index.stalling.is_set() or index.abandoned.wait(5)
        assert stored(state) == set() and nothing_half_done(state)


async def test_closing_kills_what_runs_and_leaves_nothing(
    cache: InstallCache, index: PackageIndex, state: Path, published: Callable[..., Closure]
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
    index: PackageIndex, state: Path, published: Callable[..., Closure]
) -> None:
    file = wheel("lib", "1.0", {"noise": NOISE, "lib.py": ""})
    index.stalled.add(file[0])
    program = (
        "import sys, uvloop\nfrom pathlib import Path\n"
        "from sockd.starts.packages.install_cache import *\nfrom sockd.starts.packages.distribution import Closure\n"
        "async def main(state):\n"
        "    cache = InstallCache(PackageConfig(), state / 'packages', state / 'tmp')\n"
        "    await cache.recover()\n"
        "    await cache.ensure(Closure.from_json(sys.argv[2]))\n"
        "uvloop.run(main(Path(sys.argv[1])))\n"
    )
    command = [sys.executable, "-c", program, str(state), published(file).to_json().decode()]
    with subprocess.Popen(command, cwd=Path(__file__).parents[4]) as daemon:
        assert await asyncio.to_thread(index.stalling.wait, 15)
        daemon.kill()
    assert index.abandoned.wait(5)
    cache = InstallCache(PackageConfig(), state / "packages", state / "tmp")
    await cache.recover()
    assert stored(state) == set() and nothing_half_done(state)
