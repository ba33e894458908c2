"""The lines that a failed request leaves in its function's log, as AWS's runtime writes them: as text, or as JSON.

Pure. The daemon writes them, from what the sandbox reported or from what became of the sandbox: nothing that a function does to
its streams can suppress them. The text is the function's own, bounded by `protocol.FAILED_MAX_BYTES`; the code that shows a log
escapes it as all that functions print.
"""

from __future__ import annotations

import json
import time

from sockd.base.errors import FunctionFailed, SandboxDied, SandboxFailed, SockdError, TimedOut


def failure_log(error: SockdError, request_id: str, time_s: float, *, as_json: bool = False) -> bytes:
    """What to add to the log; empty when the request was refused and the function did not fail.

    Args: time_s: Unix time of the end; as_json: the function's log is JSON."""
    if not isinstance(error, FunctionFailed | SandboxDied | SandboxFailed | TimedOut):
        return b""
    if as_json:
        text = failure_object(error, request_id, time_s)
    elif isinstance(error, TimedOut):
        text = f"{moment(time_s)} {request_id} {error.words}\n"
    else:
        text = failure_text(error)
    return text.encode(errors="backslashreplace")


def failure_text(error: SockdError) -> str:
    """`[ERROR] KeyError: 'missing'`, and the traceback if there is one."""
    lines = f"[ERROR] {error.error_type}: {error.message}".rstrip() + "\n"
    frames = error.stack_trace if isinstance(error, FunctionFailed) else []
    if not frames:
        return lines
    stack = "".join(frame if frame.endswith("\n") else f"{frame}\n" for frame in frames)
    return f"{lines}Traceback (most recent call last):\n{stack}"


def failure_object(error: SockdError, request_id: str, time_s: float) -> str:
    """The same as one object in one line."""
    fields = {
        "timestamp": moment(time_s),
        "level": "ERROR",
        "errorMessage": error.words if isinstance(error, TimedOut) else error.message,
        "errorType": error.error_type,
        "requestId": request_id,
        "stackTrace": list(error.stack_trace) if isinstance(error, FunctionFailed) else [],
    }
    return json.dumps(fields, ensure_ascii=False) + "\n"


def moment(time_s: float) -> str:
    """A Unix time as AWS writes it."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time_s))}.{int(time_s * 1000) % 1000:03}Z"


def appended(log: bytes, text: bytes) -> bytes:
    """A log with lines of ours behind it, which begin a line."""
    return log + text if not log or log.endswith(b"\n") else b"\n".join((log, text))
