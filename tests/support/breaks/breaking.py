"""The register of breaks: functions that take one protection of a worker away, by their names.

A protection of the daemon's own is patched in this process before the daemon is built; one of its children's is replaced in a
copy of `zygote/`, or of `sockd/`, that the base, or the tree of the agent of images, gets instead of the real one.
"""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sockd.images.agent_keeper import agent_link
from sockd.isolation.roots import base
from sockd.linux.confined.software import Places

BREAKS: dict[str, Callable[[], None]] = {}
"""What `sockd selftest --broken NAME` may name."""
IN_TESTS: set[str] = set()
"""The protections that the process of the tests lacks as well: their cases start no worker."""

Break = Callable[[], None]


def breaks(name: str, *, in_tests: bool = False) -> Callable[[Break], Break]:
    """Register a function that takes the protection `name` away."""

    def register(function: Break) -> Break:
        BREAKS[name] = function
        if in_tests:
            IN_TESTS.add(name)
        return function

    return register


def patch_agent(file: str, old: str, new: str) -> None:
    """Have the agent of images run a copy of sockd/ in which a text of a file is replaced.

    Raises: AssertionError: it has none."""
    places = agent_link.places()
    (ours,) = [source for source, _ in places if Path(source).name == "sockd"]
    copy = Path(tempfile.mkdtemp(prefix="sockd-broken-")) / "sockd"
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    copy.parent.chmod(0o755)
    shutil.copytree(ours, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert old in text, f"{file} has no {old!r}"
    (copy / file).write_text(text.replace(old, new))

    def broken() -> Places:
        return tuple((str(copy) if source == ours else source, target) for source, target in places)

    agent_link.places = broken


def copied_zygote() -> Path:
    """Have sandboxes run a copy of zygote/, whose directory this is; it goes with this process."""
    (zygote,) = [bind.source for bind in base.plan(Path("/")) if bind.target == base.ZYGOTE]
    copy = Path(tempfile.mkdtemp(prefix="sockd-broken-")) / "sockd_zygote"
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    copy.parent.chmod(0o755)
    shutil.copytree(zygote, copy, ignore=shutil.ignore_patterns("__pycache__"))
    original = base.plan

    def plan(packages: Path, prefix: str = "", ours: tuple[Path, Path] | None = None) -> tuple[base.Bind, ...]:
        return tuple(
            replace(bind, source=str(copy)) if bind.target == base.ZYGOTE else bind
            for bind in original(packages, prefix, ours)
        )

    base.plan = plan
    return copy


def patch_zygote(file: str, old: str, new: str) -> Path:
    """Have sandboxes run a copy of zygote/ in which each match of a pattern in a file is replaced; the copy's directory.

    Raises: AssertionError when there is none: the code has changed, and this break with it."""
    copy = copied_zygote()
    text, count = re.subn(old, new, (copy / file).read_text(), flags=re.MULTILINE)
    assert count, f"{file} has no {old!r}"
    (copy / file).write_text(text)
    return copy


def patch_native(file: str, old: str, new: str) -> None:
    """The same for a file of zygote/native, compiled anew. Needs a C compiler."""
    copy = patch_zygote(f"native/{file}", old, new)
    (library,) = copy.glob("_native*.so")
    sources = map(str, sorted((copy / "native").glob("*.c")))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", include, *sources, "-o", str(library)], check=True)
