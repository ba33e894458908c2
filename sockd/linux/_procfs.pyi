"""What sockd/linux/native/procfs.c offers to Python."""

def open_context(process: int, home: int, wire: int, /) -> None:
    """Open a file system context of procfs (fsopen(2)) in the pid namespace of a process, and send its descriptor over a socket.

    Args: process: its pidfd; home: the calling thread's own pid namespace; wire: one end of a connected pair of Unix sockets; no
        descriptor above it is copied. Raises: OSError; ProcessLookupError: the process has ended."""
