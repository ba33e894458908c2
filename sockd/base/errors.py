"""The tree of all errors that sockd raises intentionally.

    SockdError 500
     ├─ BadRequest 400 ── BadArchive, BadFunctionConfig, BadInitscript, BadWasm, BadConfig, InvalidEvent, NotInvoked
     │   └─ BadImage                      a container image that is refused ── NoSuchImage, ImageTooLarge
     ├─ KeyNeeded 401                     the request has no key of the worker
 ├─ Forbidden 403 ── KeyNotEnough, RunClosed, NotAManager, ImageAccessDenied
 ├─ NoSuchFunction 404 ── NoSuchVersion
 ├─ NoSuchKey 404, UnknownImage 404
     ├─ MethodNotAllowed 405
     ├─ NameTaken 409                     a deploy from another source than the function's
     ├─ ImageInUse 409
     ├─ OtherCode 412                     the caller named the code that may run; nothing was run
     ├─ RequestTooLarge 413
     ├─ TooManyRequests 429 ── TooManyEvents
     ├─ FunctionFailed 500                the handler ran and raised
     │   ├─ LaunchAborted                 the initscript decided that nothing is to be run
     │   ├─ InitFailed                    importing the handler raised
     │   ├─ VersionFailed 422             the new version of a deploy does not start; the one before serves on
     │   └─ ResponseTooLarge
     ├─ ServiceAnswerLost 502             the program of a service gave no whole answer
     ├─ SandboxDied 502 ── OutOfMemory    the process is gone
     │   └─ NotTaken                      the function's program was gone before it had the request: another may serve it
     ├─ NoCapacity 503                    nothing was run; trying again may help
     │   ├─ BeingRestored            packages or an image of the function are being fetched again
     │   ├─ BuffersFull              the front's memory for bodies and answers
     │   ├─ ClientGone               it waited for its turn, and its client has gone
     │   ├─ DatabaseUnavailable       what the worker stores cannot be read or written now
     │   ├─ Draining
     │   ├─ FilesMissing              files of the function are being fetched from the worker's group
     │   ├─ StartsBusy               as many of the function's sandboxes were starting as may
     │   └─ StorageFull 507               nothing was changed
     ├─ ServiceNotReady 503               the program of a service does not run, or takes no connection
     ├─ NetworkUnavailable 503            this worker cannot make private networks
     ├─ RegistryUnavailable 503           a container registry does not answer
     ├─ SandboxFailed 503                 the platform could not make a sandbox
     ├─ CodeLost 503                      this worker has no code any more of a function
     ├─ ModuleLost 503                    a function's WebAssembly module has to be compiled again
     ├─ DamagedImage 503                  an image on this worker is not as it was written
     ├─ ImagesUnavailable 503             this worker cannot run functions in images
     ├─ ImageLost 503                     this worker has no image any more that a function runs in
     ├─ ImageNotReady 503                 an image could not be mounted in time
     ├─ ImagePythonFailed 503             the worker could not find out what serves a handler in an image
     ├─ SecretsLocked 503                 an environment does not open with the worker's key
     ├─ ChunkStoreFailed 503 ── StoreUnavailable, ChunkMissing, ChunkUnreadable, ManifestMissing, Tampered,
     │                                    ImageUnavailable; StoreFull 507
     ├─ PackagesFailed 503 ── ResolveFailed 400 ── BuildNeeded; BuildFailed 400; InstallFailed;
     │                                    PackagesMissing
     └─ TimedOut 504 ── Interrupted        its sandbox goes on

An error carries its consequence: `status` is the HTTP status of `/run`, `error_type` the name that clients see
(AWS Lambda's own where there is one: research of its recorded answers). Messages are public: they name no host path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from sockd.base.telemetry import Invocation


class SockdError(Exception):
    """The root of the tree; raised itself only for a bug of sockd, which a caller sees as a 500."""

    status = 500
    error_type = "ServiceException"
    invocation: Invocation | None = None
    """Data of the failed invocation, if it reached a sandbox."""
    retry_after_s: int | None = None
    """When another attempt may succeed; None: that is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def again(self) -> Self:
        """The same, for another caller, who may add to it."""
        copy = type(self).__new__(type(self))
        copy.args = self.args
        copy.__dict__.update(self.__dict__)
        return copy


