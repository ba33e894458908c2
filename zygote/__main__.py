"""The root Zygote: exec'd once by farm init, bare interpreter and standard library; every other interpreter is its child.

    python -I -S /opt/sockd/zygote <control fd> <cgroup procs fds, comma-separated> <filters as hex, comma-separated>

It keeps two capabilities, CAP_SETUID and CAP_SETGID, to write its children's id maps, and runs no code but ours and the
standard library's. `-S` keeps the interpreter's own site-packages out of every function.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from zygote import confinement, fork_server, handler_server, hygiene, linux, protocol, rehearsal

ENVIRONMENT = {"HOME": "/tmp", "LAMBDA_TASK_ROOT": "/var/task", "PWD": "/var/task", "TZ": ":UTC"}
"""What every function's environment begins with; INIT adds what is the function's own."""
KEPT_CAPABILITIES = (linux.CAP_SETUID, linux.CAP_SETGID)


def main(control_fd: str, procs_fds: str, filters: str) -> None:
    for fd in procs_fds.split(","):
        os.write(int(fd), b"0")
    handler_filter, zygote_filter = (linux.SeccompFilter(bytes.fromhex(text)) for text in filters.split(","))
    prepare_interpreter()
    os.dup2(int(control_fd), confinement.CHANNEL_FD, inheritable=False)
    linux.close_fds_from(confinement.CHANNEL_FD + 1)
    os.setgroups([])
    linux.Capabilities(KEPT_CAPABILITIES).apply()
    linux.set_no_new_privs()
    hygiene.settle()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    control = socket.socket(fileno=confinement.CHANNEL_FD)
    run(fork_server.Zygote(control, null, handler_filter, zygote_filter))


def prepare_interpreter() -> None:
    """State that every child inherits: signals, limits, streams, the names that `site` would have defined."""
    import gc
    import site

    gc.disable()
    del sys.path[:2]  # our directory and, from above, its parent: no function imports from them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps; the daemon reads exit statuses from its pidfds
    confinement.limit_resources()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    site.setquit()
    os.environ.pop("LD_BIND_NOW", None)
    os.environ.update(ENVIRONMENT)
    time.tzset()


def run(zygote: fork_server.Zygote) -> None:
    """Serve as a Zygote; a forked child comes back here with what it is to be."""
    while True:
        child = fork_server.serve(zygote)
        if child is None:
            os._exit(0)
        if child.kind == "sandbox":
            run_sandbox(child)
        zygote = fork_server.child_zygote(zygote, child.channel_fd)


def run_sandbox(child: fork_server.Child) -> None:
    """Serve requests, then end the process without the exit handlers of packages that were imported before the fork."""
    status = 1
    try:
        hygiene.after_fork()
        channel = handler_server.Channel(child.channel_fd)
        if child.warm:
            rehearsal.rehearse()
            channel.send(protocol.PRIMED, 0)
        status = handler_server.serve(channel)
    except SystemExit as error:
        status = exit_status(error.code)
    except OSError:
        status = 1  # the channel is gone: nobody is left to tell
    finally:
        handler_server.flush()
        os._exit(status)


def exit_status(code: object) -> int:
    """What the shell would see of sys.exit(code)."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


if __name__ == "__main__":
    main(*sys.argv[1:])
