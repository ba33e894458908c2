"""`import sockd` in a sandbox: the decorator, which changes nothing here, and the handler in front of the function.

This file is put into a deployed function's code as sockd.py, with a few lines after it that say which function it is; it is
the handler's module, too, so that there is only one to load. Like all that runs in sandboxes it imports the standard
library alone, and what only pickles need when there is one.

A call of a client's is {"sockd": 1, "args": [...], "kwargs": {...}} or {"sockd": 1, "pickle": "..."}; any other event gives
the arguments by name, or the only one, so that curl and AWS's SDKs can call the function, too. This file names no default
package: the code that is packed with a function selects its default packages (`sockd/functions/code/default_packages.py`).
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class RemoteError(Exception):
    """Here only for code that names it."""


class NoWorker(ConnectionError):
    """Here only for code that names it."""


class DeployFailed(Exception):
    """Here only for code that names it."""


class NameTaken(DeployFailed):
    """Here only for code that names it."""


class OtherCode(DeployFailed):
    """Here only for code that names it."""


class UnverifiedAnswer(RemoteError):
    """Here only for code that names it."""


class BadCall(Exception):
    """A pickle that the deployer has not signed, or for a function that takes none."""


def function(target: Callable[..., Any] | None = None, **settings: object) -> Any:
    """The decorator: the function itself, with what a client's would have."""

    def mark(target: Any) -> Any:
        target.local = target
        target.remote = target.map = target.starmap = target.as_completed = target.spawn = target.deploy = _refuse
        return target

    return mark if target is None else mark(target)


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError(
        "remote(), map(), spawn() and the like are the client's: within a function call others directly, and keep a module's own "
        'calls under `if __name__ == "__main__":`'
    )


def make_handler(target: Any, module: str, pickles: bool) -> Any:
    """The function that the sandbox calls. Args: module: the target's; pickles: whether arguments and results may be some."""
    code = getattr(getattr(target, "__wrapped__", target), "__code__", None)
    if code is not None and code.co_flags & 0x80:  # a coroutine function

        async def handler(event: Any, context: Any) -> Any:
            is_call, args, kwargs = arguments(event, context, module, pickles)
            return answer(await target(*args, **kwargs), is_call, pickles)

        return handler

    def plain_handler(event: Any, context: Any) -> Any:
        is_call, args, kwargs = arguments(event, context, module, pickles)
        return answer(target(*args, **kwargs), is_call, pickles)

    return plain_handler


def arguments(event: Any, context: Any, module: str, pickles: bool) -> tuple[bool, Any, dict[str, Any]]:
    """Whether a client calls, and the arguments. Raises: BadCall."""
    if type(event) is not dict:
        return False, (event,), {}
    if "sockd" not in event:
        return False, (), event
    if "pickle" not in event:
        return True, event["args"], event["kwargs"]
    if not pickles:
        raise BadCall("this function takes no pickles: arguments must be JSON")
    if not getattr(context, "_from_deployer", False):  # the daemon's word: it has verified the signature
        raise BadCall(
            "the pickle was not signed by the user who deployed this function; send JSON, or deploy it yourself"
        )
    args, kwargs = _unpickled(event["pickle"], module)
    return True, args, kwargs


def answer(value: Any, is_call: bool, pickles: bool) -> Any:
    """Return a result as the client, or another caller, gets it."""
    if not is_call:
        return value
    if is_json(value):
        return {"sockd": 1, "json": value}
    if not pickles:
        raise TypeError(f"the result must be JSON, for the function has pickle=False; it is {type(value).__name__}")
    import base64
    import pickle

    try:
        data = pickle.dumps(value, protocol=5)
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise TypeError(f"the result cannot be sent, as it has no pickle: {error}") from error
    return {"sockd": 1, "pickle": base64.b64encode(data).decode()}


def _unpickled(text: str, module: str) -> Any:
    import base64
    import io
    import pickle

    class Unpickler(pickle.Unpickler):
        def find_class(self, where: str, name: str) -> Any:
            return super().find_class(module if where == "__main__" else where, name)

    return Unpickler(io.BytesIO(base64.b64decode(text))).load()


def is_json(value: Any) -> bool:
    """Whether JSON gives this very value back: no tuple, no key that is no text, no NaN."""
    pending = [value]
    while pending:
        each = pending.pop()
        kind = type(each)
        if kind is list:
            pending.extend(each)
        elif kind is dict:
            for name in each:
                if type(name) is not str:
                    return False
            pending.extend(each.values())
        elif kind is float:
            if each - each != 0.0:  # infinite, or no number
                return False
        elif each is not None and kind is not str and kind is not int and kind is not bool:
            return False
    return True
