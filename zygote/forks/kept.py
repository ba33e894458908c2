"""What imports left behind that a sandbox is to have of its own: open files, shared memory, and what they wrote to /tmp.

`find` runs in the Zygote after its imports. Open files and shared memory are then renewed by C in each child (native/kept.c);
files in /tmp are written again when the sandbox has its code, for a spare's /tmp may be replaced until then; of a template, large
ones stay where they are. What no child can have of its own (sockets, pipes, epoll, processes, timers) is a reason why the Zygote
may not serve.
"""

from __future__ import annotations

import gc
import os
import signal
import stat

from sockd_zygote import _native

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

    from sockd_zygote.forks.parked import Parked

MOST = 64
"""The most open files, and the most shared mappings (native/kept.c)."""
MOST_IN_TMP = 128
MOST_BYTES = 1 << 20
"""The most bytes of what is in /tmp, and of shared mappings: it is copied in each start."""
CLOEXEC = os.O_CLOEXEC
TMP = "/tmp"
LATE = f"{TMP}/", "/var/task/"
"""What a sandbox has only with its code: files there are opened again then."""
STANDARD = range(3)
TIMERS = signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
KINDS = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a pipe"}

in_tmp: list[tuple[str, int, bytes | str | None]] = []
"""(path, mode, a file's content, a link's target, or None for a directory), parents first."""
stays_in_tmp = False
"""Whether there is more than each child should write anew: a template's children have it under a /tmp of their own
(`sockd.isolation.roots.tmp_layer`)."""


def standard_streams() -> list[tuple[int, int]]:
    return [(status.st_dev, status.st_ino) for status in map(os.fstat, STANDARD)]


