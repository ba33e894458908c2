"""The page on installation: its extras are those that there are, and its commands install a service that runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from sockd.base.config import Config
from tests.docs.test_markdown import tracked
from tests.test_installed import built, outside, wheel

__all__ = ["built", "wheel"]  # fixtures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/installation.md").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FROM_AN_INDEX = re.compile(r"\b(?:pipx?|uv tool) install (?:-\S+ )*[\"']?sockd(?![\w./-])")
TEXTS = (".md", ".py", ".toml", ".cfg", ".service", ".html", ".js", ".yml")


def test_no_text_advises_to_install_sockd_by_its_name() -> None:
    """The name is not registered on a package index: the person who registers it would be root on hosts that follow the
    advice."""
    found = [
        f"{path.relative_to(ROOT)}: {advice[0]}"
        for path in tracked()
        if path.suffix in TEXTS or path.parent.name == "scripts"
        for advice in FROM_AN_INDEX.finditer(path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(("tool", "name"), [("pip", "sockd"), ("pip", "'sockd[watch]'"), ("pipx", "sockd")])
def test_such_advice_would_be_found(tool: str, name: str) -> None:
    advice = f"{tool} install {name}"
    assert FROM_AN_INDEX.search(f"`{advice}`") and not FROM_AN_INDEX.search(advice.replace("sockd", "./sockd"))


def test_the_page_lists_every_extra_with_its_packages() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    listed = {extra: set(re.findall(r"[\w-]+", packages.replace("those of", ""))) for extra, packages in rows}
    assert listed == {extra: set().union(*map(names, packages)) for extra, packages in EXTRAS.items()}


def names(requirement: str) -> set[str]:
    """The package of a requirement, or the extras that it includes."""
    parsed = Requirement(requirement)
    return parsed.extras if parsed.name == "sockd" else {parsed.name}


@pytest.mark.root
@pytest.mark.timeout(300)
def test_the_commands_of_the_page_install_the_service(wheel: Path, tmp_path: Path) -> None:
    """But for systemctl, and below a directory: systemd is not here, and this host has directories of its own."""
    section = PAGE.partition("## A service from a wheel or a checkout")[2]
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    lines = [line for line in block.splitlines() if "systemctl" not in line]
    assert len(lines) == len(block.splitlines()) - 2
    script = re.sub(r" (/opt|/usr|/etc)/", rf" {tmp_path}\1/", "\n".join(lines)).replace("sudo ", "")
    script = re.sub(r"\./dist/sockd-\S+\.whl", str(wheel), script).replace(
        "python3 -m venv", f"{sys.executable} -m venv"
    )
    for made in ("opt", "usr/local/bin", "etc/systemd/system"):
        (tmp_path / made).mkdir(parents=True)
    path = f"{tmp_path}/usr/local/bin:{os.environ['PATH']}"
    state = {"SOCKD_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(
        ["bash", "-euxc", script.replace("sockd doctor", "sockd doctor || true")],
        cwd="/",
        env={**outside(), **state, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^ok +python: .* at ", done.stdout, re.MULTILINE)
    unit = (tmp_path / "etc/systemd/system/sockd.service").read_text()
    start = re.search(r"^ExecStart=/usr/bin/env (.*)$", unit, re.MULTILINE)
    assert start is not None
    words = shlex.split(start[1])
    configuration = tmp_path / words[words.index("--config") + 1].lstrip("/")
    assert Config.load(configuration) == Config()
