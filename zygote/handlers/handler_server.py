"""The loop of a handler sandbox: wait for a function, load it, answer its requests one by one until the channel closes.

Runs after confinement, together with user code and with no more rights than it. What it says is therefore a claim: the daemon
checks frame types, lengths and request numbers, and destroys a sandbox whose channel does not add up.
"""

from __future__ import annotations

import os
import sys
from json import dumps  # functions may replace json's
from time import monotonic_ns, tzset

from sockd_zygote import _native, protocol
from sockd_zygote.forks import hygiene
from sockd_zygote.handlers import entry, import_hooks, initscript_link, storage_finder
from sockd_zygote.handlers.handler import Handler
from sockd_zygote.handlers.import_hooks import ImportTimer
from sockd_zygote.messages import current_request, details, errors
from sockd_zygote.messages.outlet import Outlet
from sockd_zygote.protocol import (
    CODE,
    FAILED,
    GONE,
    INIT,
    INVOKE,
    MODULES_MAX,
    MODULES_MAX_BYTES,
    NO_DETAILS,
    READY,
    RESULT,
    UNTAKEN,
)

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Begin = Callable[[int, int, dict, int | None, bool], Handler | None]

begin_prepared: Begin | None = None
"""In forks of a template: what they do instead of `initialize`, as its init has run."""
ahead: list[tuple[int, int]] = []
"""In a template: rows of pages, by the first and their count, that its spares copy before they wait for a request."""


def run(channel: int, *, is_spare: bool = False) -> int:
    """Be a sandbox to its end; the exit status. Args: is_spare: its code comes after INIT."""
    try:
        hygiene.after_fork()
        return serve(channel, is_spare)
    except SystemExit as error:
        print_exit_message(error.code)
        return exit_status(error.code)
    except (OSError, protocol.ProtocolError):
        return 1  # the channel is gone, or of no use: the daemon has gone
    finally:
        flush()


def exit_status(code: object) -> int:
    """What the shell would see of sys.exit(code)."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def print_exit_message(code: object) -> None:
    """Print the text of sys.exit(text) to stderr, as the interpreter does."""
    if code is None or isinstance(code, int):
        return
    flush()  # earlier output comes first
    try:
        print(code, file=sys.stderr)
    except Exception:  # user code may close or replace stderr, and its __str__ may raise
        return


def serve(channel: int, is_spare: bool) -> int:
    """Become a function and answer its requests; the exit status. Raises: ProtocolError, OSError."""
    frame = _native.receive(channel)
    if frame is None:
        return 0
    kind, number, body, fds = frame
    if kind != INIT:
        raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} before INIT")
    link = initscript_link.only_one(fds) if fds else None
    function = protocol.decode_init(body)
    timer = None
    if begin_prepared is not None:
        handler = begin_prepared(channel, number, function, link, is_spare)
    else:
        if function["paths"]:  # modules outside of packages are not reported
            timer = ImportTimer()
            timer.start()
        handler = initialize(channel, number, function, link, is_spare)
    if handler is None:
        return 1
    if timer is not None and "image_key" in function:
        keys[:] = [(f"{root}/", function["image_key"]) for root in function["paths"]]
    if (
        link is not None and "provisioned" in function
    ):  # what the script has fetched would be as old as the first request is late
        initscript_link.withdraw(link)
        link = None
    answer_requests(channel, handler, function["max_answer_bytes"], timer, None if "debug" in function else link)
    handler.close()
    return 0


def initialize(channel: int, number: int, function: dict, link: int | None, is_spare: bool) -> Handler | None:
    """Become the function in `function` (`protocol.decode_init`): environment, paths, limits, handler. Answers READY or FAILED.

    Args: link: the function's end of the link to its initscript, or to the worker's port for debuggers, if it has one."""
    started = monotonic_ns()
    try:
        _native.limit_open_files(function["open_files"])
        set_environment(function["env"])
        if "settings" in function:
            from sockd_zygote.handlers import interpreter_settings

            interpreter_settings.apply(function["settings"])
        _native.set_title(f"sockd: {function['name']}", function["name"])
        if link is not None and "debug" not in function:
            initscript_link.offer(link)
        if is_spare:
            await_code(channel)
            started = monotonic_ns()
        os.chdir(function["code"])
        extend_path(function)
        if function.get("storage") == "sockd":
            storage_finder.StorageFinder(storage_finder.DIRECTORY).install()
        if link is not None and "debug" not in function:
            storage_finder.serve_clients(function["env"])
        if "debug" in function:
            from sockd_zygote.handlers import debugging

            debugging.attach(function["debug"], link)
        if b"AWS_LAMBDA_LOG_FORMAT" in function["env"]:
            from sockd_zygote.messages import log_layout

            log_layout.apply_json()
        handler = entry.open_handler(function)
        if "rehearsal" not in function:
            import_hooks.lay_out_logs()
    except (SystemExit, protocol.ProtocolError):
        raise
    except BaseException as error:  # KeyboardInterrupt, too: only exiting is no failure
        end_if_forked(error)
        _native.reply(channel, FAILED, number, started, monotonic_ns(), errors.describe(error))
        return None
    end_if_forked()
    _native.reply(channel, READY, number, started, monotonic_ns(), handler.kind)
    return handler


def await_code(channel: int) -> None:
    """Until here a spare needs nothing that is the function's alone but what INIT says. Raises: ProtocolError, OSError."""
    frame = _native.receive(channel, True)
    if frame is None or frame[0] != CODE:
        raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[frame[0]] if frame else 'the end'} instead of CODE")


