"""The memory that the startup data of all images may take, and the thread that fills and frees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class NoStartupRoom(Exception):
    """So much startup data does not fit now."""


class StartupRoom:
    """`take` and `give_back`, in the event loop; `close`."""

    def __init__(self, most_bytes: int) -> None:
        self.thread = ThreadPoolExecutor(1, "startup data")
        """Not one of those that may wait for the store. What is given back is freed before what is taken then is filled."""
        self.held_bytes = 0
        self.refusals = 0
        self._most_bytes = most_bytes

    def take(self, size: int) -> None:
        """Raises: NoStartupRoom, which is counted."""
        if self.held_bytes + size > self._most_bytes:
            self.refusals += 1
            raise NoStartupRoom(
                f"starting images have {self.held_bytes >> 20} of {self._most_bytes >> 20} MB (images.startup_mb), "
                f"and it needs {-(-size >> 20)}"
            )
        self.held_bytes += size

    def give_back(self, size: int) -> None:
        """What was taken."""
        self.held_bytes -= size

    def close(self) -> None:
        """End the thread, when it has freed what was given back. Blocks. Again is nothing."""
        self.thread.shutdown()
