"""What sockd/linux/native/procfs.c offers to Python."""

def start(notify: int, /) -> object:
    """A thread that mounts one procfs after the other; it ends when what is returned is released.

    Args: notify: an eventfd, to which it adds one for each that was made. Raises: OSError."""

def ask(thread: object, number: int, process: int, only_own: bool, attributes: int, /) -> None:
    """Have it mount the procfs of the pid namespace that a process is in.

    Args: number: the caller's, for `take`; process: its pidfd, which may be closed at once; only_own: each process sees only
        those that it may trace; attributes: of the mount (fsmount(2)). Raises: OSError."""

def take(thread: object, /) -> tuple[int, int, int] | None:
    """The next that was made: its number, the descriptor of the detached mount, the caller's, and 0; or -1 and an errno, ESRCH if
    the process has ended. None: there is no more yet."""
