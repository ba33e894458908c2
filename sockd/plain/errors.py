"""Every error that sockd raises on purpose, as one tree.

    SockdError 500
     ├─ BadRequest 400 ── BadArchive, BadFunctionConfig, BadInitscript, BadConfig, InvalidEvent
     ├─ KeyNeeded 401                     no key of the worker's came with the request
 ├─ Forbidden 403 ── KeyNotEnough, RunClosed, NotAManager
 ├─ NoSuchFunction 404 ── NoSuchVersion
 ├─ NoSuchKey 404
     ├─ MethodNotAllowed 405
     ├─ NameTaken 409                     a deploy from another source than the function's
     ├─ OtherCode 412                     the caller named the code that may run; nothing was run
     ├─ RequestTooLarge 413
     ├─ TooManyRequests 429 ── TooManyEvents
     ├─ FunctionFailed 500                the handler ran and raised
     │   ├─ LaunchAborted                 the initscript decided that nothing is to be run
     │   ├─ InitFailed                    importing the handler raised
     │   └─ ResponseTooLarge
     ├─ SandboxDied 502 ── OutOfMemory    the process is gone
     ├─ NoCapacity 503                    nothing was run; trying again may help
     │   ├─ BuffersFull              the front's memory for bodies and answers
     │   ├─ ClientGone               it waited for its turn, and nobody waits for it
     │   ├─ Draining
     │   └─ StorageFull 507               nothing was changed
     ├─ NetworkUnavailable 503            this worker cannot make private networks
     ├─ SandboxFailed 503                 the platform could not make a sandbox
     ├─ SecretsLocked 503                 an environment does not open with the worker's key
     ├─ PackagesFailed 503 ── ResolveFailed 400, InstallFailed
     └─ TimedOut 504

An error carries its consequence: `status` is the HTTP status of the `/run` door, `error_type` the name that clients see
(AWS Lambda's own where there is one: research of its recorded answers). Messages are public: they name no host path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sockd.plain.telemetry import Invocation


class SockdError(Exception):
    """The root of the tree; raised as itself only for a bug of ours that a caller should see as a plain 500."""

    status = 500
    error_type = "ServiceException"
    invocation: Invocation | None = None
    """What is known of the invocation that failed, when it reached a sandbox."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(SockdError):
    """The caller sent something that can never work; the message says what to send instead."""

    status = 400
    error_type = "InvalidParameterValueException"


class BadArchive(BadRequest):
    """A code directory or zip that is refused before it is published."""

    error_type = "InvalidZipFileException"


class BadFunctionConfig(BadRequest):
    """`sockd.toml` or the entry point of a function is wrong."""


class BadInitscript(BadRequest):
    """An initscript that can never run: malformed, too large, an unknown import; or this worker has no engine."""

    error_type = "InvalidInitscriptException"


class BadConfig(BadRequest):
    """The daemon's own configuration is wrong; it does not start."""


class InvalidEvent(BadRequest):
    """The payload of a request is not JSON."""

    error_type = "InvalidRequestContentException"


class KeyNeeded(SockdError):
    """No key came with a request that takes one, or none that the worker knows."""

    status = 401
    error_type = "UnauthorizedException"

    def __init__(self, message: str, *, is_wrong: bool = False) -> None:
        """Args: is_wrong: one came."""
        super().__init__(message)
        self.challenge = 'Bearer realm="sockd"' + (', error="invalid_token"' if is_wrong else "")


class Forbidden(SockdError):
    """The caller is not permitted to do this."""

    status = 403
    error_type = "AccessDeniedException"


class KeyNotEnough(Forbidden):
    """The key was made for less."""


class RunClosed(Forbidden):
    """`/run` is closed, for the worker or for this function."""

    def __init__(self, name: str = "") -> None:
        """Args: name: of the function whose own rule this is; empty: the worker's."""
        where = f"of the function {name!r} (run in its sockd.toml)" if name else "on this worker (http.run)"
        super().__init__(f"/run is closed {where}; call it by a function URL, or by AWS's Invoke with a signature")


class NotAManager(Forbidden):
    """A process that is not root's, nor of a member of the group that manages, asked at the management socket."""

    def __init__(self, group: str) -> None:
        members = f" and the members of the group {group!r}" if group else ""
        super().__init__(f"only root{members} may manage this worker")


class NoSuchKey(SockdError):
    """No key has this name."""

    status = 404
    error_type = "ResourceNotFoundException"

    def __init__(self, name: str) -> None:
        super().__init__(f"no key {name[:80]!r}; `sockd keys ls` lists them")


class NoSuchFunction(SockdError):
    """No function has this name."""

    status = 404
    error_type = "ResourceNotFoundException"


class NoSuchVersion(NoSuchFunction):
    """The function has no published version or alias of that name."""

    def __init__(self, name: str, qualifier: str) -> None:
        self.qualifier = qualifier[:128]
        super().__init__(
            f"function {name!r} has no version or alias {self.qualifier!r}; `sockd versions {name}` lists them"
        )


class NoSuchPackage(SockdError):
    """No package has this key."""

    status = 404
    error_type = "ResourceNotFoundException"


class NoSuchVariable(SockdError):
    """The function has no variable or secret of this name."""

    status = 404
    error_type = "ResourceNotFoundException"


class MethodNotAllowed(SockdError):
    """The path exists, the method does not; `allow` lists those that do."""

    status = 405
    error_type = "MethodNotAllowedException"

    def __init__(self, method: str, allow: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allow}")
        self.allow = allow