def set_environment(env: dict[bytes, bytes]) -> None:
    """The function's variables over those of every function."""
    known: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # update() would copy some 40 pages
    known.update(env)
    _native.set_environment(env)
    if b"TZ" in env:
        tzset()


def extend_path(function: dict) -> None:
    """sys.path as the function sees it: its code, its packages, the standard library; then the packages' .pth files, and what the
    imports of its Zygote have appended. And what they have left in /tmp. In an image, INIT names all but what was appended."""
    path = function.get("sys_path")
    if not path:
        code = function["code"]
        path = [code, *function["paths"]]
        for each in sys.path:
            if not each.startswith(("/packages/", code)):
                path.append(each)
    else:
        errors.become_images()
    sys.path[:] = path
    if function["pth"]:
        from sockd_zygote.handlers import package_path

        package_path.run(function["pth"])
    if function.get("sitecustomize"):
        from sockd_zygote.handlers import package_path

        package_path.customize(function["sitecustomize"])
    for restore in hygiene.with_code:
        restore()


def answer_requests(
    channel: int, handler: Handler, max_bytes: int, timer: ImportTimer | None, link: int | None
) -> None:
    """INVOKE after INVOKE until the daemon closes the channel. What the first one imported is sent once, in one write with
    its answer: if it were sent later, a sandbox that is evicted at once would never send it. Then the initscript's work is
    done."""
    first = True
    while (frame := _native.receive(channel)) is not None:
        kind, number, body, _ = frame
        if kind != INVOKE:
            if kind == GONE:
                continue  # it came when the answer was complete
            raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} instead of INVOKE")
        started = monotonic_ns()
        kind, result, ended = answer(handler, channel, number, body, started, max_bytes)
        if first:
            first = False
            _native.reply(channel, kind, number, started, ended, result, stop_timing(timer))
        else:
            _native.reply(channel, kind, number, started, ended, result)
        if handler.has_ended:
            if kind != UNTAKEN:
                _native.reply(channel, UNTAKEN, number, ended, ended, b"")
            return
        if link is not None:
            initscript_link.withdraw(link)
            link = None