def has_children() -> bool:
    """Whether a process runs that imports have started (the kernel reaps them)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


STATE: dict[str, Callable[[], object]] = {
    "changes the working directory": os.getcwd,
    "changes a resource limit": lambda: read("/proc/self/limits"),
    "redirects standard input, output or error": standard_streams,
    "leaves a process running": has_children,
    "leaves a timer running": lambda: any(signal.getitimer(each)[0] for each in TIMERS),
    "disables the garbage collector": gc.isenabled,
}
"""What a fork loses, or a sandbox sets itself: an import that changes it is one that each function does by itself."""


class Kept:
    """Notes descriptors, shared memory and other changes that appear; `find` says which of them must not be there."""

    def __init__(self, who: tuple[str, str] = ("an import", "imports leave")) -> None:
        """Args: who: whose they are, for complaints: alone, and with the verb."""
        self._who, self._leave = who
        self._state = {words: look() for words, look in STATE.items()}
        self._own = open_numbers() - {fd for fd, *_ in _kept_files}
        self._mapped = {address for address, *_ in shared_mappings()} - {address for address, _ in _kept_mappings}
        self._seen: dict[int, str] = {}
        self._lowest = lowest_free()

    def note(self, module: str) -> None:
        """After the import of a module: descriptors that are new are its."""
        lowest = lowest_free()
        if lowest != self._lowest:
            self._lowest = lowest
            for fd in open_numbers() - self._own:
                self._seen.setdefault(fd, module)

    def find(self, parked: Parked | None = None) -> list[str]:
        """Have each child renew what can be renewed; why the rest makes the Zygote one that may not serve.

        Args: parked: what else each child of a template gets anew; what is in its /tmp may stay there."""
        complaints: list[str] = []
        _kept_files[:], _kept_mappings[:], _kept_sockets[:] = [], [], []
        given: set[int] = set()
        if parked is not None:
            _kept_sockets.extend((fd, *socket) for fd, socket in parked.sockets.items())
            _kept_files.extend((fd, flags, 0, "/dev/null") for fd, flags in parked.holders.items())
            given = {*parked.sockets, *parked.holders}
        for fd in sorted(open_numbers() - self._own - given):
            try:
                reason = self._keep_file(fd)
            except OSError:
                if is_open(fd):
                    raise
                continue  # a thread in C has closed it meanwhile
            if reason:
                complaints.append(f"{self._seen.get(fd, self._who)} leaves {reason} open (descriptor {fd})")
        for address, size, path in shared_mappings():
            if address not in self._mapped:
                if path.startswith("/") and not path.endswith(" (deleted)"):
                    complaints.append(f"{self._who} leaves {path} mapped as shared memory")
                _kept_mappings.append((address, size))
        if sum(size for _, size in _kept_mappings) > MOST_BYTES:
            complaints.append(f"{self._leave} more than {MOST_BYTES} bytes of shared memory")
        if len(_kept_files) + len(_kept_sockets) > MOST or len(_kept_mappings) > MOST:
            complaints.append(f"{self._leave} more than {MOST} files open or pieces of shared memory")
        complaints += [f"{self._who} {words}" for words, look in STATE.items() if look() != self._state[words]]
        complaints += keep_tmp(self._leave, may_stay=parked is not None)
        if not complaints:
            keep_in_children()
        return complaints

    def _keep_file(self, fd: int) -> str:
        """Why not, in words; empty if it is kept."""
        status, path = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
        kind = stat.S_IFMT(status.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFCHR):
            return KINDS.get(kind, path.rpartition(":")[2].strip("[]"))
        try:
            there = os.stat(path)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino):
            return f"a deleted file ({path})"
        if path.startswith("/proc/"):
            return f"a file of its own process ({path})"
        with open(f"/proc/self/fdinfo/{fd}") as info:
            fields = dict(line.split(":", 1) for line in info if ":" in line)
        if "lock" in fields:
            return f"a locked file ({path})"
        _kept_files.append((fd, int(fields["flags"], 8), int(fields["pos"]), path))
        return ""


_kept_files: list[tuple[int, int, int, str]] = []
"""(descriptor, flags, offset, path)."""
_kept_mappings: list[tuple[int, int]] = []
"""(address, bytes)."""
_kept_sockets: list[tuple[int, int, int, int]] = []
"""(descriptor, family, type with its flags, whether it is closed on exec)."""


def kept_sockets() -> set[int]:
    """Return the numbers of the sockets that each child gets anew."""
    return {fd for fd, *_ in _kept_sockets}


def has_late_files() -> bool:
    """Whether a child opens kept files again only with its code."""
    return any(path.startswith(LATE) for *_, path in _kept_files)


def keep_in_children() -> None:
    _native.forget_kept()
    for fd, flags, offset, path in _kept_files:
        is_late = path.startswith(LATE)
        _native.keep_file(fd, flags & ~CLOEXEC, bool(flags & CLOEXEC), is_late, offset, os.fsencode(path))
    for fd, family, kind, closes_on_exec in _kept_sockets:
        _native.keep_socket(fd, family, kind, bool(closes_on_exec))
    for address, size in _kept_mappings:
        _native.keep_mapping(address, size)


def keep_tmp(leave: str = "imports leave", *, may_stay: bool = False) -> list[str]:
    """Remember what is in /tmp; why it cannot be.

    Args: leave: who has left it there, with the verb; may_stay: if it is too much, nothing of it is remembered, and it stays."""
    global stays_in_tmp
    in_tmp.clear()
    stays_in_tmp, left = False, MOST_BYTES
    directories = [TMP]
    while directories:
        for name in sorted(os.listdir(directory := directories.pop())):
            path = f"{directory}/{name}"
            status = os.lstat(path)
            content: bytes | str | None = None
            if stat.S_ISDIR(status.st_mode):
                directories.append(path)
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                left -= status.st_size
                content = b"" if left < 0 else read(path)
            else:
                return [f"{leave} {path} in /tmp, which is no file"]
            if not stays_in_tmp:
                in_tmp.append((path, stat.S_IMODE(status.st_mode), content))
            if left < 0 or len(in_tmp) > MOST_IN_TMP:
                in_tmp.clear()
                stays_in_tmp = True
                if not may_stay:
                    return [f"{leave} more than {MOST_BYTES} bytes or {MOST_IN_TMP} files in /tmp"]
    return []


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def restore_tmp() -> None:
    """Write again what imports wrote, in a /tmp that has nothing of it, and open again what they left open there.

    A function whose /tmp is too small has as much of it as there is room for, as after imports of its own."""
    for path, mode, content in in_tmp:
        try:
            if content is None:
                os.mkdir(path)
            elif isinstance(content, str):
                os.symlink(content, path)
                continue
            else:
                write(path, content)
            os.chmod(path, mode)
        except OSError:
            continue
    _native.reopen_in_tmp()


def write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def lowest_free() -> int:
    fd = os.dup(0)
    os.close(fd)
    return fd


def open_numbers() -> set[int]:
    numbers = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in numbers if is_open(fd)}  # not the directory's own


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def shared_mappings() -> list[tuple[int, int, str]]:
    """(address, bytes, path) of writable memory that a child would share."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, permissions, _, _, _, *path = line.split(None, 5)
            if permissions[1] == "w" and permissions[3] == "s":
                begin, end = (int(number, 16) for number in place.split("-"))
                found.append((begin, end - begin, path[0].strip() if path else ""))
    return found
