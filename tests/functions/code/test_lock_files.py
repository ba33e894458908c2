"""Lock files: what uv wrote gives what uv itself exports; what cannot be installed names the command that converts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from sockd.base.errors import BadArchive, ResolveFailed
from sockd.functions.code.dependencies import Dependencies, read
from sockd.isolation.roots.interpreter import OWN_PYTHON
from tests.support.servers.package_index import PackageIndex, wheel

PROJECT = """
[project]
name = "shop"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["top[more]>=1", "windows-only; sys_platform == 'win32'", "forked"]
[project.optional-dependencies]
extra = ["unwanted"]
[dependency-groups]
dev = ["unwanted"]
"""
DIGESTS = {letter: letter * 64 for letter in "abcdef"}


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    yield index
    index.close()


@pytest.fixture
def locked(index: PackageIndex, tmp_path: Path) -> Path:
    """A project that uv has locked."""
    index.add(
        wheel(
            "top",
            "1.0",
            {"top.py": ""},
            requires=("below>=1", "more-below; extra == 'more'", "left-out; extra == 'no'"),
        )
    )
    for name in ("below", "more-below", "left-out", "windows-only", "unwanted"):
        index.add(wheel(name, "1.0", {f"{name.replace('-', '_')}.py": ""}))
    for version in ("1.0", "2.0"):
        index.add(wheel("forked", version, {"forked.py": ""}))
    (tmp_path / "pyproject.toml").write_text(
        PROJECT.replace(
            '"forked"', "\"forked<2; platform_system == 'Linux'\", \"forked>=2; platform_system != 'Linux'\""
        )
    )
    uv(tmp_path, index, "lock")
    index.add(wheel("below", "9.0", {"below.py": ""}))
    return tmp_path


def uv(directory: Path, index: PackageIndex, *arguments: str) -> str:
    environment = {
        **os.environ,
        "UV_DEFAULT_INDEX": index.url,
        "UV_CACHE_DIR": str(directory / ".cache"),
        "UV_PYTHON": OWN_PYTHON.executable,
    }
    done = subprocess.run(
        [find_uv_bin(), *arguments, "-q"], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def requirement_names(text: str | None) -> list[str]:
    return sorted(line.split(" --hash")[0] for line in (text or "").splitlines())


def test_a_uv_lock_gives_what_uv_exports(locked: Path, index: PackageIndex) -> None:
    found = read(locked, "handler:handler")
    assert (found.source, found.is_complete) == ("uv.lock", True)
    assert requirement_names(found.text) == ["below==1.0", "forked==1.0", "more-below==1.0", "top==1.0"]
    exported = uv(locked, index, "export", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate", "--frozen")
    for line in (found.text or "").splitlines():
        assert line.split()[1] in exported, "the hash is the one that uv exports"


def test_a_pylock_of_uv_gives_the_same(locked: Path, index: PackageIndex) -> None:
    before = read(locked, "handler:handler")
    (locked / "pylock.toml").write_text(uv(locked, index, "export", "--no-dev", "--format", "pylock.toml", "--frozen"))
    found = read(locked, "handler:handler")
    assert (found.source, found.is_complete) == ("pylock.toml", True)
    assert sorted((found.text or "").splitlines()) == sorted((before.text or "").splitlines())


def test_a_lock_file_older_than_its_project_is_refused(locked: Path) -> None:
    project = locked / "pyproject.toml"
    project.write_text(project.read_text().replace("top[more]>=1", "top[more]>=1,<3"))
    with pytest.raises(
        BadArchive, match=r"uv\.lock is older than the dependencies of pyproject\.toml \(top\); run: uv lock"
    ):
        read(locked, "handler:handler")


UvLock = Callable[..., Dependencies]


@pytest.fixture
def uv_lock(tmp_path: Path) -> UvLock:
    def uv_lock(source: dict[str, str], **more: Any) -> Dependencies:
        own = {"name": "shop", "source": {"virtual": "."}, "dependencies": [{"name": "x"}]}
        packages = [own, {"name": "x", "version": "1.0", "source": source, **more}]
        (tmp_path / "uv.lock").write_text(toml({"version": 1, "package": packages}))
        return read(tmp_path, "f:f")

    return uv_lock


def toml(table: dict[str, Any]) -> str:
    """A table whose values are JSON but for inline tables."""

    def value(each: Any) -> str:
        if isinstance(each, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in each.items()) + "}"
        return "[" + ", ".join(map(value, each)) + "]" if isinstance(each, list) else json.dumps(each)

    return "".join(f"{key} = {value(each)}\n" for key, each in table.items())


def test_sources_other_than_indexes_become_urls_or_are_refused_by_name(uv_lock: UvLock) -> None:
    git = uv_lock({"git": f"https://git.example.com/x?subdirectory=py&rev=v1#{'1' * 40}"})
    assert git.text == f"x @ git+https://git.example.com/x@{'1' * 40}#subdirectory=py\n"
    url = uv_lock({"url": "https://e.com/x.tar.gz"}, sdist={"hash": f"sha256:{DIGESTS['a']}"})
    assert url.text == f"x @ https://e.com/x.tar.gz --hash=sha256:{DIGESTS['a']}\n"
    with pytest.raises(BadArchive, match=r"uv\.lock: x is the directory or file 'libs/x', .* next to the handler"):
        uv_lock({"editable": "libs/x"})


def test_hashes_are_those_of_what_can_be_installed_here(uv_lock: UvLock) -> None:
    wheels = [
        {"url": "https://e.com/x-1.0-py3-none-any.whl", "hash": f"sha256:{DIGESTS['a']}"},
        {"url": "https://e.com/x-1.0-cp39-cp39-win32.whl", "hash": f"sha256:{DIGESTS['b']}"},
    ]
    found = uv_lock({"registry": "https://e.com"}, wheels=wheels, sdist={"url": "", "hash": f"sha256:{DIGESTS['c']}"})
    assert found.text == f"x==1.0 --hash=sha256:{DIGESTS['a']} --hash=sha256:{DIGESTS['c']}\n"


@pytest.mark.parametrize(
    "text",
    [
        "version = 1\n",
        'package = ["x"]\n',
        'package = [{name = 3, source = {virtual = "."}}]\n',
        'package = [{name = "x", source = {virtual = "."}, dependencies = [{name = "y"}]}]\n',
        'package = [{name = "x", source = {virtual = "."}, dependencies = [{name = "x", marker = "no marker"}]}]\n',
        'package = [{name = "x", source = {virtual = "."}, dependencies = 3}]\n',
        '[[package]]\nname = "x"\n',
    ],
)
def test_what_is_no_lock_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "uv.lock").write_text(text)
    with pytest.raises(BadArchive, match=r"^uv\.lock"):
        read(tmp_path, "f:f")
    (tmp_path / "requirements.txt").write_text("one\n")
    found = read(tmp_path, "f:f")
    assert found.text == "one\n" and "it is ignored, the dependencies of requirements.txt are used" in found.notes[0]


PYLOCK = """
lock-version = "1.0"
default-groups = ["default"]
[[packages]]
name = "A.B"
version = "1.0"
marker = "'default' in dependency_groups"
wheels = [{name = "a_b-1.0-py3-none-any.whl", path = "w.whl", hashes = {sha256 = "%s"}}]
[[packages]]
name = "dev"
version = "1.0"
marker = "'dev' in dependency_groups or 'x' in extras"
[[packages]]
name = "repo"
vcs = {type = "git", url = "https://e.com/r", commit-id = "abc"}
[[packages]]
name = "own"
directory = {path = ".", editable = true}
"""


def test_a_pylock_installs_its_default_groups_and_not_the_project(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(PYLOCK % DIGESTS["a"])
    found = read(tmp_path, "f:f")
    assert found.text == f"a-b==1.0 --hash=sha256:{DIGESTS['a']}\nrepo @ git+https://e.com/r@abc\n"
    (tmp_path / "pylock.toml").write_text(PYLOCK.replace('path = "."', 'path = "libs/own"'))
    with pytest.raises(BadArchive, match=r"pylock\.toml: own is the directory or file 'libs/own'"):
        read(tmp_path, "f:f")


def test_a_lock_file_for_another_python_or_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text('lock-version = "1.0"\nrequires-python = ">=3.99"\npackages = []\n')
    with pytest.raises(ResolveFailed, match=r"pylock\.toml: requires-python = '>=3\.99'"):
        read(tmp_path, "f:f")
    (tmp_path / "pylock.toml").write_text('lock-version = "2.0"\npackages = []\n')
    with pytest.raises(BadArchive, match=r"lock-version is '2\.0'"):
        read(tmp_path, "f:f")