class NameTaken(SockdError):
    """A deploy would replace a function that was deployed from another source."""

    status = 409
    error_type = "ResourceConflictException"

    def __init__(self, name: str, current: str, given: str) -> None:
        super().__init__(
            f"the function {name!r} was deployed from {current}, and this deploy is from {given}: choose another name "
            "(@sockd.function(name=...), sockd deploy --name), or deploy with --force, which replaces the function that is there"
        )


class OtherCode(SockdError):
    """The caller's request is for certain code, and other code is deployed under that name."""

    status = 412
    error_type = "PreconditionFailedException"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the worker's function {name!r} runs other code than this caller's; nothing was run. Deploy the caller's code "
            "(sudo sockd deploy FILE.py), or start the caller again if its own code has changed"
        )


class RequestTooLarge(SockdError):
    """The payload is over the limit (AWS: 6 MB)."""

    status = 413
    error_type = "RequestTooLargeException"


class TooManyRequests(SockdError):
    """The function's concurrency and its queue are both full."""

    status = 429
    error_type = "TooManyRequestsException"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyEvents(TooManyRequests):
    """As much as may wait to be run later does."""


class FunctionFailed(SockdError):
    """The handler raised; `error_type` and the stack are the handler's own."""

    def __init__(self, error_type: str, message: str, stack_trace: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.stack_trace = list(stack_trace)


class InitFailed(FunctionFailed):
    """The handler's module could not be imported, or the entry point is not in it."""


class LaunchAborted(FunctionFailed):
    """The function's initscript called the launch off; `exit_status` is its own. The handler did not answer."""

    def __init__(self, exit_status: int, message: str) -> None:
        text = f"the initscript aborted the launch with status {exit_status}" + (f": {message}" if message else "")
        super().__init__("Initscript.LaunchAborted", text)
        self.exit_status = exit_status


class ResponseTooLarge(FunctionFailed):
    """The handler's answer is over the limit (AWS: 6 MB)."""

    status = 413


class SandboxDied(SockdError):
    """The handler's process ended in the middle of a request (AWS: Runtime.ExitError)."""

    status = 502
    error_type = "Runtime.ExitError"


class OutOfMemory(SandboxDied):
    """The kernel killed the sandbox at its memory limit."""

    error_type = "Sandbox.OutOfMemory"

    def __init__(self, *, limit_bytes: int, peak_bytes: int) -> None:
        super().__init__(
            f"out of memory: limit {limit_bytes / 2**20:.0f} MB, peak {peak_bytes / 2**20:.0f} MB; "
            "raise memory_mb in sockd.toml"
        )
        self.limit_bytes = limit_bytes
        self.peak_bytes = peak_bytes


class NoCapacity(SockdError):
    """The worker has no memory left for another sandbox and nothing that it may evict."""

    status = 503
    error_type = "ServiceUnavailableException"


class BuffersFull(NoCapacity):
    """The front holds as much for its clients as it may, and this client's source has the largest share of it."""

    def __init__(self) -> None:
        super().__init__("the worker holds as many bodies and answers as it may (http.buffer_mb); try again")


class ClientGone(NoCapacity):
    """A request's turn came after its client had hung up: running it would only delay those who still wait."""

    def __init__(self) -> None:
        super().__init__("the client closed its side of the connection while its request waited for its turn")


class Draining(NoCapacity):
    """The worker is shutting down and takes no new request."""


class StorageFull(NoCapacity):
    """The disk of the state directory is full; what was there before the request still is."""

    status = 507
    error_type = "InsufficientStorageException"

    def __init__(self) -> None:
        super().__init__("the disk of the state directory is full")


class HostFailed(SockdError):
    """The worker's host did not give the worker what it needs: descriptors, memory, its disk. The message names which."""

    status = 503
    error_type = "Host.Failed"

    def __init__(self, words: str) -> None:
        super().__init__(f"the worker's host failed it: {words}; the worker's log names the call")


class NetworkUnavailable(SockdError):
    """This worker cannot make private networks: its host lacks something, or its configuration says so."""

    status = 503
    error_type = "ServiceException"

    def __init__(self, why: str) -> None:
        super().__init__(f"this worker has no private networks: {why}")


class SandboxFailed(SockdError):
    """A sandbox could not be made or prepared; the request never reached the handler."""

    status = 503
    error_type = "Sandbox.Failed"


class SecretsLocked(SockdError):
    """A function's environment is sealed with a key that the worker does not have."""

    status = 503
    error_type = "Secrets.Locked"


class PackagesFailed(SockdError):
    """The packages of a function are not there."""

    status = 503
    error_type = "Packages.Failed"


class ResolveFailed(PackagesFailed):
    """No set of packages satisfies the dependencies that the code declares; the message holds the resolver's words."""

    status = 400
    error_type = "Packages.ResolveFailed"


class InstallFailed(PackagesFailed):
    """One distribution could not be installed; the message holds the installer's words."""

    error_type = "Packages.InstallFailed"


class TimedOut(SockdError):
    """The deadline passed; the sandbox was killed (AWS: Sandbox.Timedout)."""

    status = 504
    error_type = "Sandbox.Timedout"

    def __init__(self, message: str, limit: str = "") -> None:
        """Args: message: in AWS's words, where there are any; limit: the setting that it ran into."""
        super().__init__(f"{message} ({limit})" if limit else message)
        self.words = message
