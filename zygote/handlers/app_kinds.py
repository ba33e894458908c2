"""Which kind of web app an object is. Imported for an entry point that may be an app, and for no other."""

from __future__ import annotations

import inspect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sockd_zygote.handlers.apps import App


def open_app(target: Any, kind: str) -> App | None:
    """The app that an entry point is.

    Args: kind: wsgi, asgi; auto: one of the two; maybe: one of the two, or a function of events, which gives None.
    Raises: HandlerNotFound: it cannot be called; whatever its startup raises."""
    kind = chosen_kind(target, kind)
    if kind == "asgi":
        from sockd_zygote.handlers.asgi import Asgi

        return Asgi(target)
    if kind == "wsgi":
        from sockd_zygote.handlers.wsgi import Wsgi

        return Wsgi(target)
    return None


def chosen_kind(target: Any, kind: str) -> str:
    """Return asgi, wsgi, or nothing for a function of events. Args: kind: as `open_app` takes it."""
    if kind in ("auto", "maybe"):
        return kind_of(target) or ("wsgi" if kind == "auto" else "")
    return kind


def kind_of(target: Any) -> str:
    """asgi, wsgi, or neither, by how it wants to be called: ASGI's three arguments or WSGI's start_response."""
    inner = inspect.unwrap(target) if callable(target) else target
    try:
        names = list(inspect.signature(inner).parameters)
    except (TypeError, ValueError):
        return ""
    if len(names) == 3 and (is_async(inner) or names[1:] == ["receive", "send"]):
        return "asgi"
    return "wsgi" if "start_response" in names[:2] else ""


def is_async(target: Any) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)
