"""How workers of a group know each other: each signs its requests with a key that derives from the file which all of them have.

    x-sockd-peer: TIME SIGNATURE        HMAC-SHA256 over the asked worker's name, the time, the target and the shown key

The key derives from `images.key_file`, with which a worker can read the code of all functions anyway. It is in no database, on no
wire, and nothing that a function reaches has it. The name of the asked worker is in the signature, so that another one refuses
it; so is the key of the client for which a worker asks (`Authorization`), or a request without it could do more.

    POLICY: a signature holds for a minute, for clocks that differ. Within it a request that was recorded can be sent again, which
    reads once more what the recorder has seen: the API of the workers only reads.

Owns nothing.
"""

from __future__ import annotations

import hmac
import math

from sockd.base.errors import SockdError

HEADER = b"x-sockd-peer"
HOLDS_S = 60.0


class NotAPeer(SockdError):
    """A request to the API of other workers was not signed by a worker of the group."""

    status = 403
    error_type = "AccessDeniedException"


class PeerKey:
    """The key of one group."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, worker: str, target: bytes, authorization: bytes, now_s: float) -> bytes:
        """Return the header for a request. Args: worker: who is asked; authorization: the client's key, or empty."""
        time = b"%.3f" % now_s
        return time + b" " + self._signature(worker, time, target, authorization)

    def check(self, header: bytes, worker: str, target: bytes, authorization: bytes, now_s: float) -> None:
        """Check the header of a request to this worker. Raises: NotAPeer."""
        time, _, signature = header.partition(b" ")
        if not hmac.compare_digest(signature, self._signature(worker, time, target, authorization)):
            raise NotAPeer(
                "only the workers of this one's group are answered here: images.key_file must be the same for all"
            )
        if not abs(_seconds(time) - now_s) <= HOLDS_S:
            raise NotAPeer(
                f"the clocks of two workers of the group differ by more than {HOLDS_S:g} s: keep NTP running"
            )

    def _signature(self, worker: str, time: bytes, target: bytes, authorization: bytes) -> bytes:
        # None of these has a line's end in it: they came in the head of a request.
        text = b"\n".join([worker.encode(), time, target, authorization])
        return hmac.digest(self._key, text, "sha256").hex().encode()


def _seconds(time: bytes) -> float:
    try:
        return float(time)
    except ValueError:
        return math.nan
