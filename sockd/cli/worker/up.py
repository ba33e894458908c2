"""`sockd up`: run a worker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import errno
import gc
import os
import platform
import shlex
import sys
from pathlib import Path

import click

from sockd.cli.worker.configuration import config_option, configured
from sockd.cli.worker.detaching import detached
from sockd.console.output import Failure
from sockd.plain.own_command import same_as_root


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Address of the public port. [default: 127.0.0.1:5000]")
@click.option(
    "--state-dir",
    envvar="SOCKD_STATE_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path, readable=False),  # who is not root is told so below
    help="The state directory. [default: /var/lib/sockd]",
)
@config_option
@click.option(
    "--detach",
    is_flag=True,
    help="Run in the background; return when it serves. Logs to worker.log in the state directory.",
)
@click.option("--log-file", hidden=True, type=click.Path(dir_okay=False, path_type=Path))
def up(listen: str | None, state_dir: Path | None, config: Path | None, detach: bool, log_file: Path | None) -> None:
    """Run a worker in the foreground, until SIGTERM or Ctrl-C.

    Prints its address when it serves."""
    from sockd.plain.errors import SockdError
    from sockd.plain.log_format import log_to_file, log_to_stderr

    settings = configured(config, listen=listen, state_dir=str(state_dir) if state_dir else None)
    doctor = _doctor(config, state_dir)
    if platform.machine() != "x86_64":
        why = f"this machine is {platform.machine()}; the seccomp filter supports x86_64 only"
        raise Failure("sockd runs on x86_64", why=why, fix=doctor)
    if os.geteuid() != 0:
        raise Failure("a worker needs root", why="it makes namespaces, mounts and cgroups", fix=same_as_root())
    if detach:
        detached(settings.state_dir, listen, config)
        return
    if log_file is None:
        log_to_stderr()
    else:
        log_to_file(log_file)
    try:
        status = _serve(settings)
    except SockdError as error:
        raise Failure("the worker cannot start", why=error.message, fix=doctor) from None
    except OSError as error:
        raise _start_failure(error, settings.http.listen, doctor) from error
    sys.exit(status)


def _serve(settings: object) -> int:
    # The modules' 100 000 objects stay. Without this, each garbage collection until the worker listens examines them.
    gc.disable()
    import uvloop

    from sockd.kernel.event_loop import EventLoop
    from sockd.plain.config import Config
    from sockd.worker.daemon import serve

    gc.freeze()
    gc.enable()
    assert isinstance(settings, Config)
    return uvloop.run(serve(settings), loop_factory=EventLoop)


def _doctor(config: Path | None, state_dir: Path | None) -> str:
    """The command that checks this worker's settings."""
    named = {"--state-dir": state_dir, "--config": config}
    return shlex.join(
        ["sockd", "doctor", *(word for name, path in named.items() if path for word in (name, str(path)))]
    )


def _start_failure(error: OSError, listen: str, doctor: str) -> Failure:
    why = "; ".join([str(error), *getattr(error, "__notes__", ())])
    if error.errno == errno.EADDRINUSE:
        return Failure(f"{listen} is taken", why=why, fix="sockd up --listen 127.0.0.1:0")
    return Failure("the worker cannot start", why=why, fix=doctor)
