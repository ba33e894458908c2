"""The command that installs an extra names packages that an index has, and not sockd, which none has."""

from __future__ import annotations

import shlex
import subprocess
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sockd.base import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_is_installed_by_the_names_of_its_packages(extra: str) -> None:
    words = shlex.split(extras.installing(extra))
    assert words[1:4] == ["-m", "pip", "install"]
    own = {each for each in EXTRAS[extra] if not each.startswith("sockd[")}
    assert set(map(name_of, own)) <= set(map(name_of, words[4:]))
    assert not any(word.startswith("sockd") for word in words[4:])


def test_an_extra_that_includes_others_has_their_packages() -> None:
    words = extras.installing("selftest")
    assert "wasmtime" in words and "cronsim" in words


def test_a_tree_without_metadata_is_installed_from_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert extras.installing("watch").endswith("-m pip install -e '.[watch]'  # in a checkout of sockd")


def test_an_environment_without_pip_is_installed_into_by_uv(tmp_path: Path) -> None:
    """As those of uv and of the Debian package."""
    venv.create(tmp_path, with_pip=False)
    code = "from sockd.base.own_command import runnable; print(runnable('pip install x'))"
    python = str(tmp_path / "bin/python")
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{python} -m uv pip install --python {python} x"
