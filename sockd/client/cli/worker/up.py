"""`sockd up`: run a worker in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import errno
import gc
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sockd.base.own_command import same_as_root
from sockd.client.cli.worker.again import CHECK, start_again, why_not_again
from sockd.client.cli.worker.configuration import config_option, configured
from sockd.client.cli.worker.detaching import detached
from sockd.client.console.output import Failure
from sockd.linux.syscall_table import ARCHITECTURES

if TYPE_CHECKING:
    from sockd.base.config import Config
    from sockd.worker.life.ending import Ended


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Address of the public port. [default: 127.0.0.1:5000]")
@click.option(
    "--state-dir",
    envvar="SOCKD_STATE_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path, readable=False),  # a user other than root gets an error below
    help="The state directory. [default: /var/lib/sockd]",
)
@config_option
@click.option(
    "--join", metavar="DSN", help="PostgreSQL of a group: postgresql://USER@HOST:PORT/DATABASE?passfile=FILE."
)
@click.option("--group", metavar="NAME", help="The group of workers to join.")
@click.option("--name", metavar="NAME", help="The worker's name in its group. [default: the host's name]")
@click.option(
    "--detach",
    is_flag=True,
    help="Run in the background; return when it serves. Logs to worker.log in the state directory.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Follow the worker that runs on this state directory: no request is refused. Without one, start as usual.",
)
@click.option(
    CHECK,
    is_flag=True,
    help="Read the configuration, load the program, and exit: nothing is started, and none is ended.",
)
@click.option("--log-file", hidden=True, type=click.Path(dir_okay=False, path_type=Path))
def up(
    listen: str | None,
    state_dir: Path | None,
    config: Path | None,
    join: str | None,
    group: str | None,
    name: str | None,
    detach: bool,
    take_over: bool,
    check: bool,
    log_file: Path | None,
) -> None:
    """Run a worker in the foreground, until SIGTERM or Ctrl-C.

    Prints its address when it serves. SIGUSR2 starts it again, as it is installed then, without refusing a request; if --check
    fails then, the worker goes on as it is, and logs why."""
    from sockd.base.errors import SockdError
    from sockd.base.log_format import log_to_file, log_to_stderr

    given = {"listen": listen, "join": join, "group": group, "name": name}
    settings = configured(config, state_dir=str(state_dir) if state_dir else None, **given)
    configuration = config.read_bytes() if config is not None else None
    doctor = _doctor(config, state_dir)
    if platform.machine() not in ARCHITECTURES:
        why = f"this machine is {platform.machine()}, for which sockd has no seccomp filter"
        raise Failure(f"sockd runs on {' and '.join(ARCHITECTURES)}", why=why, fix=doctor)
    if os.geteuid() != 0:
        raise Failure("a worker needs root", why="it makes namespaces, mounts and cgroups", fix=same_as_root())
    if check:
        import sockd.worker.life.run  # noqa: F401

        return
    if detach:
        detached(settings.state_dir, given, config, take_over=take_over)
        return
    if log_file is None:
        log_to_stderr()
    else:
        log_to_file(log_file)
    try:
        ended = _serve(settings, take_over=take_over)
    except SockdError as error:
        raise Failure("the worker cannot start", why=error.message, fix=doctor) from None
    except OSError as error:
        raise _start_failure(error, settings.http.listen, doctor) from error
    if ended.again:
        start_again(ended.again, configuration if ended.is_fallback else None)
    sys.exit(ended.status)


def _serve(settings: Config, *, take_over: bool) -> Ended:
    # The modules' 100 000 objects stay. Without this, each garbage collection until the worker listens examines them.
    gc.disable()
    import uvloop

    from sockd.http.server.listening.inherited import Inherited
    from sockd.linux.event_loop import EventLoop
    from sockd.worker.life import takeover
    from sockd.worker.life.run import serve

    gc.freeze()
    gc.enable()
    inherited = Inherited.of_environment()
    predecessor = takeover.find(Path(settings.state_dir)) if take_over else None
    if predecessor is not None:
        inherited.close()
        inherited = predecessor.take_sockets()
        predecessor.wait_released()
    return uvloop.run(serve(settings, inherited, predecessor, why_not_again), loop_factory=EventLoop)


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
