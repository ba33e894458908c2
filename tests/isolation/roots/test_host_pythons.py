"""Other Pythons of the host: which are found, what is said of them, and what is made for them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from sockd.isolation.roots import base as bases
from sockd.isolation.roots.host_pythons import PLACES, HostPythons, NoPython, ask, prepared
from sockd.isolation.roots.interpreter import OWN_PYTHON, cache_tag_of
from tests.support.foreign import installed


def test_the_workers_own_version_is_the_workers_own_interpreter(tmp_path: Path) -> None:
    pythons = HostPythons(tmp_path, tmp_path, places=())
    assert asyncio.run(pythons.find(OWN_PYTHON.short)) is OWN_PYTHON
    assert OWN_PYTHON.tag == "" and cache_tag_of("") == OWN_PYTHON.cache_tag


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_an_interpreter_says_itself_what_it_is(version: str, tmp_path: Path) -> None:
    python = installed(version)
    assert python.short == python.tag == version and cache_tag_of(version) == python.cache_tag
    assert Path(python.executable).is_relative_to(python.prefix)
    link = tmp_path / "python"
    link.symlink_to(python.executable)
    assert ask(str(link)) == python


def test_configured_interpreters_are_asked_first_and_each_file_once(tmp_path: Path) -> None:
    python = installed("3.12")
    pythons = HostPythons(tmp_path, tmp_path, [python.executable], places=())
    assert asyncio.run(pythons.find("3.12")) == python
    assert list(HostPythons(tmp_path, tmp_path, [python.executable] * 2, places=())._candidates([12])) == [
        python.executable
    ]


def test_a_version_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    python = installed("3.12")
    pythons = HostPythons(tmp_path, tmp_path, [python.executable], places=())
    with pytest.raises(NoPython, match=rf"installed are {OWN_PYTHON.short} \(the worker's own\), 3.12") as reported:
        asyncio.run(pythons.find("3.99"))
    assert reported.value.status == 400


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 0\n", "#!/bin/sh\necho nothing\n", "#!/bin/sh\nexit 1\n", "no program"]
)
def test_a_file_that_is_no_python_is_passed_over(text: str, tmp_path: Path) -> None:
    file = tmp_path / "python3.12"
    file.write_text(text)
    file.chmod(0o755)
    assert ask(str(file)) is None
    with pytest.raises(NoPython):
        asyncio.run(HostPythons(tmp_path, tmp_path, [str(file)], places=()).find("3.12"))


def test_usual_places_are_looked_at_and_directories_with_odd_names_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "a[b]{path}"
    odd.mkdir()
    (odd / "python3.12").symlink_to(OWN_PYTHON.executable)
    monkeypatch.setenv("PATH", f"{odd}:relative:/nowhere")
    assert str(odd / "python3.12") in HostPythons(tmp_path, tmp_path, places=PLACES[:1])._candidates([12])


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_our_packages_are_compiled_by_the_interpreter_that_runs_them(version: str, tmp_path: Path) -> None:
    python = installed(version)
    for _ in range(2):  # the second replaces the first
        zygote, storage = prepared(python, tmp_path / "ours")
    for source, copy in zip(bases.our_packages(), (zygote, storage), strict=True):
        names = {path.name for path in source.resolve().glob("*.py")}
        cached = {f"{name.removesuffix('.py')}.{python.cache_tag}.pyc" for name in names}
        assert names <= set(os.listdir(copy)) and cached == set(os.listdir(copy / "__pycache__"))
    assert (zygote / "rehearsed" / "__pycache__" / f"sockd_rehearsal.{python.cache_tag}.pyc").is_file()
    assert not (zygote / "native").exists() and (zygote / bases.NATIVE).is_file()
    shown = "import marshal,sys; print(marshal.loads(open(sys.argv[1],'rb').read()[16:]).co_filename)"
    file = zygote / "__pycache__" / f"linux.{python.cache_tag}.pyc"
    reported = subprocess.run([python.executable, "-c", shown, str(file)], capture_output=True, text=True, check=True)
    assert reported.stdout.strip() == f"/{bases.ZYGOTE}/linux.py"
