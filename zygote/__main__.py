"""The root Zygote: exec'd once by farm init, bare interpreter and standard library; every other interpreter is its child.

    python -s -S /opt/sockd/sockd_zygote <control fd> <cgroup procs fds, comma-separated> <kept capabilities as hex>
        <filters as hex, comma-separated> <"image" or nothing> <"reaps" or nothing>

The one of the worker's own interpreter keeps two capabilities, CAP_SETUID and CAP_SETGID, to write its children's id maps, and
runs no code but ours and the standard library's. That of another interpreter was confined before this file is read, and is a
Zygote like any with packages: it gets no files of cgroups and no filter of its own. `-S` keeps the interpreter's own
site-packages out of every function. The daemon sets all variables of the exec, so there is none of Python's to ignore.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from sockd_zygote import _native, fork_server, linux, protocol, rehearsal, storage_rehearsal
from sockd_zygote.forks import hygiene
from sockd_zygote.handlers import handler_server, import_hooks, storage_finder

BOOTSTRAP = "/var/runtime/bootstrap.py"
"""The program of every function on AWS Lambda."""


def main(control_fd: str, procs_fds: str, capabilities: str, filters: str, place: str = "", reaps: str = "") -> None:
    _native.gather_arenas()
    is_own = bool(procs_fds)
    for fd in procs_fds.split(",") if is_own else ():
        os.write(int(fd), b"0")
    prepare_interpreter({} if place == "image" else protocol.ENVIRONMENT)
    os.dup2(int(control_fd), fork_server.CHANNEL_FD, inheritable=False)
    linux.close_fds_from(fork_server.CHANNEL_FD + 1)
    if is_own:
        os.setgroups([])
    _native.set_capabilities(int(capabilities, 16))
    linux.set_no_new_privs()
    storage_finder.prepare(partial(storage_rehearsal.rehearse, times=rehearsal.REPETITIONS))
    hygiene.settle()
    # A foreign interpreter's could write into /tmp only what others of its farm, behind other walls, can read.
    rehearse = rehearsal.rehearse if is_own else partial(rehearsal.rehearse_in, rehearsal.PREPARED)
    rehearse(rehearsal.REPETITIONS)
    _native.share_code()
    rehearse(1)
    hygiene.settle()
    *own, of_sandboxes, of_zygotes = (bytes.fromhex(text) for text in filters.split(","))
    _native.keep_filters(of_sandboxes, of_zygotes)
    _native.prepare(bool(reaps))
    _native.set_title("sockd: root Zygote", "sockd-zygote")
    _native.fill_gaps()
    for program in own:
        linux.install_filter(program)
    if not is_own:
        os.dup2(0, 2)  # what it printed is not read any more
    import_hooks.note_loaded()
    run()


def prepare_interpreter(variables: dict[str, str]) -> None:
    """State that every child inherits: signals, limits, streams, arguments as on AWS, the names that `site` would have defined,
    and these variables. (An image's functions have those of their image, which INIT names.)"""
    import gc
    import site

    gc.disable()
    del sys.path[:2]  # our directory and, from above, its parent: no function imports from them
    sys.argv[:] = [BOOTSTRAP]
    sys.orig_argv[:] = [sys.executable, BOOTSTRAP]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.register_at_fork(after_in_child=hygiene.note_fork)
    limit_cores()
    open_streams()
    site.setquit()
    import_hooks.watch_imports()
    for name in ("LD_BIND_NOW", "LD_PRELOAD"):
        os.environ.pop(name, None)
    os.environ.update(variables)
    time.tzset()


def open_streams() -> None:
    """Open standard output and error once more, as pipes: a sandbox's are, and those of the exec may be /dev/null, which can
    seek. A stream looks only when it is opened, and `reconfigure` of one that takes a pipe for such a file fails."""
    import io

    is_own = bool(os.environ.get("PYTHONIOENCODING"))
    reader, writer = os.pipe()
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        encoding, errors = (stream.encoding, stream.errors) if is_own else ("utf-8", "backslashreplace")
        is_unbuffered = isinstance(stream.buffer, io.FileIO)
        kept = os.dup(fd)
        os.dup2(writer, fd)
        raw = io.FileIO(fd, "wb", closefd=False)
        raw.name = stream.name
        buffer = raw if is_unbuffered else io.BufferedWriter(raw)
        options = {"line_buffering": True, "write_through": is_unbuffered}
        stream.__init__(buffer, encoding, errors, newline="\n", **options)  # type: ignore[misc]
        os.dup2(kept, fd)
        os.close(kept)
    os.close(reader)
    os.close(writer)


def limit_cores() -> None:
    """RLIMIT_CORE is 1, not 0: a core pattern that starts with `|` ignores 0 and honours 1 (core(5)), and no dump is that
    small, so a crash leaves nothing either way. A hard limit of 0 that the daemon could not raise either stays."""
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:
        return


def run() -> None:
    """Serve as a Zygote; a forked sandbox comes back here, and ends here: without the exit handlers of packages that were
    imported before the fork."""
    status = 1
    try:
        role = fork_server.serve()
        if role == fork_server.SPARE:
            if handler_server.begin_prepared is None:
                rehearsal.rehearse()
            else:  # a rehearsal would make it another function
                for first, count in handler_server.ahead:
                    _native.copy_pages(first, count)
            _native.set_title("sockd: spare", "sockd-spare")
            os.write(fork_server.CHANNEL_FD, protocol.encode_frame(protocol.PRIMED, 0))
        status = handler_server.run(fork_server.CHANNEL_FD, is_spare=role == fork_server.SPARE) if role else 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
