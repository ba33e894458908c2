"""What botocore finds out about each handler of an event, found out faster.

A session registers 150 handlers. botocore inspects the signature of each, to see that it takes any argument by name, and replaces
old parts of each event's name by new ones: a sixth of the processor time of `boto3.client` where its data are read ahead
(`botocore_data`). The signature of a plain function is in its code's flags, and the names of botocore's own events are looked up
in a Zygote.

As there, both are changed in each start, and call the original wherever the function has changed anything on the way.
"""

from __future__ import annotations

import sys

from sockd_zygote.handlers import botocore_data

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NAME = "botocore.hooks"
HANDLERS = "botocore.handlers"
"""Has a table of botocore's own handlers, with the names of their events."""
CO_VARARGS, CO_VARKEYWORDS = 0x04, 0x08

_alias_class: tuple[Any, Any, frozenset[str], str | None] | None = None
"""botocore's class of handlers that are objects: it, its `__call__`, the names in an object, and what their signatures say."""
_names: dict[str, str] = {}
"""New names of events, by the names that handlers are registered with."""
_aliases: dict[str, str] = {}
"""The parts of names that they were made with."""


class Originals:
    """Parts of botocore as they are without this."""

    def __init__(self, hooks: ModuleType) -> None:
        """Raises: AttributeError, of another botocore than this knows."""
        self.aliaser, self.aliases, self.logger = hooks.EventAliaser, hooks.EVENT_ALIASES, hooks.logger
        self.accepts_kwargs, self.alias = hooks.accepts_kwargs, self.aliaser._alias_event_name


_FUNCTION, _METHOD = type(Originals.__init__), type(Originals.__init__.__get__(sys))
_originals: Originals | None = None


def attend(hooks: ModuleType) -> None:
    """Have `botocore.hooks`, which was imported just now, look here first, if it is of an installed package."""
    global _originals
    if not str(getattr(hooks, "__file__", "")).startswith(botocore_data.ROOT):
        return
    try:
        _originals = Originals(hooks)
    except AttributeError:
        return
    for owner, original, own in (
        (hooks, _originals.accepts_kwargs, accepts_kwargs),
        (_originals.aliaser, _originals.alias, _alias_event_name),
    ):
        for name in ("__module__", "__qualname__", "__doc__"):
            setattr(own, name, getattr(original, name))
        setattr(owner, own.__name__, own)


def prepare() -> None:
    """In a Zygote, before it forks: find the names of botocore's own events. What fails is found out by each session."""
    if _originals is None or _names:
        return
    try:
        aliaser = _originals.aliaser(None)
        for event, *_ in sys.modules[HANDLERS].BUILTIN_HANDLERS:
            _originals.alias(aliaser, event)
        _note_objects(originals=_originals, handlers=sys.modules[HANDLERS])
        _names.update(aliaser._alias_name_cache)
        _aliases.update(_originals.aliases)
    except Exception as error:
        print(f"sockd: botocore's events are not named ahead: {type(error).__name__}: {error}", file=sys.stderr)
        _names.clear()


def _note_objects(originals: Originals, handlers: Any) -> None:
    """Find out about the handlers that are objects, whose signatures it takes most time to see."""
    global _alias_class
    kind = handlers.ClientMethodAlias
    one = next((handler for _, handler, *_ in handlers.BUILTIN_HANDLERS if type(handler) is kind), None)
    call = vars(kind).get("__call__")
    if (
        one is not None
        and type(call) is _FUNCTION
        and not call.__dict__
        and not {"__signature__", "__getattr__"} & vars(kind).keys()
    ):
        _alias_class = kind, call, frozenset(vars(one)), originals.accepts_kwargs(one)


def accepts_kwargs(func: Any) -> Any:
    """Stand for the function of this name: return the name of the parameter that takes all other arguments, or None."""
    originals = _originals
    assert originals is not None
    if _alias_class is not None and type(func) is _alias_class[0]:
        kind, call, names, found = _alias_class
        if vars(kind).get("__call__") is call and vars(func).keys() == names:
            return found
    plain = func.__func__ if type(func) is _METHOD else func
    if type(plain) is not _FUNCTION or plain.__dict__:  # which may have a signature of its own
        return originals.accepts_kwargs(func)
    code = plain.__code__
    if not code.co_flags & CO_VARKEYWORDS:
        return None
    return code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & CO_VARARGS)]


def _alias_event_name(self: Any, event_name: str) -> str:
    """Stand for the method of `EventAliaser`, which keeps what it has found."""
    originals = _originals
    assert originals is not None
    name = _names.get(event_name)
    if (
        name is None
        or event_name in self._alias_name_cache
        or type(self) is not originals.aliaser
        or self._event_aliases != _aliases
        or originals.logger.isEnabledFor(botocore_data.DEBUG)
    ):
        return originals.alias(self, event_name)  # type: ignore[no-any-return]
    self._alias_name_cache[event_name] = name
    return name