class BadRequest(SockdError):
    """The request is invalid; the message says what to send instead."""

    status = 400
    error_type = "InvalidParameterValueException"


class BadArchive(BadRequest):
    """A code directory or zip archive that is refused before a deploy."""

    error_type = "InvalidZipFileException"


class BadFunctionConfig(BadRequest):
    """`sockd.toml` or the entry point of a function is wrong."""


class BadImage(BadRequest):
    """A container image, or a reference to one, that is refused: malformed, altered, unsupported, hostile."""


class NoSuchImage(BadImage):
    """The registry, layout or archive has no such image."""


class ImageTooLarge(BadImage):
    """The image exceeds one of the worker's limits; the message names it."""


class BadInitscript(BadRequest):
    """An initscript that cannot run: malformed, too large, an unknown import; or this worker has no engine."""

    error_type = "InvalidInitscriptException"


class BadWasm(BadRequest):
    """A WebAssembly module that can serve no request: malformed, an unknown import, no entry; or this worker has no compiler."""

    error_type = "InvalidModuleException"


class BadConfig(BadRequest):
    """The daemon's own configuration is wrong; it does not start."""


class InvalidEvent(BadRequest):
    """The payload of a request is not JSON."""

    error_type = "InvalidRequestContentException"


class NotInvoked(BadRequest):
    """A service is called over HTTP, or by a connection to its port: it takes no events, and has no published versions."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is a service: call it over HTTP, at /run/{name}/PATH, without a version or alias")


class NoWebSockets(SockdError):
    """The client wants to open a WebSocket where none is offered."""

    status = 501
    error_type = "NotImplementedException"

    def __init__(self) -> None:
        super().__init__(
            "no WebSocket is offered here, but server-sent events are: an answer that streams. A service has WebSockets at /run"
        )


class KeyNeeded(SockdError):
    """The request requires a key, and has none or an unknown one."""

    status = 401
    error_type = "UnauthorizedException"

    def __init__(self, message: str, *, is_wrong: bool = False) -> None:
        """Args: is_wrong: the request has an unknown key."""
        super().__init__(message)
        self.challenge = 'Bearer realm="sockd"' + (', error="invalid_token"' if is_wrong else "")


class Forbidden(SockdError):
    """The caller is not permitted to do this."""

    status = 403
    error_type = "AccessDeniedException"


class KeyNotEnough(Forbidden):
    """The key does not have this permission."""


class RunClosed(Forbidden):
    """`/run` is disabled, for the worker or for this function."""

    def __init__(self, name: str = "") -> None:
        """Args: name: the function with this rule; empty: the worker."""
        where = f"for the function {name!r} (`run`)" if name else "on this worker (http.run)"
        super().__init__(f"/run is closed {where}; call it by a function URL, or by AWS's Invoke with a signature")


class NotAManager(Forbidden):
    """The process at the management socket belongs neither to root nor to a member of the management group."""

    def __init__(self, group: str) -> None:
        members = f" and the members of the group {group!r}" if group else ""
        super().__init__(f"only root{members} may manage this worker")


class ImageAccessDenied(Forbidden):
    """The registry refuses the image to these credentials, or to a client without any."""


class NoSuchKey(SockdError):
    """No key has this name."""

    status = 404
    error_type = "ResourceNotFoundException"

    def __init__(self, name: str) -> None:
        super().__init__(f"no key {name[:80]!r}; `sockd keys ls` lists them")


class UnknownImage(SockdError):
    """The worker has no such image."""

    status = 404
    error_type = "ResourceNotFoundException"

    def __init__(self, text: str) -> None:
        super().__init__(f"this worker has no image {text[:80]!r}; `sockd images ls` lists them")


class ImageInUse(SockdError):
    """An image cannot be removed: a function needs it."""

    status = 409
    error_type = "ResourceConflictException"

    def __init__(self, digest: str, users: Sequence[str]) -> None:
        super().__init__(f"{digest[:19]} is in use by {', '.join(users)}")


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


class QueryNotTaken(SockdError):
    """A query was sent to a function of events, which would not see it."""

    status = 400
    error_type = "InvalidRequestException"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the function {name!r} takes its event from the body, so the query would not reach it: send it as JSON in the body, "
            "or call the function's URL (sockd url), whose events have queryStringParameters"
        )


class NameTaken(SockdError):
    """The deploy would replace a function that was deployed from another source."""

    status = 409
    error_type = "ResourceConflictException"

    def __init__(self, name: str, current: str, given: str) -> None:
        super().__init__(
            f"the function {name!r} was deployed from {current}, and this deploy is from {given}: choose another name "
            "(@sockd.function(name=...), sockd deploy --name), or deploy with --force, which replaces the function"
        )


class OtherCode(SockdError):
    """The request names a code digest, and other code is deployed under this name."""

    status = 412
    error_type = "PreconditionFailedException"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the deployed function {name!r} has other code than this caller; nothing ran. Deploy the caller's code "
            "(sudo sockd deploy FILE.py), or restart the caller if its code has changed"
        )


class RequestTooLarge(SockdError):
    """The payload is over the limit (AWS: 6 MB)."""

    status = 413
    error_type = "RequestTooLargeException"


class TooManyRequests(SockdError):
    """The function's concurrency and its queue are both full."""

    status = 429
    error_type = "TooManyRequestsException"
    reason = "ReservedFunctionConcurrentInvocationLimitExceeded"
    """AWS's name of the limit."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyEvents(TooManyRequests):
    """The queue of asynchronous invocations is full."""

    reason = "CallerRateLimitExceeded"


class FunctionFailed(SockdError):
    """The handler raised; `error_type` and the stack are the handler's own."""

    def __init__(self, error_type: str, message: str, stack_trace: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.stack_trace = list(stack_trace)


class InitFailed(FunctionFailed):
    """The handler's module could not be imported, or the entry point is not in it."""


class VersionFailed(FunctionFailed):
    """The new version of a deploy was started once and does not start; the version before serves on."""

    status = 422
    error_type = "Deploy.VersionFailed"

    def __init__(self, name: str, cause_type: str, cause: str, stack_trace: Sequence[str] = ()) -> None:
        """Args: cause_type, cause: the error of the start, as a request would have got it."""
        text = f"the new version of {name} does not start, and requests do not go to it: {cause_type}: {cause}"
        super().__init__(self.error_type, text, stack_trace)
        self.reason = f"{cause_type}: {cause}"


class LaunchAborted(FunctionFailed):
    """The function's initscript aborted the launch; `exit_status` is the script's. The handler did not answer."""

    error_type = "Initscript.LaunchAborted"

    def __init__(self, exit_status: int, message: str) -> None:
        text = f"the initscript aborted the launch with status {exit_status}" + (f": {message}" if message else "")
        super().__init__(self.error_type, text)
        self.exit_status = exit_status


class ResponseTooLarge(FunctionFailed):
    """The handler's answer is over the limit (AWS: 6 MB); of a function URL, the status is 502."""

    status = 413
    error_type = "Function.ResponseSizeTooLarge"


class SandboxDied(SockdError):
    """The handler's process ended in the middle of a request (AWS: Runtime.ExitError)."""

    status = 502
    error_type = "Runtime.ExitError"
    has_exited = False
    """Whether it is known that it ended by itself, and not by a signal."""


class NotTaken(SandboxDied):
    """The function's program ended before it asked for the request."""

    def __init__(self) -> None:
        super().__init__("the function's program ended before it asked the Runtime API for the request")


class OutOfMemory(SandboxDied):
    """The kernel killed the sandbox at its memory limit."""

    error_type = "Sandbox.OutOfMemory"

    def __init__(self, *, limit_bytes: int, peak_bytes: int) -> None:
        super().__init__(
            f"out of memory: limit {limit_bytes / 2**20:.0f} MB (memory_mb), peak {peak_bytes / 2**20:.0f} MB"
        )
        self.limit_bytes = limit_bytes
        self.peak_bytes = peak_bytes


class NoCapacity(SockdError):
    """The worker has no memory for another sandbox and cannot evict one."""

    status = 503
    error_type = "ServiceUnavailableException"
    retry_after_s = 1


class BeingRestored(NoCapacity):
    """Packages or the image of the function were lost on this worker and are being fetched again; nothing ran."""

    error_type = "Function.BeingRestored"
    retry_after_s = 5

    def __init__(self, name: str, waited_s: float) -> None:
        super().__init__(
            f"packages or the image of the function {name!r} were not on this worker, and are being fetched again, which takes "
            f"longer than {waited_s:g} s (packages.restore_wait_s); nothing ran. Try again"
        )


class FilesMissing(NoCapacity):
    """The function was deployed to another worker, and its files are being fetched to this one; nothing ran."""

    error_type = "Function.FilesMissing"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the files of the function {name!r} are not on this worker yet, and are being fetched; try again"
        )


