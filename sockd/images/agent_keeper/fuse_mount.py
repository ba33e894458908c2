"""A FUSE connection and its mount, held by descriptors: /dev/fuse, one more descriptor for each thread of the server, the mount.

Owns them, and the process that holds those of /dev/fuse (`device_holder`). The mount is in no mount table: files are opened below
/proc/self/fd/N. INIT is answered here, once, so that a server that is started anew finds a connection that works. The connection
lives as long as one of the descriptors of /dev/fuse: requests wait while there is no server, and fail once all are closed.

Knows nothing of what the files are.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import struct
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, ExitStack

from sockd.base.blocking import in_thread
from sockd.images.agent import fuse_messages as fuse
from sockd.images.agent.fuse_messages import InitFlag
from sockd.images.agent_keeper.device_holder import DeviceHolder
from sockd.linux import syscalls
from sockd.linux.syscalls import MountAttr
from sockd.linux.ways import OLDEST, Feature, Way

DEVICE = "/dev/fuse"
FUSE_DEV_IOC_CLONE = 0x8004E500
"""_IOR(229, 0, uint32_t)."""
WANTED = (
    InitFlag.ASYNC_READ
    | InitFlag.ASYNC_DIO
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.ABORT_ERROR
    | InitFlag.MAX_PAGES
    | InitFlag.HAS_RESEND
)
MAX_READAHEAD_BYTES = 1 << 20
MAX_PAGES = 256
"""The most pages of one READ: 1 MB."""
MAX_BACKGROUND = 256
"""Reads of EROFS are asynchronous; beyond this number they wait in the kernel."""
INIT_S = 5.0
RESEND, AGAIN = "resend", "again"
ENDS = Feature(
    "an end of the process that serves images",
    (
        Way(RESEND, (6, 9), "the next one answers its reads (FUSE_HAS_RESEND)", "", str),
        Way(
            AGAIN,
            OLDEST,
            "images are mounted again",
            "the sandboxes that ran in images end; their requests get 503, and succeed when they are asked again",
            str,
        ),
    ),
)
"""What becomes of reads, as in `sockd.linux.ways`; the kernel says what it can in INIT (`FuseMount.can_resend`)."""
_SEALED = MountAttr.RDONLY | MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC


class FuseMount:
    """One connection. `open`, `hand_over` before anybody reads, `aclose`."""

    def __init__(self, devices: list[int], mount: int, stack: ExitStack, *, can_resend: bool) -> None:
        self._devices = devices
        """Descriptors of /dev/fuse, one for each thread of a server. A reply goes to the one that its request came from."""
        self._mount = mount
        self.can_resend = can_resend
        """Whether a new server gets the requests that the one before has read (Linux 6.9)."""
        self._stack = stack
        """Closes the devices."""
        self._holder: DeviceHolder | None = None

    @classmethod
    def open(cls, threads: int, *, may_resend: bool = True) -> FuseMount:
        """Mount, and answer INIT.

        Args: may_resend: False: do without resends, as before Linux 6.9.
        Raises: OSError; BadMessage for a kernel of another time."""
        with ExitStack() as stack, ExitStack() as mounted:
            devices = [_opened(stack)]
            # The kernel reads `rootmode` in octal. Only root may look at the mount (no `allow_other`).
            options: dict[str, str | int] = {
                "fd": str(devices[0]),
                "rootmode": f"{stat.S_IFDIR:o}",
                "user_id": str(os.geteuid()),
                "group_id": str(os.getegid()),
                "max_read": str(MAX_PAGES * 4096),
            }
            mount = syscalls.new_filesystem("fuse", options, _SEALED)
            mounted.callback(os.close, mount)
            offered = _answer_init(devices[0], WANTED if may_resend else WANTED & ~InitFlag.HAS_RESEND)
            for _ in range(threads - 1):
                devices.append(_opened(stack))
                fcntl.ioctl(devices[-1], FUSE_DEV_IOC_CLONE, struct.pack("=I", devices[0]))
            mounted.pop_all()
            can_resend = may_resend and bool(offered & InitFlag.HAS_RESEND)
            return cls(devices, mount, stack.pop_all(), can_resend=can_resend)

    async def hand_over(self) -> None:
        """Have the holder's process keep the connection, instead of this one. Raises: OSError."""
        self._holder = await DeviceHolder.start(self._devices)
        self._stack.close()

    def lend(self) -> AbstractAsyncContextManager[Sequence[int]]:
        """As `DeviceHolder.lend`: the descriptors of /dev/fuse for a server."""
        assert self._holder is not None
        return self._holder.lend()

    @property
    def is_lost(self) -> bool:
        """Whether it has ended with its last server, as no other process holds it."""
        return self._holder is not None and self._holder.is_gone

    async def resend(self) -> None:
        """Have the kernel send again what was read and not answered. No server may be running. Raises: OSError."""
        async with self.lend() as devices:
            os.write(devices[0], fuse.resend())

    def path(self, name: str) -> str:
        """Return the path of a file of the mount, for this process."""
        return f"/proc/self/fd/{self._mount}/{name}"

    async def aclose(self) -> None:
        """End the connection, after its last server has ended: reads that wait for a reply fail. Call it once."""
        if self._holder is not None:
            await self._holder.aclose()
        await in_thread(self.close)

    def close(self) -> None:
        """As `aclose`, of one that was not handed over."""
        self._stack.close()
        os.close(self._mount)


def _opened(stack: ExitStack) -> int:
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    stack.callback(os.close, device)
    return device


def _answer_init(device: int, wanted: InitFlag) -> int:
    """Answer INIT, which the mount has queued already. Returns: the flags that the kernel offers. Raises: OSError, BadMessage."""
    poll = select.poll()
    poll.register(device, select.POLLIN)
    if not poll.poll(INIT_S * 1000):
        raise TimeoutError("the kernel sends no INIT")
    request = fuse.decode(memoryview(os.read(device, fuse.MIN_READ_BUFFER)))
    if request.opcode != fuse.Opcode.INIT:
        raise fuse.BadMessage(f"the first request is no INIT but {request.opcode}")
    offer = fuse.decode_init(request.body)
    result = fuse.init_out(
        offer, wanted, max_readahead=MAX_READAHEAD_BYTES, max_background=MAX_BACKGROUND, max_pages=MAX_PAGES
    )
    os.write(device, fuse.reply(request.unique, result))
    return offer.flags
