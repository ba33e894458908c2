"""scripts/dist: what it builds, and what dpkg makes of the Debian package, below a directory and with a database of its own."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd import __version__
from sockd.base.config import Config
from tests.test_installed import outside

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent
ENABLED = "etc/systemd/system/multi-user.target.wants/sockd.service"
PYTHON = "opt/sockd/bin/python"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with all that is built."""
    if shutil.which("dpkg-deb") is None or not Path("/usr/bin/python3").exists():
        pytest.skip("this is no Debian")
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run([ROOT / "scripts/dist", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def host(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root directory of a host on which the package is installed."""
    root = tmp_path_factory.mktemp("host")
    for name in ("updates", "info"):
        (root / "var/lib/dpkg" / name).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    dpkg(root, "--install", *map(str, dist.glob("*.deb")))
    yield root
    shutil.rmtree(root)


def dpkg(root: Path, *words: str) -> None:
    """What the package depends on is on the real host. Its scripts run there, and write to DPKG_ROOT."""
    command = ["dpkg", f"--root={root}", "--force-script-chrootless", "--force-depends", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheels_an_sdist_and_a_package_are_built(dist: Path) -> None:
    names = sorted(path.name for path in dist.iterdir())
    assert names == [
        f"sockd-{__version__}-cp311-abi3-linux_aarch64.whl",
        f"sockd-{__version__}-cp311-abi3-linux_x86_64.whl",
        f"sockd-{__version__}.tar.gz",
        f"sockd_{__version__}_amd64.deb",
    ]


@pytest.mark.parametrize(("architecture", "machine"), [("x86_64", 62), ("aarch64", 183)])
def test_a_wheel_has_native_parts_of_its_architecture(dist: Path, architecture: str, machine: int) -> None:
    """Args: machine: e_machine in elf(5)."""
    (wheel,) = dist.glob(f"*{architecture}.whl")
    with zipfile.ZipFile(wheel) as files:
        parts = {name: files.read(name) for name in files.namelist() if name.endswith(".so")}
    assert sorted(parts) == [
        "sockd/linux/_hrtick.abi3.so",
        "sockd/linux/_procfs.abi3.so",
        "sockd_zygote/_native.abi3.so",
    ]
    assert {int.from_bytes(part[18:20], "little") for part in parts.values()} == {machine}


def test_the_package_needs_no_index_and_the_python_that_it_was_built_for(dist: Path) -> None:
    (package,) = dist.glob("*.deb")
    control = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True).stdout
    version = ["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    series = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    assert f"python3 (>= {series}~), python3 (<< 3.{int(series[2:]) + 1}~)" in control
    files = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    for library in ("cgroupspy", "cronsim", "pyroute2", "uvloop", "watchfiles", "zstandard"):
        assert f"/site-packages/{library}/__init__.py" in files
        assert f"/site-packages/{library}/__pycache__/__init__.cpython-{series.replace('.', '')}.pyc" in files


def test_an_installed_package_is_a_service_with_a_configuration(host: Path) -> None:
    python = host / PYTHON
    said = subprocess.run([python, "-m", "sockd", "--version"], cwd="/", env=outside(), capture_output=True, check=True)
    assert said.stdout.decode() == f"sockd {__version__}\n"
    assert (host / "usr/bin/sockd").readlink() == Path("/opt/sockd/bin/sockd")
    assert (host / "opt/sockd/bin/sockd").read_text().startswith("#!/opt/sockd/bin/python\n")
    unit = (host / "usr/lib/systemd/system/sockd.service").read_text()
    assert "\nExecStart=/opt/sockd/bin/sockd up --config /etc/sockd/sockd.toml\n" in unit
    assert Config.load(host / "etc/sockd/sockd.toml") == Config()
    assert (host / "etc/sockd/sockd.toml").stat().st_mode & 0o777 == 0o640
    assert (host / ENABLED).is_symlink()
    assert (host / "usr/lib/systemd/system/sockd.socket").exists(), "for those who enable it"


def test_bytecode_has_the_paths_of_sources_as_they_are_installed(host: Path) -> None:
    """And not those of the build."""
    (module,) = (host / "opt/sockd/lib").glob("python*/site-packages/sockd/client/cli/__pycache__/main.*.pyc")
    code = "import marshal, sys; print(marshal.loads(sys.stdin.buffer.read()[16:]).co_filename)"
    said = subprocess.run([host / PYTHON, "-c", code], input=module.read_bytes(), capture_output=True, check=True)
    assert said.stdout.decode().strip() == f"/{(module.parents[1] / 'main.py').relative_to(host)}"


def test_an_upgrade_keeps_configuration_changes_and_a_disabled_service(host: Path, dist: Path) -> None:
    configuration = host / "etc/sockd/sockd.toml"
    before = configuration.read_text()
    configuration.write_text(f"{before}\n[page]\nenabled = false\n")
    (host / ENABLED).unlink()
    dpkg(host, "--install", *map(str, dist.glob("*.deb")))
    assert configuration.read_text() != before
    assert not (host / ENABLED).exists()


def test_a_removal_keeps_configuration_and_state_and_a_purge_nothing(host: Path) -> None:
    state = host / "var/lib/sockd"
    (state / "code").mkdir(parents=True)
    (state / "registry.sqlite").touch()
    (host / "var/lib/sockd.old-20261128-120000").mkdir()  # by `sockd restore --replace`
    extra = next((host / "opt/sockd/lib").glob("python*")) / "site-packages/extra.py"  # as pip installs one later
    extra.touch()
    dpkg(host, "--remove", "sockd")
    assert (state / "registry.sqlite").exists() and (host / "etc/sockd/sockd.toml").exists()
    assert not (host / "opt/sockd").exists() and not (host / "usr/bin/sockd").is_symlink()
    dpkg(host, "--purge", "sockd")
    left = [path for path in host.rglob("*") if "sockd" in path.name]
    assert left == []
