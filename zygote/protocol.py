"""The two wires of a sandbox, sans-IO: bytes in, messages out. Both ends import this file; it needs only the stdlib.

Control wire: daemon <-> Zygote. SOCK_SEQPACKET; one message is one datagram, a JSON object, with file descriptors attached.

    daemon                                   Zygote
      │ fork    {id, uid, network} [root, channel, output, procs… or a pipe, a network namespace if it has one]
      ├───────────────────────────────────────►│ clone() a handler sandbox, write its uid_map
      │◄──────────────── forked {id, pid} [pidfd]
      │ spawn   {id, first_uid, uid_count, walled} [control, procs… or a pipe]
      ├───────────────────────────────────────►│ clone() a child Zygote, hand it its block of uids
      │◄──────────────── forked {id, pid} [pidfd]
      │ hello   {id}                              (to the root of an interpreter that is not the worker's own)
      ├───────────────────────────────────────►│ serve
      │◄──────────────── hello {id}
      │ settle  {id} [a network namespace]        (to a walled one, before anything else)
      ├───────────────────────────────────────►│ enter it for good
      │◄──────────────── settled {id}
      │ import  {id, bytes} [a memory file: {paths, pth, env, modules}; a root]
      ├───────────────────────────────────────►│ import, collect, freeze
      │◄──────────────── imported {id, bytes}     (the memory file: {seconds, threads, failed, seen, left})
      │ template {id, bytes} [a memory file: INIT; a root; an output; a network namespace if it has one]
      ├───────────────────────────────────────►│ run a version's init; it forks sandboxes of this version alone from now on
      │◄──────────────── templated {id, bytes}    (the memory file: {seconds, error, refused, closed})
      │ ahead   {id, pages}                       (to a template: its spares copy these pages before they wait)
      ├───────────────────────────────────────►│ keep them in mind
      │◄──────────────── ahead {id}
      │◄──────────────── refused {id, error}      (the answer to any of the seven that could not be done)
      │ status  {id, pid}                         (of a child that has ended, where no pidfd tells: before Linux 6.15)
      ├───────────────────────────────────────►│ look at those that it has waited for
      │◄──────────────── status {id, status}      (a wait status; -1: unknown)

Channel: daemon <-> handler sandbox. A stream; each frame is a 16-byte header and a body that this file does not interpret.

    daemon                                   handler sandbox
      │◄──────────────── PRIMED                   (confined, warm, waiting; a spare stays here)
      │ INIT    `encode_init` [the link to its initscript, if it has one]
      ├───────────────────────────────────────►│ environment
      │ CODE                                      (for a spare: its code is mounted and its limits hold; others find it so)
      ├───────────────────────────────────────►│ sys.path, import the handler
      │◄──────────────── READY (an app? see `APP`) | FAILED
      │ INVOKE  request uuid, timeout, details, event bytes
      ├───────────────────────────────────────►│ call the handler
      │◄──────────────── HEAD                     (an answer that comes piece by piece: its status and headers,
      │◄──────────────── CHUNK …                   then its body)
      │◄──────────────── CHUNK, empty             (all of it has been sent: nothing that follows is to cut it)
      │ GONE                                      (that answer is not read any more)
      ├───────────────────────────────────────►│ close the generator; tell the app
      │◄──────────────── MODULES                  (once, before the first answer ends: what the function imported)
      │◄──────────────── RESULT | FAILED          (RESULT after a HEAD has no answer in it)
      │◄──────────────── UNTAKEN                  (the function's program has ended; no request after the last answer has reached
      │                                            it: another sandbox may serve that)

INIT and INVOKE may be queued before the sandbox exists. Anything out of order, of an unknown type or over its limit is a
ProtocolError, after which the peer is destroyed: there is no resynchronising with untrusted code.
"""

from __future__ import annotations

import json
import marshal
import sys
from struct import Struct

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    pass

CONTROL_MAX_BYTES = 128 * 1024
"""Longest control message; a Zygote that sends more is refused."""
CONTROL_MAX_FDS = 16
CONTROL_ANSWER_MAX_BYTES = 32 * 1024
"""Longest answer of a Zygote: its daemon reads it between two requests of others."""
IMPORT_MAX_BYTES = 1 << 20
"""Longest request of an `import`, in a memory file whose size neither end can change."""
IMPORT_REPORT_MAX_BYTES = 512 * 1024
"""Longest report in it: the daemon reads it between two requests of others."""
IMPORT_PROGRESS = Struct("<I")
"""What follows IMPORT_MAX_BYTES in that file: how many of the modules the Zygote has begun to import."""
IMPORT_FILE_BYTES = IMPORT_MAX_BYTES + IMPORT_PROGRESS.size