class BuffersFull(NoCapacity):
    """The buffer budget is exhausted, and this client's source has the largest share of it."""

    def __init__(self) -> None:
        super().__init__("the worker's memory for bodies and answers is exhausted (http.buffer_mb); try again")


class ClientGone(NoCapacity):
    """The client of a queued request disconnected, so the request does not run."""

    def __init__(self) -> None:
        super().__init__("the client disconnected while its request was queued")


class ServiceNotReady(SockdError):
    """The program of a service does not run, or takes no connection; the message says why."""

    status = 503
    error_type = "Service.NotReady"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ServiceAnswerLost(SockdError):
    """The program of a service broke its answer off, or its answer is not HTTP."""

    status = 502
    error_type = "Service.AnswerLost"
    is_reset = False
    """Whether the connection was reset before any of the answer came: the program has not read all of the request."""


class Draining(NoCapacity):
    """The worker is shutting down and accepts no new requests."""


class StartsBusy(NoCapacity):
    """As many sandboxes of the function were starting as the processors have work for, and none was ready in time."""

    def __init__(self, waited_s: float, starting: int, init_s: int) -> None:
        """Args: waited_s: how long the request waited; init_s: how long an init takes; 0: that is not known."""
        super().__init__(
            f"no sandbox was ready within {waited_s:g} s (sandbox.start_wait_s and init_timeout_s): {starting} of the function "
            "were starting, as many as the processors have work for, and all others were busy; nothing ran. Try again, or "
            "provision sandboxes"
        )
        self.retry_after_s = max(1, init_s)


