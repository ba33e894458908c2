"""HTTP as a registry client needs it: one request on a connection of its own, redirects, retries, bounded waits.

A header with credentials goes only to the origin (scheme, host and port) that it is meant for: registries redirect blobs to
storage with a signed URL, which must not learn them. TLS is checked against the system's certificate authorities. Which
addresses are connected to, and with which of them plain HTTP is spoken, is `destinations`' to say; no redirect leads from HTTPS
to plain HTTP.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from contextlib import closing

from sockd.base.errors import BadImage, RegistryUnavailable
from sockd.base.http_client.connection import new_connection
from sockd.base.http_client.retries import Again, GaveUp, Retries, Stopped
from sockd.images.registry.destinations import Destinations
from sockd.images.registry.origin import Origin

MOST_REDIRECTS = 5
MOST_ATTEMPTS = 5
FIRST_WAIT_S = 0.5
"""Between attempts, doubled each time; a Retry-After of the server counts instead."""
TIMEOUT_S = 30.0
"""For a connection, and for each read."""
PROBE_S = 3.0
"""For the TLS handshake of a server that may also be spoken with in plain HTTP: some wait for the end of a request in it."""
AGENT = "sockd"
_REDIRECTS = (301, 302, 303, 307, 308)
STOPPED = "the transfer was stopped"
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)


class Response:
    """An answer, with its connection."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, url: str) -> None:
        self._connection = connection
        self._response = response
        self.url = url
        self.status = response.status

    def header(self, name: str) -> str:
        return self._response.getheader(name) or ""

    def read(self, size: int, /) -> bytes:
        """Raises: one of BROKEN; also if the connection ends before the announced length."""
        data = self._response.read(size)
        if not data and size and (self._response.length or 0) > 0:
            raise http.client.IncompleteRead(b"", self._response.length)
        return data

    def read_all(self, most_bytes: int, label: str) -> bytes:
        """Raises: BadImage if it is longer; one of BROKEN."""
        data = b""
        while more := self.read(most_bytes + 1 - len(data)):
            data += more
            if len(data) > most_bytes:
                raise BadImage(f"{label} has more than {most_bytes} bytes")
        return data

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class HttpClient:
    """Requests to a registry, to its token server, and to where it redirects. Safe for several threads."""

    def __init__(
        self,
        *,
        destinations: Destinations | None = None,
        timeout_s: float = TIMEOUT_S,
        first_wait_s: float = FIRST_WAIT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Args:
        destinations: which addresses are connected to; None: the rules without a configured host.
        tls: what `default_tls` returned, as to read all authorities takes tens of milliseconds; None: it is called now."""
        self._destinations = destinations or Destinations()
        self._timeout_s = timeout_s
        self._retries = Retries(MOST_ATTEMPTS, first_wait_s)
        self._tls = tls or default_tls()

    def stop(self) -> None:
        """End waits between attempts; requests fail from now on."""
        self._retries.stop()

    def allows_plain(self, origin: Origin, registry: Origin) -> bool:
        """Whether plain HTTP may be spoken with this host."""
        return self._destinations.allows_plain(origin, registry)

    def request(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        registry: Origin,
        authorization: Callable[[Origin], str] = lambda origin: "",
        method: str = "GET",
        body: bytes | None = None,
        reason: Callable[[Response], str] = lambda response: "",
    ) -> Response:
        """The answer that is neither a redirect nor temporary; its status may still be an error.

        Args:
            registry: the one that the deployer named, whose answers led to this request.
            authorization: the header for an origin; asked again at each attempt.
            reason: what a failure says, for the message.
        Raises: RegistryUnavailable, BadImage."""

        def attempt(number: int) -> Response:
            try:
                response = self._follow(method, url, headers, registry, authorization, body)
            except ssl.SSLCertVerificationError as error:
                raise RegistryUnavailable(
                    f"the certificate of {Origin.of(url)} is not valid: {error.verify_message}"
                ) from None
            if response.status in _TEMPORARY:
                with closing(response):
                    raise Again(f"HTTP status {response.status}{reason(response)}", _retry_after(response))
            return response

        try:
            return self._retries.run(attempt)
        except GaveUp as failure:
            raise RegistryUnavailable(
                f"{Origin.of(url)} does not answer after {MOST_ATTEMPTS} attempts: {failure}"
            ) from None
        except Stopped:
            raise RegistryUnavailable(STOPPED) from None

    def probe(self, url: str) -> None:
        """Whether a registry speaks HTTPS. Raises: ssl.SSLError if it does not; OSError if it does not answer; BadImage."""
        self._send("GET", url, {}, Origin.of(url), None, timeout_s=min(PROBE_S, self._timeout_s)).close()

    def pause(self, failures: int, asked_s: float | None = None) -> None:
        """Wait before another attempt.

        Args: asked_s: the seconds that the server asked for.
        Raises: RegistryUnavailable if `stop` was called."""
        try:
            self._retries.pause(failures, asked_s)
        except Stopped:
            raise RegistryUnavailable(STOPPED) from None

    def _follow(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        registry: Origin,
        authorization: Callable[[Origin], str],
        body: bytes | None,
    ) -> Response:
        for _ in range(MOST_REDIRECTS + 1):
            origin = Origin.of(url)
            own = authorization(origin)
            response = self._send(method, url, {**headers, **({"Authorization": own} if own else {})}, registry, body)
            if response.status not in _REDIRECTS:
                return response
            location = response.header("Location")
            response.close()
            target = urllib.parse.urljoin(url, location)
            if origin.scheme == "https" and Origin.of(target).scheme != "https":
                raise BadImage(f"{origin} redirects from HTTPS to plain HTTP")
            url = target
        raise BadImage(f"{origin} redirects more than {MOST_REDIRECTS} times")

    def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        registry: Origin,
        body: bytes | None,
        *,
        timeout_s: float | None = None,
    ) -> Response:
        timeout_s = timeout_s or self._timeout_s
        origin = Origin.of(url)
        tls = self._tls if origin.scheme == "https" else None
        connection = new_connection(origin.host, origin.port, timeout_s=timeout_s, tls=tls)
        # http.client would resolve the name itself, and connect to any of its addresses.
        connection.auto_open = 0
        connection.sock = self._connect(origin, registry, timeout_s)
        try:
            parts = urllib.parse.urlsplit(url)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, body, {"User-Agent": AGENT, **headers})
            return Response(connection, connection.getresponse(), url)
        except (http.client.InvalidURL, UnicodeError) as error:
            connection.close()
            raise BadImage(f"a registry sent the malformed address {url[:100]!r}: {error}") from None
        except BaseException:
            connection.close()
            raise

    def _connect(self, origin: Origin, registry: Origin, timeout_s: float) -> socket.socket:
        """A connection to a permitted address of an origin, in TLS if its scheme is https."""
        try:
            sock = self._destinations.connect(origin, registry, timeout_s)
        except UnicodeError as error:
            raise BadImage(f"a registry sent the malformed host {origin.host[:100]!r}: {error}") from None
        if origin.scheme != "https":
            return sock
        try:
            return self._tls.wrap_socket(sock, server_hostname=origin.host)
        except BaseException:
            sock.close()
            raise


def default_tls() -> ssl.SSLContext:
    """With the system's certificate authorities."""
    return ssl.create_default_context()


def _retry_after(response: Response) -> float | None:
    text = response.header("Retry-After")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
