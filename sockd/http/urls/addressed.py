"""Which requests are for a function URL, and for which. Pure.

A request with such a name belongs to the function whatever its path is; nothing else of the port is under that name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sockd.http.server.messages.head import Head
from sockd.http.url_names import ID, PATH_PREFIX, UrlNames

_PATH = re.compile((PATH_PREFIX.decode() + ID + r"(?P<rest>/.*)?").encode(), re.DOTALL)


class Addressed(NamedTuple):
    """A request to a function URL."""

    id: str
    """As it was written, in lower case; whether there is one was not checked."""
    path: bytes
    """What the function sees, undecoded; at least a slash."""
    query: bytes
    by_path: bool
    """Whether the id was in the path: the origin is then that of everything else on this port."""


def addressed(names: UrlNames, head: Head) -> Addressed | None:
    """Whom a request is for; None: no URL. Raises: HttpParserInvalidURLError."""
    for name, value in head.headers:
        if name == b"host" and b"-url." in value.lower():
            found = names.hosts.fullmatch(value)
            if found:
                path, query = head.path_and_query()
                return Addressed(found["id"].decode().lower(), path or b"/", query, by_path=False)
    if not head.target.startswith(PATH_PREFIX):
        return None
    path, query = head.path_and_query()
    found = _PATH.fullmatch(path)
    if found is None:
        return Addressed("", path, query, by_path=True)
    return Addressed(found["id"].decode().lower(), found["rest"] or b"/", query, by_path=True)
