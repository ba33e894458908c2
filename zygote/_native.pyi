"""What zygote/native/*.c offers to Python."""

from collections.abc import Callable
from typing import Any

def serve(control: int, /) -> int:
    """Answer fork requests until there is something for Python to do; which of fork_server's roles that is. Raises: OSError."""

def message() -> bytes:
    """The control message that `serve` returned for, empty at the end of the wire; or what was sent for this child."""

def message_fds() -> list[int]:
    """The descriptors that came with that message, now the caller's; at numbers that imports do not see."""

def settle_atfork() -> bool:
    """Forget handlers of libraries that are not loaded any more; whether there was room for all (pthread_atfork(3))."""

def keep_file(fd: int, flags: int, closes_on_exec: bool, in_tmp: bool, offset: int, path: bytes, /) -> None:
    """Have each child open this file again, as `fd`. Raises: OSError(EMFILE): those are too many."""

def keep_socket(fd: int, family: int, kind: int, closes_on_exec: bool, /) -> None:
    """Have each child make an unconnected socket, as `fd`. Raises: OSError(EMFILE): those are too many."""

def keep_mapping(address: int, size: int, /) -> None:
    """Have each child's copy of this memory, which is mapped MAP_SHARED, be its own. Raises: OSError(ENOMEM)."""

def forget_kept() -> None:
    """Nothing is kept any more."""

def reopen_in_tmp() -> None:
    """Open the files among those kept that are in /tmp. Raises: OSError."""

def observe(observer: Callable[[str, tuple[Any, ...]], object], /) -> None:
    """Call `observer` with (event, arguments) of audit events that show an import directories, change its environment or start
    processes. Note the names that C code passes to getenv(3), and those at the top of the function's directory that are looked
    for.

    Raises: RuntimeError where this file was not preloaded."""

def stop_observing() -> tuple[bytes, bool, bytes, bool]:
    """Observe no more; (the variables, each with a zero behind it; whether there was room for all; the files, likewise)."""

def prepare(reaps: bool, /) -> None:
    """Get ready to fork, before the first `serve`. Args: reaps: wait for children and note their statuses; else the kernel reaps.

    Raises: OSError."""

def await_children() -> None:
    """Have children that end wait until they are asked for, as by default. Raises: OSError."""

def disown_children() -> bool:
    """Have the kernel reap children again; whether it was the default until now, and no handler. Raises: OSError."""

def settle_in_network(network: int, /) -> None:
    """Enter a network namespace for good: children are born there, unless their fork names another. Raises: OSError."""

def move_up(fd: int, /) -> int:
    """The same at a number that imports do not see; `fd` is closed. Raises: OSError."""

def keep_filters(sandbox: bytes, zygote: bytes, /) -> None:
    """The seccomp programs that children add to this process's, by their kind."""

def part_large(joins: bool, /) -> int:
    """Move large blocks of malloc(3) into a memory file where the kernel cannot join them to huge pages; how many bytes.

    Only while there is one thread. Args: joins: whether to try huge pages first. Raises: OSError."""

def copy_pages(first: int, count: int, /) -> None:
    """Have pages of these numbers be this process's own, as far as it may write to them and the kernel can (Linux 5.14)."""

def receive(channel: int, soon: bool = False, /) -> tuple[int, int, bytes, tuple[int, ...]] | None:
    """The next frame (kind, number, body, descriptors with it), or None at the end of the stream. Raises: OSError.

    Args: soon: it is about to come, so wait awake, for a fraction of a millisecond at most."""

def reply(
    channel: int, kind: int, number: int, started_ns: int, ended_ns: int, body: bytes, modules: bytes = ..., /
) -> None:
    """Send a frame whose body begins with protocol.TIMES; if `modules` is given, that first, as MODULES, in the same write.
    Raises: OSError."""

def set_environment(variables: dict[bytes, bytes], /) -> None:
    """Add variables to the environment that C code sees; os.environ is the caller's."""

def set_request_variable(place: int, entry: bytes, /) -> None:
    """Set a variable that C code sees (`NAME=value`), or take it away (`NAME`), in a place that its later values have, too: what
    setenv(3) has once stored it keeps, one string for each request. Raises: ValueError: 3 places of 640 bytes."""

def limit_open_files(count: int, /) -> None:
    """Lower RLIMIT_NOFILE, or leave it where it is lower already. Raises: OSError."""

def drop_bounding_set(keep: int, /) -> None:
    """Empty the capability bounding set but for these bits. Raises: OSError."""

def set_capabilities(keep: int, /) -> None:
    """Effective and permitted become these bits, inheritable and ambient empty. Raises: OSError."""

def lock_securebits() -> None: ...
def set_no_new_privs() -> None: ...
def install_filter(program: bytes, /) -> None: ...
def set_dumpable() -> None: ...
def close_fds_from(first: int, last: int = ..., /) -> None: ...
def set_title(title: str, name: str, /) -> None:
    """Change what ps(1) shows: the command line, of which 200 bytes are kept, and the process's name, of which 15 are."""

def generator_state(capsule: object, count: int, /) -> memoryview:
    """The first bytes of the state of a NumPy BitGenerator, writable, while that lives. Args: capsule: its attribute of this
    name. Raises: ValueError, for another capsule or object."""

def fill_gaps() -> None:
    """Take the gaps between what is allocated, so that children allocate in few pages and do not copy many."""

def share_code() -> None:
    """Have children inherit how the code and constants of large files are mapped, so far as they are used from now on.
    Raises: OSError."""

def gather_arenas() -> None:
    """Have Python's arenas lie behind each other from now on. Once in the life of a process and its children."""

def separate_growth() -> None:
    """Have what is allocated from now on begin where a huge page can."""

def join_pages() -> None:
    """Make huge pages of what was allocated since `separate_growth`, where the kernel can; some ms."""
