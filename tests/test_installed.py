"""The built distributions, installed into fresh environments, run from outside the checkout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sockd.client.cli.source.files import FILES
from tests.daemon.kernel_view import wait_readable

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).parent.parent
OURS = {
    "sockd": "sockd",
    "initscripts": "sockd_initscripts",
    "storage_lib": "sockd_storage_lib",
    "zygote": "sockd_zygote",
}
"""Packages of a wheel by their folders in the repository."""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--out-dir", str(directory), str(ROOT))
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    return next(built.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel and what the fault-injection suite and the benchmarks need."""
    return environment(tmp_path_factory.mktemp("environment"), f"{wheel}[bench,selftest]")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel alone."""
    return environment(tmp_path_factory.mktemp("bare"), str(wheel))


@pytest.fixture
def run(installed: Path) -> Run:
    return lambda *arguments, **options: command(installed / "sockd", *arguments, **options)


@pytest.fixture(scope="module")
def state(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a detached worker."""
    state = tmp_path_factory.mktemp("installed") / "state"
    up = command(installed / "sockd", "up", "--detach", "--listen", "127.0.0.1:0", "--state-dir", str(state))
    pidfd = os.pidfd_open(int(re.search(r"with pid (\d+)", up.stdout)[1]))  # type: ignore[index]
    try:
        yield state
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        wait_readable(pidfd, 30)
        os.close(pidfd)


def uv(*arguments: str, **variables: str) -> str:
    """What it said. Raises CalledProcessError with that."""
    done = subprocess.run(
        [sys.executable, "-m", "uv", *arguments],
        env={**outside(), **variables},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or variables, done.stdout
    return done.stdout


def environment(directory: Path, *requirements: str) -> Path:
    venv.create(directory, system_site_packages=False, with_pip=False)
    uv("pip", "install", "--python", str(directory / "bin/python"), *requirements)
    return directory / "bin"


def outside() -> dict[str, str]:
    """Our variables without those that lead to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def command(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(list(map(str, words)), cwd="/", env=outside(), capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_wheel_serves_all_pythons_and_brings_no_common_names(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(OURS.values())
    for path in FILES.values():
        assert any(name.startswith(f"sockd/source_tree/{path}") for name in names), path


def test_a_wheel_carries_all_tests_and_benchmarks(wheel: Path, sdist: Path) -> None:
    """git is asked: a folder that is added later must be in both."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no git checkout")
    names = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    ignored = (".ci", ".gitignore", "Makefile", "MANIFEST.in", "setup", "scripts/", "vm/")
    for path in (each for each in listed if (ROOT / each).is_file() and not each.startswith(ignored)):
        if not path.endswith(".gitignore") and not path.startswith("sockd/linux/native/"):
            folder, slash, rest = path.partition("/")
            own = OURS[folder] + slash + rest if folder in OURS else f"sockd/source_tree/{path}"
            assert own in names or path in ("storage_lib/README.md", "storage_lib/pyproject.toml"), path
            assert path in packed, path


def test_an_installed_worker_serves(run: Run, state: Path, tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello/handler.py").write_text("import sys\ndef handler(event, context): return sys.prefix\n")
    run("deploy", tmp_path / "hello", "--state-dir", state)
    assert json.loads(run("invoke", "hello", "-d", "{}", "--state-dir", state).stdout)
    run("init", tmp_path / "made")
    run("deploy", tmp_path / "made", "--state-dir", state)
    run("invoke", "made", "-d", "{}", "--state-dir", state)
    run("schedule", "add", "hello", "rate(5 minutes)", "--state-dir", state, check=False)
    run("doctor", "--state-dir", state, check=False)


def test_an_installed_selftest_runs(run: Run) -> None:
    said = run("selftest", "--case", "A2").stdout
    assert re.search(r"^A2 +ok ", said, re.MULTILINE), said


def test_an_installed_benchmark_runs(run: Run, tmp_path: Path) -> None:
    assert "cold_start" in run("bench").stdout
    run("bench", "primitives", "--quick", "--json", tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text())["rows"]


def test_what_is_missing_names_the_packages_of_its_extra(bare: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for words, extra in ((("selftest",), "selftest"), (("bench", "primitives"), "bench"), (("dev", "/tmp"), "watch")):
        done = command(bare / "sockd", *words, check=False)
        assert done.returncode == 2 or words[0] == "dev", done.stderr
        packages = [each for each in extras[extra] if not each.startswith("sockd")]
        assert all(f"'{each}'" in done.stderr for each in packages), done.stderr


def test_an_sdist_has_its_native_parts(bare: Path) -> None:
    """`uv build` makes the wheel of the sdist, as an installation of the sdist would."""
    command(bare / "python", "-c", "import sockd_zygote._native, sockd.linux._hrtick")
    assert command(bare / "sockd", "files", "unit").stdout.strip().endswith("sockd.service")


def test_an_sdist_without_a_compiler_says_what_to_install(sdist: Path, tmp_path: Path) -> None:
    said = uv("build", "--wheel", "--out-dir", str(tmp_path), str(sdist), CC="/nonexistent/cc")
    assert "apt-get install gcc libc6-dev python3-dev" in said