TEMPLATE_STAGES = "begins", "runs init", "runs hooks before the snapshot", "looks at what init has left"
"""What a template does, in this order; where IMPORT_PROGRESS stands in its memory file is how far it has got."""

REGION = "us-east-1"
"""The region that functions get, unless their own variables set another: what S3 servers outside of AWS expect in
signatures."""
ENVIRONMENT = {
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EXECUTION_ENV": f"AWS_Lambda_python{sys.version_info[0]}.{sys.version_info[1]}",
    "AWS_REGION": REGION,
    "HOME": "/tmp",
    "LAMBDA_TASK_ROOT": "/var/task",
    "PWD": "/var/task",
    "TZ": ":UTC",
}
"""What every function's environment begins with, over that of the root Zygote's exec; INIT adds what is the function's own."""

FORK = Struct("<cBBBIIIQ")
"""`fork` and `spawn`, which C reads: b"F", kind, with a network namespace, warm, first uid, how many, waits, id. One that
waits is given a pipe instead of its cgroups' files: it goes on when the daemon has moved it (isolation/farm/adoption.py)."""
STATUS = Struct("<c3xIQ")
"""`status`, which C reads, too: b"W", the number of a child that has ended, id."""
FORK_SANDBOX, FORK_ZYGOTE, FORK_WALLED_ZYGOTE = range(3)
HEADER = Struct("<IBBHQ")
"""Frame header: body length in bytes, type, flags, zero, request number."""
INVOCATION = Struct("<16sqI")
"""First bytes of an INVOKE body: request uuid, timeout in ns, length of the details. These, JSON, and the event follow."""
_INVOKE = Struct("<IBBHQ16sqI")
"""HEADER and INVOCATION."""
NO_DETAILS = bytes(4)
"""The length of details in an INVOKE that has none, as nearly all."""
TIMES = Struct("<qq")
"""First bytes of a READY, RESULT, FAILED or UNTAKEN body: start and end in ns of CLOCK_MONOTONIC. The answer follows."""

PRIMED, INIT, READY, INVOKE, RESULT, FAILED, MODULES, HEAD, CHUNK, GONE, CODE, UNTAKEN = range(1, 13)
FRAME_NAMES = dict(enumerate("PRIMED INIT READY INVOKE RESULT FAILED MODULES HEAD CHUNK GONE CODE UNTAKEN".split(), 1))

APP = b"app"
"""What follows the times in READY if the handler is a web app; else nothing does."""
CHUNK_MAX_BYTES = 64 * 1024
"""Longest CHUNK; an empty one says that the answer is complete, where its maker may go on."""
HEAD_MAX_BYTES = 64 * 1024
HEAD_MAX_HEADERS = 256
LENGTH_MAX_DIGITS = 15
"""The most digits of a Content-Length in it; a longer one is no length."""
BODILESS = (204, 304)
"""Statuses of answers without a body, whatever their Content-Length says (RFC 9110, 8.6)."""
FAILED_MAX_BYTES = 64 * 1024
"""Longest error, as JSON: the runtime cuts text and stack to fit."""
MODULES_MAX_BYTES = 512 * 1024
MODULES_MAX = 5000
"""Most modules in it; what one Zygote imports at most by default. litellm: 2 400 modules, 190 KB."""
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
_CONTROLS = bytes([*range(9), *range(10, 32), 127])


class ProtocolError(Exception):
    """The peer sent something that this protocol does not contain; the peer must be destroyed."""


def sandbox_limits(max_answer_bytes: int) -> dict[int, int]:
    """Longest body of each kind of frame that a sandbox may send; other kinds it may not send. The daemon parses the bodies
    of READY, FAILED, MODULES and HEAD on its loop, so these are short; a frame over its limit is refused by its header."""
    return {
        PRIMED: 0,
        READY: TIMES.size + len(APP),
        RESULT: TIMES.size + max_answer_bytes,
        FAILED: TIMES.size + FAILED_MAX_BYTES,
        MODULES: MODULES_MAX_BYTES,
        HEAD: HEAD_MAX_BYTES,
        CHUNK: CHUNK_MAX_BYTES,
        UNTAKEN: TIMES.size,
    }


