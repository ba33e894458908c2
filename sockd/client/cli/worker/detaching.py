"""`sockd up --detach`: start the worker in its own session; return when it serves, or report why it does not.

The worker reports by sd_notify(3), as to systemd. Owns that socket, and the worker until it serves.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sockd.client.cli.worker.again import OWN_PROGRAM, environment
from sockd.client.console.client import Management
from sockd.client.console.output import Failure, echo, say

LOG = "worker.log"
DEADLINE_S = 120.0
_READY = b"READY=1"
_ERROR = re.compile(r"^error: (.*(?:\n    .*)*)(?:\n  why: (.*(?:\n    .*)*))?(?:\n  fix: (.*))?$", re.MULTILINE)
"""As `Failure.show` prints it."""


def detached(
    state_dir: str, options: Mapping[str, str | None], config: Path | None, *, take_over: bool = False
) -> None:
    """Start a worker and print its address. Args and Raises: as of `started`."""
    worker = started(state_dir, options, config, take_over=take_over)
    directory = Path(state_dir).absolute()
    url = Management(directory).get("status")["url"]
    echo(f"sockd is listening on {url} with pid {worker.pid} and logs to {directory / LOG}")
    say(f"stop it with: kill {worker.pid}")


def started(
    state_dir: str, options: Mapping[str, str | None], config: Path | None, *, take_over: bool = False
) -> subprocess.Popen[bytes]:
    """Start a worker in a session of its own; return when it serves.

    Args: options: of `sockd up`, by name, with their values; None: not given.
    Raises: Failure with the worker's own error, or the last lines of its log."""
    directory = Path(state_dir).absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o711)
    log = directory / LOG
    with (
        tempfile.TemporaryDirectory(prefix="sockd-up-") as private,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ready,
        open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output,
    ):
        ready.bind(f"{private}/ready")
        said_before = output.tell()
        worker = _start(directory, options, config, log, f"{private}/ready", output.fileno(), take_over)
        if not _serves(worker, ready):
            raise _failure(log, said_before)
    return worker


def _start(
    directory: Path,
    options: Mapping[str, str | None],
    config: Path | None,
    log: Path,
    notify: str,
    output: int,
    take_over: bool,
) -> subprocess.Popen[bytes]:
    arguments = ["--state-dir", str(directory), "--log-file", str(log)]
    for name, value in options.items():
        arguments += [f"--{name}", value] if value else []
    arguments += ["--config", str(config.absolute())] if config else []
    arguments += ["--take-over"] if take_over else []
    return subprocess.Popen(
        [*OWN_PROGRAM, "up", *arguments],
        cwd="/",
        env={**environment(), "NOTIFY_SOCKET": notify},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )


def _serves(worker: subprocess.Popen[bytes], ready: socket.socket) -> bool:
    """Wait until the worker serves or has ended. After the deadline, or when the caller gives up, end it."""
    pidfd = os.pidfd_open(worker.pid)
    try:
        poller = select.poll()
        poller.register(ready, select.POLLIN)
        poller.register(pidfd, select.POLLIN)
        if ready.fileno() in dict(poller.poll(DEADLINE_S * 1000)) and ready.recv(64).startswith(_READY):
            return True
    except BaseException:
        worker.terminate()
        worker.wait()
        raise
    finally:
        os.close(pidfd)
    worker.terminate()
    worker.wait()
    return False


def _failure(log: Path, since: int) -> Failure:
    """What its log says after `since`: the error that ended it, without warnings before it; or the last lines."""
    with open(log, "rb") as file:
        file.seek(since)
        text = file.read().decode(errors="replace").strip()
    if found := list(_ERROR.finditer(text)):
        what, why, fix = found[-1].groups("")
        reason = ": ".join(filter(None, (what, why))).replace("\n    ", "\n")
    else:
        reason, fix = "\n".join(text.splitlines()[-20:]), ""
    reason = reason or f"it did not report within {DEADLINE_S:g} s"
    return Failure("the worker did not start", why=reason, fix=fix or f"less {log}")
