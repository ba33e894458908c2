"""What a function URL looks like, and which requests are addressed to one.

    http://<id>.lambda-url.localhost:5000/path        a name for each: to browsers an origin of its own
    http://<id>.lambda-url.<region>.localhost:5000/   any region
    http://localhost:5000/url/<id>/path               for clients that cannot resolve names below localhost

Pure. A request with such a name belongs to the function whatever its path is; nothing else of the port is under that name.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from sockd.http.wire.head import Head
from sockd.kernel.network.loopback import LOOPBACKS
from sockd.plain.errors import BadConfig

PATH_PREFIX = b"/url/"
LOCAL = "localhost"
_ID = r"(?P<id>[A-Za-z0-9_-]{0,63})"
_LABEL = "lambda-url"
_DOMAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,180}[A-Za-z0-9])?")
_PATH = re.compile((PATH_PREFIX.decode() + _ID + r"(?P<rest>/.*)?").encode(), re.DOTALL)


class Addressed(NamedTuple):
    """A request to a function URL."""

    id: str
    """As it was written, in lower case; nobody has looked whether there is one."""
    path: bytes
    """What the function sees, undecoded; at least a slash."""
    query: bytes
    by_path: bool
    """Whether the id was in the path: the origin is then that of everything else on this port."""


class UrlNames:
    """Of one worker."""

    def __init__(self, domain: str) -> None:
        """Args: domain: under which the names are, besides localhost. Raises: BadConfig."""
        if not _DOMAIN.fullmatch(domain):
            raise BadConfig(
                f"function_urls.domain = {domain[:80]!r} is no domain name, such as localhost or fn.example.com"
            )
        self.domain = domain
        domains = "|".join({re.escape("localhost"), re.escape(domain)})
        pattern = rf"{_ID}\.{_LABEL}(?:\.[a-z0-9-]{{1,63}})?\.(?:{domains})(?::[0-9]{{0,5}})?"
        self._host = re.compile(pattern.encode(), re.IGNORECASE)

    def addressed(self, head: Head) -> Addressed | None:
        """Whom a request is for; None: no URL. Raises: HttpParserInvalidURLError."""
        for name, value in head.headers:
            if name == b"host" and b"-url." in value.lower():
                found = self._host.fullmatch(value)
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

    def host(self, id_: str) -> str:
        """The name of a URL."""
        return f"{id_}.{_LABEL}.{self.domain}"

    def url(self, id_: str, worker_url: str) -> str:
        """The URL itself; below /url where names below localhost would lead to another program than this worker.

        Args: worker_url: where the port is, such as http://127.0.0.1:5000."""
        port = urlsplit(worker_url).port
        if self.domain == LOCAL and urlsplit(worker_url).hostname not in LOOPBACKS:
            return f"{worker_url}{PATH_PREFIX.decode()}{id_}/"
        return f"http://{self.host(id_)}{'' if port in (None, 80) else f':{port}'}/"
