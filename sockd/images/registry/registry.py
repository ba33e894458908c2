"""The registry client: images over the Docker Registry HTTP API v2, which the OCI Distribution Specification describes."""

from __future__ import annotations

import io
import ssl
from collections.abc import Callable
from typing import BinaryIO, cast

import msgspec

from sockd.base.errors import BadImage, ImageAccessDenied, NoSuchImage, RegistryUnavailable
from sockd.base.http_client.connection import BROKEN
from sockd.images.registry import documents
from sockd.images.registry.credentials import HUB_SERVER, Credentials
from sockd.images.registry.digests import Verified
from sockd.images.registry.documents import Descriptor, Manifest
from sockd.images.registry.http import MOST_ATTEMPTS, HttpClient, Response
from sockd.images.registry.image import Layer, OciImage, Platform
from sockd.images.registry.limits import Limits
from sockd.images.registry.origin import Origin
from sockd.images.registry.reference import DOCKER_HUB, Reference
from sockd.images.registry.tokens import Authorization

MOST_AUTHORIZATIONS = 3
"""Answers to a 401 for one request: the first token, and one when it has expired meanwhile."""
_MOST_ERROR_BYTES = 1 << 16


class RegistrySource:
    """One image of a registry; see `image.Source`."""

    def __init__(
        self,
        reference: Reference,
        platform: Platform,
        limits: Limits,
        credentials: Credentials | None = None,
        client: HttpClient | None = None,
    ) -> None:
        self._reference = reference
        self._platform = platform
        self._limits = limits
        self._credentials = credentials
        self._client = client or HttpClient()
        server = HUB_SERVER if reference.host == DOCKER_HUB else reference.host
        self._base = f"https://{server}/v2/{reference.repository}"
        self._authorization = self._authorize()

    def resolve(self, on_digest: Callable[[str], None] = lambda digest: None) -> OciImage:
        self._choose_scheme()
        reference, label = self._reference, str(self._reference)
        digest, media_type = reference.digest, ""
        for _ in range(documents.MOST_INDEX_DEPTH):
            data, media_type = self._manifest(digest or reference.tag, digest, label)
            digest = digest or documents.digest_of(data)
            document = documents.index_or_manifest(data, media_type, label)
            if isinstance(document, Manifest):
                documents.check_layers(document, label, self._limits.max_layers)
                on_digest(digest)
                config = self._blob(document.config, documents.MOST_CONFIG_BYTES, f"the configuration of {label}")
                return documents.image_of(digest, document, config, self._platform, label)
            digest = documents.choose(document, self._platform, label).digest
        raise BadImage(f"{label} has indexes of indexes, too deep")

    def open_layer(self, layer: Layer) -> BinaryIO:
        label = f"layer {layer.digest[:19]}"
        stream = _ResumedBlob(self, layer.digest, label)
        return cast(BinaryIO, Verified(stream, layer.digest, layer.size_bytes, label))

    def close(self) -> None:
        """Requests of other threads fail from now on."""
        self._client.stop()

    def open_blob(self, digest: str, offset: int) -> Response:
        """A blob from an offset on; the answer may still begin at 0. Raises: as `resolve`."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        # As it is stored: a proxy that compresses would change what Range counts.
        return self._get(f"blobs/{digest}", {**headers, "Accept-Encoding": "identity"}, (200, 206))

    def pause(self, failures: int) -> None:
        """Before another attempt. Raises: RegistryUnavailable if `close` was called."""
        self._client.pause(failures)

    def _authorize(self) -> Authorization:
        return Authorization(self._client, Origin.of(self._base), self._reference.repository, self._credentials)

    def _choose_scheme(self) -> None:
        """HTTPS, unless plain HTTP is permitted and the registry speaks that only."""
        origin = Origin.of(self._base)
        if not self._client.allows_plain(origin, origin):
            return
        try:
            self._client.probe(self._base)
        except ssl.SSLCertVerificationError:
            return  # the next request says so
        except (ssl.SSLError, ConnectionError, TimeoutError):
            self._base = "http" + self._base.removeprefix("https")
            # Without a port, the two schemes have different ones.
            self._authorization = self._authorize()
        except OSError:
            return

    def _manifest(self, name: str, digest: str, label: str) -> tuple[bytes, str]:
        data, media_type = self._document(
            f"manifests/{name}",
            {"Accept": ", ".join((*documents.ACCEPTED, *documents.SCHEMA_1))},
            documents.MOST_MANIFEST_BYTES,
            label,
        )
        if data.lstrip().startswith(b"<"):
            raise BadImage(
                f"{self._reference.host} answers with a web page for {label}: it is no registry, or a proxy is before it"
            )
        if digest:
            documents.check_digest(data, digest, f"the manifest of {label}")
        return data, media_type

    def _blob(self, descriptor: Descriptor, most_bytes: int, label: str) -> bytes:
        data, _ = self._document(f"blobs/{descriptor.digest}", {}, most_bytes, label)
        return documents.check_digest(data, descriptor.digest, label)

    def _document(self, path: str, headers: dict[str, str], most_bytes: int, label: str) -> tuple[bytes, str]:
        for attempt in range(1, MOST_ATTEMPTS + 1):
            response = self._get(path, headers, (200,))
            try:
                media_type = response.header("Content-Type").partition(";")[0].strip()
                return response.read_all(most_bytes, label), media_type
            except BROKEN:
                self._client.pause(attempt)
            finally:
                response.close()
        raise RegistryUnavailable(f"the connection to {self._reference.host} broke {MOST_ATTEMPTS} times")

    def _get(self, path: str, headers: dict[str, str], statuses: tuple[int, ...]) -> Response:
        url = f"{self._base}/{path}"
        origin = Origin.of(url)
        for _ in range(MOST_AUTHORIZATIONS):
            sent = self._authorization.header(origin)
            response = self._client.request(
                url, headers, registry=origin, authorization=self._authorization.header, reason=_reason
            )
            if response.status in statuses:
                return response
            challenge, why = response.header("WWW-Authenticate"), _reason(response)
            is_own = Origin.of(response.url) == origin
            response.close()
            if response.status != 401 or not is_own:
                break
            self._authorization.answer(challenge, sent)
        raise self._refusal(response.status, why, path)

    def _refusal(self, status: int, why: str, path: str) -> Exception:
        label, host = str(self._reference), self._reference.host
        if status in (401, 403):
            hint = "" if self._credentials else f"; the worker has no credentials of it (`docker login {host}` there)"
            return ImageAccessDenied(f"{host} denies access to {label}, or has no such image{why}{hint}")
        if status == 404 and path.startswith("blobs/"):
            digest = path.removeprefix("blobs/")[:19]
            return NoSuchImage(f"{host} has {label}, but not its part {digest}{why}; push the image again")
        if status == 404:
            return NoSuchImage(f"{host} has no {label}{why}")
        return BadImage(f"{host} answers with HTTP status {status} for {label}{why}")


class _ResumedBlob(io.RawIOBase):
    """A blob's bytes over as many connections as it takes; attempts without a byte are counted."""

    def __init__(self, source: RegistrySource, digest: str, label: str) -> None:
        self._source = source
        self._digest = digest
        self._label = label
        self._offset = 0
        self._failures = 0
        self._response: Response | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while True:
            try:
                if self._response is None:
                    self._response = self._open()
                data = self._response.read(size)
            except BROKEN as error:
                self._let_go()
                self._failures += 1
                if self._failures >= MOST_ATTEMPTS:
                    raise RegistryUnavailable(
                        f"the connection broke {self._failures} times at byte {self._offset} of {self._label}: {error}"
                    ) from error
                self._source.pause(self._failures)
                continue
            if data:
                self._failures = 0
            self._offset += len(data)
            return data

    def close(self) -> None:
        self._let_go()
        super().close()

    def _open(self) -> Response:
        response = self._source.open_blob(self._digest, self._offset)
        try:
            if response.status == 206:
                if not response.header("Content-Range").startswith(f"bytes {self._offset}-"):
                    raise BadImage(f"the registry sent another part of {self._label} than it was asked for")
            else:
                self._skip(response)
            return response
        except BaseException:
            response.close()
            raise

    def _skip(self, response: Response) -> None:
        """What we have already, of a registry without Range."""
        left = self._offset
        while left:
            data = response.read(min(left, 1 << 20))
            if not data:
                raise BadImage(f"{self._label} became shorter while it was fetched")
            left -= len(data)

    def _let_go(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct):
    errors: tuple[_Error, ...] = ()


def _reason(response: Response) -> str:
    """What the registry says about its refusal, for the message."""
    try:
        errors = documents.decoded(_Errors, response.read_all(_MOST_ERROR_BYTES, "an error"), "an error").errors
    except (BadImage, *BROKEN):
        return ""
    text = "; ".join(error.message or error.code for error in errors)
    return f": {''.join(char for char in text if char.isprintable())[:200]}" if text else ""
