"""A first read that an initscript has made, played through before there is one, as `sockd_zygote.rehearsal` does with a request.

Runs the storage library's own code on a link and a segment of ours, and leaves nothing behind.
"""

from __future__ import annotations

import os
import socket
from array import array

from sockd_zygote.handlers import initscript_link

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

BYTES = 4096
RPC = ["s3.GetObject", "bucket", "key"]


def rehearse(library: dict[str, Any], times: int) -> None:
    """In the root Zygote. Args: library: its modules, which imports find now, too."""
    for _ in range(times):
        play(library)


def play(library: dict[str, Any]) -> None:
    """What a function with an initscript does with one object."""
    encode = library["sockd_initscript.wire"].encode
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    segment = os.memfd_create("rehearsal", os.MFD_CLOEXEC)
    with far:
        os.truncate(segment, BYTES)
        where = {"status": 200, "segment": 0, "offset": 0, "length": BYTES, "size": BYTES}
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [segment]))]
        far.send(encode({"op": "sent", "id": 0, "rpc": RPC}))
        far.sendmsg([encode({"op": "message", "id": 0, "rpc": RPC, **where})], rights)
        far.send(encode({"op": "checked", "id": 0, "same": True}))  # asked for where sockets are not counted
        far.send(encode({"op": "end", "outcome": "exit", "status": 0}))
        os.close(segment)
        link = near.detach()
        initscript_link.offer(link)
        library["storage"].download_stream(*RPC[1:])
        initscript_link.withdraw(link)
    library["storage"].storage.instance = None
    library["sockd_initscript"].forget()
