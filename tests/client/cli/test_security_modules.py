"""What `sockd doctor` says of AppArmor and SELinux, and the profile that it prints."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sockd.client.cli.doctor import report, security_modules
from sockd.client.cli.doctor.checks import Check
from sockd.client.cli.main import cli

root = pytest.mark.root


@pytest.fixture
def restricted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubuntu's setting."""
    (tmp_path / "restricted").write_text("1\n")
    monkeypatch.setattr(security_modules, "RESTRICTION", tmp_path / "restricted")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes an installed sockd with a name of its directory, and has this process be its interpreter."""

    def install(name: str) -> Path:
        (tmp_path / name).mkdir()
        (tmp_path / name / "sockd").touch()
        monkeypatch.setattr("sys.executable", str(tmp_path / name / "python"))
        return tmp_path / name / "sockd"

    return install


@root
def test_a_worker_that_the_restriction_does_not_reach_is_fine(restricted: None) -> None:
    check = security_modules.apparmor()
    assert check.ok and check.found == f"restricts user namespaces, but not those of {security_modules.label()}"
    assert security_modules.namespaces().ok


def test_a_worker_that_the_restriction_reaches_learns_how_to_get_a_profile(
    restricted: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probed(name: str, probe: str, fix: str) -> Check:
        return Check(name, False, "sethostname: Operation not permitted", fix)

    monkeypatch.setattr(security_modules, "probed", probed)
    for check in (security_modules.apparmor(), security_modules.namespaces()):
        assert check.ok is False and "Operation not permitted" in check.found
        assert "doctor --apparmor > /etc/apparmor.d/sockd && apparmor_parser --replace" in check.fix
        assert "sysctl" not in check.fix, "the restriction stays for all others"


def test_a_host_without_the_restriction_needs_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (None, "0\n"):
        monkeypatch.setattr(security_modules, "RESTRICTION", tmp_path / "setting")
        if text is not None:
            (tmp_path / "setting").write_text(text)
        assert security_modules.apparmor() == Check("apparmor", True, "does not restrict user namespaces")


def test_the_profile_is_for_the_installed_program_alone(program: Callable[[str], Path]) -> None:
    path = program("bin[1] {a}")
    printed = CliRunner().invoke(cli, ["doctor", "--apparmor"])
    assert printed.exit_code == 0, printed.output
    escaped = str(path).replace("[", r"\[").replace("]", r"\]").replace("{", r"\{").replace("}", r"\}")
    assert f'profile sockd "{escaped}" flags=(unconfined) {{\n  userns,\n' in printed.output


def test_a_link_to_the_program_names_what_is_executed(program: Callable[[str], Path], tmp_path: Path) -> None:
    path = program("bin")
    path.unlink()
    (tmp_path / "real").touch()
    path.symlink_to(tmp_path / "real")
    assert f'"{tmp_path}/real"' in security_modules.apparmor_profile()


def test_a_sockd_that_no_program_of_its_own_starts_gets_no_profile(
    program: Callable[[str], Path], tmp_path: Path
) -> None:
    program("bin").unlink()
    refused = CliRunner().invoke(cli, ["doctor", "--apparmor"])
    assert refused.exit_code == 1 and "would give the permission to all of Python" in refused.output
    program('quo"te')
    with pytest.raises(ValueError, match="AppArmor cannot name"):
        security_modules.apparmor_profile()


@pytest.mark.parametrize("name", ["bin", "with space", "[b]{i}*n"])
def test_apparmors_own_parser_takes_the_profile(program: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    parser = shutil.which("apparmor_parser", path="/usr/sbin:/sbin:/usr/bin")
    if parser is None or not Path("/etc/apparmor.d/abi/4.0").exists():
        pytest.skip("needs AppArmor 4.0: apt-get install apparmor")
    program(name)
    file = tmp_path / "profile"
    file.write_text(security_modules.apparmor_profile())
    done = subprocess.run([parser, "--skip-kernel-load", "--skip-cache", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("enforce", "context", "ok", "words"),
    [
        (None, "", True, "not active"),
        ("0", "system_u:system_r:init_t:s0", True, "permissive"),
        ("1", "system_u:system_r:unconfined_service_t:s0", True, "does not confine"),
        ("1", "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", True, "does not confine"),
        ("1", "system_u:system_r:container_t:s0:c1,c2", None, "may confine"),
    ],
)
def test_selinux_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enforce: str | None, context: str, ok: bool | None, words: str
) -> None:
    monkeypatch.setattr(security_modules, "ENFORCE", tmp_path / "enforce")
    monkeypatch.setattr(security_modules, "LABELS", (tmp_path / "none", tmp_path / "label"))
    if enforce is not None:
        (tmp_path / "enforce").write_text(enforce)
    (tmp_path / "label").write_text(context + "\0")
    check = security_modules.selinux()
    assert check.ok is ok and words in check.found
    assert ("label=disable" in check.fix) is (ok is None)


def test_both_are_in_the_report() -> None:
    names = {check.__name__ for check in report.FOR_ROOT}
    assert {"apparmor", "namespaces"} <= names
    assert "selinux" in {check.name for check in report.run_checks()}