def answer(
    handler: Handler, channel: int, number: int, body: bytes, started: int, max_bytes: int
) -> tuple[int, bytes, int]:
    """One request: call the handler, flush what it printed; RESULT, FAILED or UNTAKEN, its body, and when it ended.

    An answer that comes piece by piece has gone out by then."""
    kind = RESULT
    request = current_request.number = body[:16]
    try:
        deadline = started + int.from_bytes(body[16:24], "little")  # protocol.INVOCATION
        if body[24:28] == NO_DETAILS:
            result = handler.call(body[28:], request, deadline)
            if type(result) is not bytes:
                result = pour(result, channel, number)
        else:
            result = answer_with_details(handler, channel, number, body, deadline)
        if len(result) > max_bytes:
            kind, result = FAILED, too_large(max_bytes)
    except SystemExit:
        raise
    except errors.NotTaken:
        kind, result = UNTAKEN, b""
    except BaseException as error:  # asyncio.CancelledError, too: only exiting is no failure
        end_if_forked(error)
        kind, result = FAILED, errors.describe(error)
    end_if_forked()
    ended = monotonic_ns()
    flush()
    return kind, result, ended


def end_if_forked(error: BaseException | None = None) -> None:
    """End a process that the function forked and that came back from its code: the answer is its parent's to give.

    Args: error: with which it came back."""
    if not hygiene.is_forked:
        return
    if error is None:
        print("a process that the function forked has returned from it, and ends", file=sys.stderr)
    else:
        sys.excepthook(type(error), error, error.__traceback__)
    flush()
    os._exit(0 if error is None else 1)


def answer_with_details(handler: Handler, channel: int, number: int, body: bytes, deadline: int) -> bytes:
    """Call the handler with the details of its event (`sockd_zygote.messages.details`). Returns the answer; empty: it
    has gone out."""
    event, metadata = details.split(body)
    with details.Trace(metadata):
        result = handler.call(event, body[:16], deadline, metadata)
        return result if type(result) is bytes else pour(result, channel, number)


def pour(answer: Any, channel: int, number: int) -> bytes:
    """Send an answer piece by piece; nothing is left of it. Raises: what its maker does, also behind a complete answer."""
    answer.pour(Outlet(channel, number))
    return b""


def stop_timing(timer: ImportTimer | None) -> bytes:
    """What was imported, as the body of a MODULES frame: of too many modules, those that came first."""
    if timer is None:
        return b"[]"
    timer.stop()
    if not timer.seconds:
        return b"[]"
    found = imported(timer.seconds)
    while len(body := dumps(found, separators=(",", ":")).encode()) > MODULES_MAX_BYTES:
        del found[len(found) * 3 // 4 :]
    return body


def too_large(max_bytes: int) -> bytes:
    message = f"Response payload size exceeded maximum allowed payload size ({max_bytes} bytes)."
    answer = {"errorMessage": message, "errorType": "Function.ResponseSizeTooLarge", "stackTrace": []}
    return dumps(answer).encode()


def flush() -> None:
    """Push out what the handler printed. It may have closed or replaced the streams: that is its own affair."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


keys: list[tuple[str, str]] = []
"""The directories of an image: directories of its packages, each with what stands for all of them."""


def imported(seconds: dict[str, float]) -> list[tuple[str, str, float]]:
    """(package directory, module, own seconds) of what was imported from packages, in the order the imports began."""
    found = []
    roots = tuple(root for root, _ in keys)
    for name, spent in list(seconds.items()):  # not sys.modules: looking copies its pages
        try:
            origin = sys.modules[name].__spec__.origin  # type: ignore[union-attr]
        except Exception:  # it is gone, or a package put something of its own in its place
            continue
        if isinstance(origin, str) and origin.startswith("/packages/"):
            found.append((origin.split("/", 3)[2], name, round(spent, 6)))
        elif roots and isinstance(origin, str) and origin.startswith(roots):
            found.append((keys[0][1], name, round(spent, 6)))
    return found[:MODULES_MAX]
