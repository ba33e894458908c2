"""The TLS contexts of botocore's first clients, made ahead in a Zygote.

A client of S3 makes three, for itself and for those that look for credentials, and most need none of them: two milliseconds of
processor time, most of it page faults, where OpenSSL has set itself up already. So a Zygote that has imported botocore makes some
by botocore's own function, and each is handed out once.

A context of a client holds nothing that forks must not share: the keys of session tickets, which OpenSSL draws for each context,
are a server's, and one of PROTOCOL_TLS_CLIENT cannot be one. Certificates are loaded later, when a connection is made. The
numbers of a handshake come from OpenSSL's generators, which each fork stirs (`sockd_zygote.forks.hygiene`). What decides how a
context is made is compared when contexts are made ahead, as the init of a template's function may have run by then, and when one
is handed out: where any of it was changed since the import, botocore's function makes one for each client.

As with `botocore_data`, the function is replaced in each start, also where nothing is made ahead.
"""

from __future__ import annotations

import os
import sys

from sockd_zygote.handlers import botocore_data

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NAME = "botocore.httpsession"
CONTEXTS = 3
"""How many a client of S3 makes."""
KEY_LOG = "SSLKEYLOGFILE"
"""The variable that names a file for the keys of connections, which a context opens when it is made."""


class Originals:
    """Parts of botocore as they are without this."""

    def __init__(self, sessions: ModuleType) -> None:
        """Raises: AttributeError, of another botocore than this knows."""
        self.names = vars(sessions)
        self.create, self.context = sessions.create_urllib3_context, sessions.SSLContext
        self.used = [name for name in self.create.__code__.co_names if name in self.names]
        """The globals by which the function makes a context."""
        self.first = self.state()

    def state(self) -> list[object]:
        """What decides how a context is made; equal lists make the same."""
        own = [self.names.get(name) for name in self.used]
        of_ssl = self.names["ssl"].CERT_REQUIRED, *vars(self.context).items()
        return [*own, *of_ssl, self.create.__code__, self.create.__defaults__, self.create.__kwdefaults__]


_originals: Originals | None = None
_contexts: list[Any] = []
_combinations: list[tuple[dict[int, Any], dict[int, Any]]] = []
"""For each class of flags: its table of members, and the combinations that the contexts have added to it."""
_is_prepared = False


def attend(sessions: ModuleType) -> None:
    """Have `botocore.httpsession`, which was imported just now, look here first, if it is of an installed package."""
    global _originals
    if not str(getattr(sessions, "__file__", "")).startswith(botocore_data.ROOT):
        return
    try:
        _originals = Originals(sessions)
    except AttributeError:  # another botocore, or a Python without TLS
        return
    own = create_urllib3_context
    for name in ("__module__", "__qualname__", "__doc__"):
        setattr(own, name, getattr(_originals.create, name))
    sessions.create_urllib3_context = own  # type: ignore[attr-defined]


def prepare() -> None:
    """In a Zygote, before it forks: make the contexts of its forks' first clients. What fails is made by each client."""
    global _is_prepared
    if _originals is None or _is_prepared or os.environ.get(KEY_LOG) or _originals.state() != _originals.first:
        return
    _is_prepared = True
    members = members_of_flags(_originals.names["ssl"])
    before = [set(each) for each in members]
    try:
        _contexts.extend(_originals.create() for _ in range(CONTEXTS))
    except Exception as error:
        print(f"sockd: botocore's TLS contexts are not made ahead: {type(error).__name__}: {error}", file=sys.stderr)
        _contexts.clear()
    for each, kept in zip(members, before, strict=True):
        _combinations.append((each, {value: each.pop(value) for value in each.keys() - kept}))


def members_of_flags(tls: ModuleType) -> list[dict[int, Any]]:
    """The members of the flags that a context has, to which `enum` adds each combination that it is asked for: a function finds
    there those alone that it has asked for itself, and those of the contexts that it was handed."""
    return [flags._value2member_map_ for flags in (tls.Options, tls.VerifyFlags)]


def create_urllib3_context(*args: Any, **kwargs: Any) -> Any:
    """Stand for the function of this name in `botocore.httpsession`, which knows no argument when a client is made."""
    originals = _originals
    assert originals is not None
    if args or kwargs or not _contexts or os.environ.get(KEY_LOG) or originals.state() != originals.first:
        return originals.create(*args, **kwargs)
    try:
        context = _contexts.pop()
    except IndexError:  # another thread has taken the last one
        return originals.create()
    for members, added in _combinations:
        for value, member in added.items():
            members.setdefault(value, member)
    return context