def encode_control(message: dict) -> bytes:
    """One control message as one datagram. Raises ProtocolError when it is over CONTROL_MAX_BYTES."""
    op = message["op"]
    if op == "fork":
        flags = FORK_SANDBOX, message["network"], message["warm"]
        data = FORK.pack(b"F", *flags, message["uid"], 1, message["waits"], message["id"])
    elif op == "spawn":
        uids = message["first_uid"], message["uid_count"]
        kind = FORK_WALLED_ZYGOTE if message["walled"] else FORK_ZYGOTE
        data = FORK.pack(b"F", kind, False, False, *uids, message["waits"], message["id"])
    elif op == "status":
        data = STATUS.pack(b"W", message["pid"], message["id"])
    else:
        data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > CONTROL_MAX_BYTES:
        raise ProtocolError(f"control message of {len(data)} bytes, limit {CONTROL_MAX_BYTES}")
    return data


def decode_control(data: bytes) -> dict:
    """The control message in a datagram. Raises ProtocolError unless it is a JSON object with "op" and an integer "id"."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"control message is not JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("op"), str) or type(message.get("id")) is not int:
        raise ProtocolError("control message without op and id")
    return message


def encode_init(function: dict) -> bytes:
    """INIT's body. marshal, not JSON: reading it touches a third of the pages. Both ends are one Python."""
    env = {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in function["env"].items()}
    return marshal.dumps({**function, "env": env}, 0)


def change_init(body: bytes, **changes: object) -> bytes:
    """INIT's body with other values for some of its names, but not for "env"."""
    return marshal.dumps({**marshal.loads(body), **changes}, 0)


def decode_init(body: bytes) -> dict:
    """What `encode_init` was given, but for "env", which is dict[bytes, bytes] now."""
    function: dict = marshal.loads(body)
    return function


def encode_head(status: object, headers: object) -> bytes:
    """HEAD's body. Raises: ValueError: HTTP has no such status or header; the message is for the caller that gave it."""
    head = check_head(status, headers)
    body = json.dumps(head, separators=(",", ":")).encode()
    if len(body) > HEAD_MAX_BYTES:
        raise ValueError(f"status and headers of {len(body)} bytes, limit {HEAD_MAX_BYTES}")
    return body


def decode_head(body: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
    """Status and headers of a HEAD, of at most HEAD_MAX_BYTES. Raises: ProtocolError."""
    try:
        status, headers = check_head(*json.loads(body))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"bad HEAD: {error}") from None
    return status, [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def check_head(status: object, headers: object) -> tuple[int, list[tuple[str, str]]]:
    """The two as HTTP can say them, names in lower case. Raises: ValueError, whatever they are."""
    if type(status) is not int or not 200 <= status <= 599:
        raise ValueError(f"status {status!r:.40} is not a number from 200 to 599")
    try:
        pairs = list(headers)  # type: ignore[call-overload]
        if len(pairs) > HEAD_MAX_HEADERS:
            raise ValueError(f"{len(pairs)} headers, limit {HEAD_MAX_HEADERS}")
        return status, [check_header(name, value) for name, value in pairs]
    except TypeError:
        raise ValueError("headers are not pairs of texts") from None


def check_header(name: object, value: object) -> tuple[str, str]:
    """One header as HTTP can say it. Raises: ValueError."""
    if type(name) is not str or type(value) is not str:
        raise ValueError(f"header {name!r:.80}: {value!r:.80}: both must be text")
    name = name.lower()
    if not name or name.encode("latin-1", "replace").translate(None, _TOKEN):
        raise ValueError(f"{name!r:.80} is not a header's name")
    raw = value.encode("latin-1", "replace")
    if raw.translate(None, _CONTROLS) != raw or raw.decode("latin-1") != value:
        raise ValueError(f"header {name:.80}: its value has characters that no header may have")
    return name, value.strip(" \t")


def encode_frame(kind: int, number: int, *parts: bytes) -> bytes:
    """One frame: header and the parts of its body, in one buffer for one write."""
    return b"".join((HEADER.pack(sum(map(len, parts)), kind, 0, 0, number), *parts))


def encode_invoke(number: int, request_id: bytes, timeout_ns: int, details: bytes, event: bytes) -> bytes:
    """An INVOKE frame, with one copy of the event."""
    length = INVOCATION.size + len(details) + len(event)
    head = _INVOKE.pack(length, INVOKE, 0, 0, number, request_id, timeout_ns, len(details))
    return b"".join((head, details, event))
