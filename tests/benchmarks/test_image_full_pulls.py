"""Full pulls as peers of `images`: each tool that is installed unpacks an image, and the fastest is the one compared with."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness.results import Result
from benchmarks.image_parts import first_answer, full_pulls
from benchmarks.image_parts.first_answer import ANSWER, DISTANCES_MS, PROFILED, PULL, compare_with_pulls
from benchmarks.image_parts.full_pulls import PullFailed
from benchmarks.image_parts.oci_layout import write_layout, write_text_layer
from benchmarks.image_parts.origin import REGISTRY, origin
from tests.support.ledger import Ledger

NAMES = sorted(full_pulls.TOOLS)


@pytest.mark.root
@pytest.mark.parametrize("name", NAMES)
def test_a_tool_unpacks_an_image_and_leaves_nothing(name: str, tmp_path: Path, ledger: Ledger) -> None:
    tool = full_pulls.TOOLS[name]
    if missing := {*tool.missing, *(each for each in ("skopeo", REGISTRY) if shutil.which(each) is None)}:
        pytest.skip(f"{', '.join(sorted(missing))} not installed")
    layer = write_text_layer(tmp_path / "layer.tar", {"greeting": "hello"}, mtime_s=1)
    write_layout(tmp_path / "layout", [layer])
    (tmp_path / "storage").mkdir()
    with origin(0.0, secrets.token_bytes(32)) as there:
        reference = f"{there.registry}/greeting:1"
        copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false"]
        subprocess.run([*copy, f"oci:{tmp_path}/layout", f"docker://{reference}"], check=True)
        with tool.ready(tmp_path / "storage") as fetch:
            files = fetch(reference)
            assert (files.root / "greeting").read_text() == "hello"
            assert files.parts_s and min(files.parts_s.values()) > 0
    ledger.check()


def test_a_tool_that_is_not_installed_is_named_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in ("ctr", "buildah"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert full_pulls.TOOLS["containerd"].missing == ["containerd"]
    assert full_pulls.installed() == ["buildah"]


def test_a_tool_that_fails_is_an_error_with_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "containerd"
    program.write_text("#!/bin/sh\necho no overlayfs here; exit 1\n")
    program.chmod(0o755)
    (tmp_path / "ctr").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(PullFailed, match="no overlayfs here"), contextlib.ExitStack() as stack:
        stack.enter_context(full_pulls.TOOLS["containerd"].ready(tmp_path))


def test_a_first_answer_is_compared_with_the_fastest_tool() -> None:
    result = Result("images")
    for distance in DISTANCES_MS:
        case = f"handler, {distance:g} ms"
        for name, ms in ((PROFILED, 100.0), (f"{PULL} umoci", 4600.0), (f"{PULL} buildah", 1200.0)):
            result.add(f"{case}: {name}", ANSWER, "ms", [ms], tail=False)
    assert compare_with_pulls(result, "handler") == [12.0, 12.0]
    assert all("12.0 with buildah, 46.0 with umoci" in note for note in result.notes)


def test_without_any_tool_the_reasons_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result("images")
    result.add(f"handler, 0 ms: {PROFILED}", ANSWER, "ms", [1.0], tail=False)
    result.add(f"handler, 36 ms: {PROFILED}", ANSWER, "ms", [1.0], tail=False)
    assert compare_with_pulls(result, "handler") == [] and result.notes == []
    monkeypatch.setenv("PATH", "")
    first_answer.note_missing_pulls(result)
    assert [note.partition("not measured: ")[2] for note in result.notes] == [
        "skopeo, umoci not installed",
        "containerd, ctr not installed",
        "buildah not installed",
    ]
