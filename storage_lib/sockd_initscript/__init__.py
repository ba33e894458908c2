"""The link between a function and its initscript: what the script fetched is here before the function asks for it.

    message = sockd_initscript.link().recv_msg(7)      # blocks until the script has sent it
    message.view                                       # a read-only memoryview; nothing was copied

There is a link in a new sandbox only, until its first answer; everywhere else `link()` is None. Code that uses it must do
without: every wait may end in `NoMessage`, and then the function does the work itself.
"""

from __future__ import annotations

import _thread
import os
import stat
import sys

from .no_message import NoMessage

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from .app_link import Link

__all__ = ["NoMessage", "expire", "forget", "link"]

VARIABLE = "SOCKD_INITSCRIPT_FD"
"""FD:INODE of the link, in the environment of a program behind the Runtime API."""
OFFER = "sockd_zygote.handlers.initscript_link"
"""The module of a sandbox that knows the link of a handler, in the same process."""


_lock = _thread.allocate_lock()
_looked = False
_link: Link | None = None
_owner = 0


def link() -> Link | None:
    """This process's link, if it has one. A forked child has none: two readers would take each other's messages."""
    if not _looked:
        _open()
    return _link if _link is not None and _owner == os.getpid() else None


def expire() -> None:
    """The first answer is out: forget what came and close the link. Views that were handed out stay valid."""
    global _looked, _link
    with _lock:
        if not _looked:
            _looked = True
            os.close(_descriptor())
            return
        expired, _link = _link, None
    if expired is not None and _owner == os.getpid():
        expired.close()


def forget() -> None:
    """After `expire`: as if this process had never had a link. For one that is forked for others."""
    global _looked
    _looked = False


def _open() -> None:
    global _looked, _link, _owner
    with _lock:
        if _looked:
            return
        _looked = True
        try:
            fd = _descriptor()
            from .app_link import Link  # only now: most sandboxes have no initscript

            _link = Link(fd, is_inherited=getattr(sys.modules.get(OFFER), "offered", None) is None)
        except OSError:
            return
        _owner = os.getpid()


def _descriptor() -> int:
    """The link's. Raises: OSError, when there is none, or it is not inherited, or its number is another file's by now."""
    offered: int | None = getattr(sys.modules.get(OFFER), "offered", None)
    if offered is not None:
        return offered
    number, _, inode = os.environ.get(VARIABLE, "").partition(":")
    if not number.isdecimal() or not inode.isdecimal():
        raise OSError(2, f"no {VARIABLE}")
    found = os.fstat(int(number))
    if not stat.S_ISSOCK(found.st_mode) or found.st_ino != int(inode):
        raise OSError(9, f"{VARIABLE} names another file")
    return int(number)
