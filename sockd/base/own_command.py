"""The command line of hints: `sockd …` as the shell, or sudo, finds the very sockd that runs. Pure but for looking at PATH.

An environment that `make` builds is on no PATH, and sudo searches directories of its own, so a hint names the program by
its absolute path wherever the bare name would find another program or none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import join, quote

SUDO_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where sudo searches, whatever PATH says (sudoers(5), secure_path)."""
_SUDO, _SOCKD, _PIP = "sudo sockd", "sockd", "pip install"


def runnable(hint: str) -> str:
    """A hint that begins with `sockd`, `sudo sockd` or `pip install`, as it works here; any other stays as it is."""
    for words, command in ((_SUDO, as_root), (_SOCKD, own_command), (_PIP, _pip)):
        if hint == words or hint.startswith(f"{words} "):
            return command() + hint[len(words) :]
    return hint


def own_command(path: str | None = None) -> str:
    """The running sockd, quoted for a shell. Args: path: directories that are searched for the bare name; None: PATH."""
    program = Path(sys.executable).with_name("sockd")
    if not os.path.isfile(program):  # False also where this user may not look, in which Path.is_file differs
        return f"{quote(sys.executable)} -m sockd"
    from shutil import which  # here, as clients import this file and seldom need a hint

    found = which("sockd", path=path)
    return "sockd" if found is not None and os.path.samefile(found, program) else quote(str(program))


def as_root() -> str:
    """The running sockd, with sudo unless this process is root's already."""
    return own_command() if os.geteuid() == 0 else f"sudo {own_command(SUDO_PATH)}"


def same_as_root() -> str:
    """The command that was given, to be given again by root: sudo does not pass the environment on."""
    given, directory = sys.argv[1:], os.environ.get("SOCKD_STATE_DIR")
    if directory and not any(each.startswith("--state-dir") for each in given):
        given = [*given, "--state-dir", directory]
    return f"{as_root()} {join(given)}"


def _pip() -> str:
    from importlib.util import find_spec

    python = quote(sys.executable)
    if find_spec("pip") is None:  # an environment made by uv, as the Debian package's; uv comes with sockd
        return f"{python} -m uv pip install --python {python}"
    return f"{python} -m pip install"
