"""What a function URL looks like.

    http://<id>.lambda-url.localhost:5000/path        a name for each: to browsers an origin of its own
    http://<id>.lambda-url.<region>.localhost:5000/   any region
    http://localhost:5000/url/<id>/path               for clients that cannot resolve names below localhost

Pure.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from sockd.base.errors import BadConfig
from sockd.linux.network.loopback import LOOPBACKS

PATH_PREFIX = b"/url/"
LOCAL = "localhost"
ID = r"(?P<id>[A-Za-z0-9_-]{0,63})"
_LABEL = "lambda-url"
_DOMAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,180}[A-Za-z0-9])?")


class UrlNames:
    """The URL names of one worker."""

    def __init__(self, domain: str) -> None:
        """Args: domain: under which the names are, besides localhost. Raises: BadConfig."""
        if not _DOMAIN.fullmatch(domain):
            raise BadConfig(
                f"function_urls.domain = {domain[:80]!r} is no domain name, such as localhost or fn.example.com"
            )
        self.domain = domain
        domains = "|".join({re.escape("localhost"), re.escape(domain)})
        pattern = rf"{ID}\.{_LABEL}(?:\.[a-z0-9-]{{1,63}})?\.(?:{domains})(?::[0-9]{{0,5}})?"
        self.hosts = re.compile(pattern.encode(), re.IGNORECASE)
        """Host headers of function URLs."""

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
