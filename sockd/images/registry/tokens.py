"""Authentication to a registry: the challenge of its 401, and the header or token that answers it (Docker Registry v2)."""

from __future__ import annotations

import base64
import re
import threading
import urllib.parse
from collections.abc import Callable

import msgspec

from sockd.base.errors import BadImage, ImageAccessDenied, RegistryUnavailable
from sockd.base.http_client.connection import BROKEN
from sockd.images.registry import documents
from sockd.images.registry.credentials import Credentials
from sockd.images.registry.http import HttpClient
from sockd.images.registry.origin import Origin

MOST_TOKEN_BYTES = 1 << 20
_PARAMETER = re.compile(r'([A-Za-z_]+)="([^"\\]*)"')


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class Authorization:
    """The Authorization header for one repository, once its registry has asked for one. Safe for several threads."""

    def __init__(self, client: HttpClient, registry: Origin, repository: str, credentials: Credentials | None) -> None:
        self._client = client
        self._registry = registry
        self._scope = f"repository:{repository}:pull"
        self._credentials = credentials
        self._lock = threading.Lock()
        token = credentials.registry_token if credentials else ""
        self._header = f"Bearer {token}" if token else ""

    def header(self, origin: Origin) -> str:
        """For a request to an origin: nothing for others than the registry."""
        return self._header if origin == self._registry else ""

    def answer(self, challenge: str, refused: str) -> None:
        """Take the challenge of a 401. Args: refused: the header that the 401 answers.

        Raises: ImageAccessDenied, RegistryUnavailable, BadImage."""
        with self._lock:
            if self._header != refused:
                return  # another thread has answered it meanwhile
            scheme, _, rest = challenge.partition(" ")
            match scheme.lower():
                case "basic":
                    self._header = self._basic()
                case "bearer":
                    self._header = f"Bearer {self._token(dict(_PARAMETER.findall(rest)))}"
                case _:
                    raise ImageAccessDenied(f"{self._registry} asks for credentials in an unknown way")
            if self._header == refused:
                raise ImageAccessDenied(
                    f"{self._registry} does not accept these credentials; `docker login` renews them"
                )

    def _basic(self) -> str:
        if self._credentials is None or not self._credentials.username:
            raise ImageAccessDenied(
                f"{self._registry} asks for a user name and a password; `docker login` on the worker keeps them"
            )
        return _basic(self._credentials)

    def _token(self, parameters: dict[str, str]) -> str:
        realm = parameters.get("realm", "")
        origin = Origin.of(realm)
        is_plain = origin.scheme != "https"
        if is_plain and (self._registry.scheme == "https" or not self._client.allows_plain(origin, self._registry)):
            raise BadImage(f"{self._registry} has a token server without HTTPS")
        query = {"service": parameters.get("service", ""), "scope": self._scope}
        if self._credentials is not None and self._credentials.identity_token:
            return self._ask(
                realm,
                body={
                    **query,
                    "grant_type": "refresh_token",
                    "refresh_token": self._credentials.identity_token,
                    "client_id": "sockd",
                },
            )
        account = self._credentials.username if self._credentials else ""
        separator = "&" if urllib.parse.urlsplit(realm).query else "?"
        url = realm + separator + urllib.parse.urlencode({**query, **({"account": account} if account else {})})
        basic = _basic(self._credentials) if self._credentials and account else ""
        return self._ask(url, authorization=lambda asked: basic if asked == origin else "")

    def _ask(
        self,
        url: str,
        *,
        body: dict[str, str] | None = None,
        authorization: Callable[[Origin], str] = lambda origin: "",
    ) -> str:
        host = Origin.of(url)
        form = urllib.parse.urlencode(body).encode() if body is not None else None
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
        response = self._client.request(
            url,
            headers,
            registry=self._registry,
            method="GET" if body is None else "POST",
            body=form,
            authorization=authorization,
        )
        try:
            if response.status in (400, 401, 403):
                raise ImageAccessDenied(
                    f"the token server {host} does not accept the credentials of {self._registry}; `docker login` renews them"
                )
            if response.status != 200:
                raise RegistryUnavailable(f"the token server {host} answers with HTTP status {response.status}")
            token = documents.decoded(_Token, response.read_all(MOST_TOKEN_BYTES, "a token"), "the token of a registry")
        except BROKEN as error:
            raise RegistryUnavailable(f"the token server {host} does not answer: {error}") from error
        finally:
            response.close()
        text = token.token or token.access_token
        if not text.isascii() or not text.isprintable() or not text:
            raise BadImage(f"the token server {host} sent no token")
        return text


def _basic(credentials: Credentials) -> str:
    text = f"{credentials.username}:{credentials.password}"
    return "Basic " + base64.b64encode(text.encode()).decode()