class DatabaseUnavailable(NoCapacity):
    """The worker's database does not answer or refuses to write; the request stored nothing. The message names the reason."""

    error_type = "Database.Unavailable"


class StorageFull(NoCapacity):
    """The disk of the state directory is full; the request changed nothing."""

    status = 507
    error_type = "InsufficientStorageException"

    def __init__(
        self,
        what_to_do: str = "free some of it, or remove functions (sockd rm NAME)",
        disk: str = "the disk of the state directory",
    ) -> None:
        super().__init__(f"{disk} is full; {what_to_do}")


class HostFailed(SockdError):
    """The host refused a resource that the worker needs: descriptors, memory or disk. The message names it."""

    status = 503
    error_type = "Host.Failed"

    def __init__(self, words: str) -> None:
        super().__init__(f"the host refused a resource: {words}; the worker's log names the call")


class NetworkUnavailable(SockdError):
    """This worker cannot make private networks: its host lacks something, or its configuration says so."""

    status = 503
    error_type = "ServiceException"

    def __init__(self, why: str) -> None:
        super().__init__(f"this worker has no private networks: {why}")


class NoHostPort(SockdError):
    """A service with the host's network can have no port of the host; the message says why."""

    status = 503
    error_type = "Service.NoHostPort"

    def __init__(self, message: str) -> None:
        super().__init__(message)


