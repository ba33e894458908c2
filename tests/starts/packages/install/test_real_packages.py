"""The public index, or the one that this machine is set up for: what people really write."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from uv import find_uv_bin

from sockd.base.config import PackageConfig
from sockd.base.errors import ResolveFailed
from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.starts.packages.install_cache import InstallCache

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory whose uv cache serves all tests with real packages."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture
async def cache(shared: Path, tmp_path: Path) -> AsyncIterator[InstallCache]:
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
        ("numpy==2.3.5", "import numpy; print(numpy.linalg.inv([[2.0]])[0][0])", "0.5"),
    ],
)  # fmt: skip
async def test_it_imports(
    cache: InstallCache, shared: Path, tmp_path: Path, requirements: str, code: str, printed: str
) -> None:
    closure = await cache.resolve(requirements)
    await cache.ensure(closure)
    paths = [str(shared / tmp_path.name / key) for key in sorted(closure.keys)]
    program = f"import sys; sys.path[:0] = {paths!r}\n{code}"
    command = [OWN_PYTHON.executable, "-I", "-S", "-B", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert (ran.stdout.strip(), ran.stderr) == (printed, "")


async def test_a_pth_file_is_recorded(cache: InstallCache) -> None:
    closure = await cache.resolve("setuptools==75.1.0")
    await cache.ensure(closure)
    (key,) = closure.keys
    assert cache.metadata(key).pth_files == ("distutils-precedence.pth",)


async def test_the_chosen_wheel_is_the_one_that_uv_installs(cache: InstallCache, tmp_path: Path) -> None:
    """The choice among several wheels is ours; uv's own, from the same lock file, must be equal."""
    closure = await cache.resolve("markupsafe\nprotobuf\nlxml==6.0.2\ncharset-normalizer")
    installed = {}
    for each in closure.distributions:
        target = tmp_path / each.name
        command = [find_uv_bin(), "-q", "pip", "install", "--dry-run", "-v", "--no-deps", "--only-binary=:all:"]
        command += [f"--python={OWN_PYTHON.executable}", f"--target={target}", f"{each.name}=={each.version}"]
        words = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
        installed[each.name] = each.url.rpartition("/")[2] in words
    assert installed == dict.fromkeys(installed, True)


async def test_a_package_without_wheel_is_refused(cache: InstallCache) -> None:
    with pytest.raises(ResolveFailed, match=r"sgmllib3k==1\.0\.0 has no usable wheels"):
        await cache.resolve("sgmllib3k==1.0.0")
