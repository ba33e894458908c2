"""A worker that is managed by a group and over TCP, and processes of other users that try the same."""

from __future__ import annotations

import grp
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.abuse.clients import NOBODY
from tests.daemon.running import REPO, RunningDaemon
from tests.support import sockd_template
from tests.support.emulated import SLOWER

GROUP = next(group for group in grp.getgrall() if group.gr_gid not in (0, NOBODY))
"""Any group of this host but root's."""
MANAGED = f'[management]\ngroup = "{GROUP.gr_name}"\nlisten = "127.0.0.1:0"\n'

AS_A_USER = (
    """
import importlib, json, os, sys
from sockd.client.cli.main import COMMANDS, main
import sockd.functions.code.packing, sockd.client.python.workers, encodings.idna
gid, groups, *arguments = json.loads(sys.argv[1])
importlib.import_module(COMMANDS[arguments[0]][0])
directory = os.open(arguments.pop(), os.O_PATH | os.O_DIRECTORY)
source = os.open(arguments.pop(), os.O_PATH | os.O_DIRECTORY)
os.setgroups(groups); os.setresgid(gid, gid, gid); os.setresuid({nobody}, {nobody}, {nobody})
os.chdir(f"/proc/self/fd/{{source}}")
sys.argv = ["sockd", *arguments, "--state-dir", f"/proc/self/fd/{{directory}}"]
main()
""".replace("{{", "{")
    .replace("}}", "}")
    .replace("{nobody}", str(NOBODY))
)


def as_user(
    daemon: RunningDaemon, *arguments: str, gid: int = NOBODY, groups: Sequence[int] = (), source: Path = REPO
) -> subprocess.CompletedProcess[str]:
    """The command, of a user that is not root, in the directory `source`.

    As root it has imported the command and opened both directories: closed ones above them (a test's own) hide nothing."""
    given = json.dumps([gid, list(groups), *arguments, str(source), str(daemon.state)])
    command = [sys.executable, "-c", AS_A_USER, given]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=60 * SLOWER, check=False)


def managed_at(daemon: RunningDaemon) -> str:
    """Where its management API for keys listens."""
    return daemon.wait_line(r"manage this worker at (http://\S+)")[1]


def key(daemon: RunningDaemon, name: str, *may: str, functions: Sequence[str] = ()) -> str:
    """A new key."""
    made = daemon.manage("POST", "/keys", json.dumps({"name": name, "may": may, "functions": functions}))
    assert made.status == 200, made
    text: str = made.json["key"]
    return text


def cli(
    *arguments: str, home: Path, stdin: str = "", cwd: Path = REPO, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command of a user who has nothing of the worker but what is in `home`."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("SOCKD_")}
    env: Mapping[str, str] = {**known, "XDG_CONFIG_HOME": str(home), **variables}
    command = [sys.executable, "-m", "sockd", *arguments]
    return sockd_template.run(command, cwd=cwd, env=env, input=stdin)


def bearer(text: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {text}"}