class RegistryUnavailable(SockdError):
    """A container registry cannot be reached or fails; a later attempt may succeed."""

    status = 503
    error_type = "ServiceException"


class SandboxFailed(SockdError):
    """A sandbox could not be created or prepared; the request did not reach the handler."""

    status = 503
    error_type = "Sandbox.Failed"


class DamagedImage(SockdError):
    """The file system of an image is not as its writer wrote it."""

    status = 503
    error_type = "Sandbox.Failed"


class ImagesUnavailable(SockdError):
    """This worker cannot run functions in container images; the message says what it takes."""

    status = 503
    error_type = "Images.Unavailable"


class CodeLost(SockdError):
    """The worker does not have the code of a function any more; deploying it again helps."""

    status = 503
    error_type = "Code.Lost"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the code of the function {name!r} is not on this worker any more: deploy the function again (sockd deploy), or "
            "stop sockd, put the directory `code` of a backup back, and start sockd"
        )


class ModuleLost(SockdError):
    """The compiled module of a WebAssembly function is not on this worker any more; the next call or the background makes it."""

    status = 503
    error_type = "Code.ModuleLost"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the compiled module of the function {name!r} is not on this worker any more, and will be compiled again. If this "
            "does not change, the worker has another wasmtime than the function: deploy it again (sockd deploy). A component for "
            "wasi:http needs the host of such components: make wasm-host, and start the worker again"
        )


class ImageLost(SockdError):
    """The worker does not have the image of a function any more, and cannot fetch it again; importing it again helps."""

    status = 503
    error_type = "Images.Lost"

    def __init__(self, digest: str, *, is_unreadable: bool) -> None:
        """Args: is_unreadable: its record is there, and is none."""
        how = "cannot be read (the worker's log says why)" if is_unreadable else "is not on this worker any more"
        super().__init__(
            f"the image {digest[:19]} of the function {how}, and was uploaded, so the worker cannot fetch it: import the same "
            "image again (sockd images add), or deploy the function again with its image (sockd deploy --image)"
        )


class ImageNotReady(SockdError):
    """What a function needs of its image was not there within its time to start; a later attempt may succeed."""

    status = 503
    error_type = "Images.NotReady"
    retry_after_s = 1

    def __init__(self, within_s: float, digest: str = "") -> None:
        name = f"image {digest[:19]}" if digest else "function's image"
        super().__init__(
            f"the {name} was not ready within {within_s:g} s (init_timeout_s): the chunk store (images.store), or this worker, "
            "is too slow; what was read is kept, so try again, or raise init_timeout_s"
        )


class ImagePythonFailed(SockdError):
    """An image's Python was ended before the deploy knew whether Zygotes can serve its handler; a later attempt may succeed."""

    status = 503
    error_type = "Images.PythonFailed"
    retry_after_s = 1

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the worker could not find out whether Zygotes serve the image's Python: {why}. Nothing was deployed: try again; "
            'if it fails again, zygote = "none" deploys it as a program'
        )


class SecretsLocked(SockdError):
    """A function's environment is encrypted with a key that the worker does not have."""

    status = 503
    error_type = "Secrets.Locked"


_STORE = "the chunk store (images.store)"
"""In messages: the setting leads an operator to the store, and callers see no path of a directory."""


class ChunkStoreFailed(SockdError):
    """The chunk store of images could not do what it was asked."""

    status = 503
    error_type = "Images.StoreFailed"


class StoreUnavailable(ChunkStoreFailed):
    """The store does not answer, or refuses; the message says which store (`images.store`), and why. A later attempt may
    succeed."""

    error_type = "Images.StoreUnavailable"
    retry_after_s = 1

    def __init__(self, store: str, why: str) -> None:
        super().__init__(f"{_STORE} {store} is unavailable: {why}")


class StoreFull(ChunkStoreFailed):
    """The store has no room; nothing that was stored is changed."""

    status = 507
    error_type = "Images.StoreFull"

    def __init__(self, store: str) -> None:
        super().__init__(f"{_STORE} {store} is full; remove images (sockd images rm, sockd images gc)")


class ChunkMissing(ChunkStoreFailed):
    """The store does not have a chunk that a manifest names."""

    error_type = "Images.ChunkMissing"

    def __init__(self, store: str, root: str, name: bytes) -> None:
        super().__init__(f"{_STORE} {store} does not have the chunk {name.hex()[:16]} of the root {root}")


class ChunkUnreadable(ChunkStoreFailed):
    """The disk of the store cannot read a chunk, or the worker's agent may not."""

    error_type = "Images.ChunkUnreadable"

    def __init__(self, store: str, name: bytes, why: str) -> None:
        super().__init__(f"the chunk {name.hex()[:16]} in {_STORE} {store} cannot be read: {why}")


class ManifestMissing(ChunkStoreFailed):
    """The store does not have the manifest of an image that this worker uses."""

    error_type = "Images.ManifestMissing"

    def __init__(self, store: str, image: str) -> None:
        super().__init__(f"{_STORE} {store} does not have the image {image[:80]}; deploy it again")


class Tampered(ChunkStoreFailed):
    """A chunk or a manifest is not what was stored; its bytes are not used."""

    error_type = "Images.Tampered"

    @classmethod
    def chunk(cls, store: str, name: bytes, how: str = "has other bytes than its name says") -> Self:
        """Make the error for a chunk in a store."""
        return cls(f"the chunk {name.hex()[:16]} in {_STORE} {store} {how}")


class ImageUnavailable(ChunkStoreFailed):
    """The worker's agent, which serves the files of images, does not run; a later attempt may succeed."""

    error_type = "Images.Unavailable"
    retry_after_s: int = 1

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PackagesFailed(SockdError):
    """The packages of a function are missing."""

    status = 503
    error_type = "Packages.Failed"


class ResolveFailed(PackagesFailed):
    """No set of packages satisfies the declared dependencies; the message contains the resolver's text."""

    status = 400
    error_type = "Packages.ResolveFailed"


class BuildNeeded(ResolveFailed):
    """A requirement has no wheel, and the deploy did not allow that it is built from source."""

    error_type = "Packages.BuildNeeded"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}\nThis deploy does not allow builds from source (build = true in sockd.toml)")


class BuildFailed(PackagesFailed):
    """A distribution could not be built from source; the message ends with the last lines of the build."""

    status = 400
    error_type = "Packages.BuildFailed"


class InstallFailed(PackagesFailed):
    """A distribution could not be installed; the message contains the installer's text."""

    error_type = "Packages.InstallFailed"


class PackagesMissing(PackagesFailed):
    """Packages of a function are not installed on this worker any more; the next call, or the background, installs them."""

    error_type = "Packages.Missing"

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(f"these packages are not on this worker, and will be installed again: {', '.join(names)}")


class TimedOut(SockdError):
    """The deadline passed; the sandbox was killed (AWS: Sandbox.Timedout)."""

    status = 504
    error_type = "Sandbox.Timedout"

    def __init__(self, message: str, limit: str = "") -> None:
        """Args: message: AWS's text, if it has one; limit: the setting that was exceeded."""
        super().__init__(f"{message} ({limit})" if limit else message)
        self.words = message


class Interrupted(TimedOut):
    """The deadline passed while a WebAssembly module computed; the module was interrupted, and its sandbox goes on."""
