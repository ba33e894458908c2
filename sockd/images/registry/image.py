"""An image as its manifest and its configuration describe it. Plain data, and the protocol of those that fetch images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import BinaryIO, Protocol

import msgspec

from sockd.images.registry import limits


class ImageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an image wants to be run."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    """Each NAME=VALUE, in the image's order."""
    working_dir: str = ""
    user: str = ""
    exposed_ports: tuple[str, ...] = ()
    """As "8080/tcp"."""
    volumes: tuple[str, ...] = ()
    """Directories that the program writes to."""
    labels: dict[str, str] = {}
    architecture: str = ""
    os: str = ""

    def excess(self) -> str:
        """Return which limit this exceeds, as words for people; nothing if it exceeds none."""
        run = (*self.entrypoint, *self.cmd, *self.env)
        more = (*self.exposed_ports, *self.volumes, *self.labels, *self.labels.values())
        for name, count in (
            ("variables", len(self.env)),
            ("words", len(self.entrypoint) + len(self.cmd)),
            ("labels", len(self.labels)),
            ("ports and volumes", len(self.exposed_ports) + len(self.volumes)),
        ):
            if count > limits.MOST_CONFIG_TEXTS:
                return f"{count} {name}; the limit is {limits.MOST_CONFIG_TEXTS}"
        run_bytes = _size(run)
        if run_bytes > limits.MOST_VARIABLES_BYTES:
            return f"{run_bytes} bytes of variables and words; the limit is {limits.MOST_VARIABLES_BYTES}"
        if run_bytes + _size(more) > limits.MOST_CONFIG_TEXT_BYTES:
            return f"{run_bytes + _size(more)} bytes of texts; the limit is {limits.MOST_CONFIG_TEXT_BYTES}"
        return ""


def _size(texts: Iterable[str]) -> int:
    """Bytes of texts in UTF-8, each with its zero byte."""
    return sum(len(text.encode(errors="surrogatepass")) + 1 for text in texts)


class Layer(msgspec.Struct, frozen=True):
    """One layer."""

    digest: str
    """The digest of the bytes that are fetched."""
    diff_id: str
    """The digest of the uncompressed tar file."""
    media_type: str
    size_bytes: int
    """The number of bytes that are fetched; -1 if the source does not state it."""


class OciImage(msgspec.Struct, frozen=True):
    """One image of one platform."""

    digest: str
    """The digest of the manifest. For a docker archive without a manifest, the digest of the configuration, which is
    docker's image ID."""
    config: ImageConfig
    layers: tuple[Layer, ...]
    """The lowest first."""


_OWN_ARCHITECTURE = "arm64" if os.uname().machine == "aarch64" else "amd64"


class Platform(msgspec.Struct, frozen=True):
    """What an image was built for."""

    os: str = "linux"
    architecture: str = _OWN_ARCHITECTURE
    """This machine's by default."""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, [self.os, self.architecture, self.variant]))


class Source(Protocol):
    """Where one image is. Calls block; layers may be opened from several threads."""

    def resolve(self, on_digest: Callable[[str], None] = lambda digest: None) -> OciImage:
        """The image's manifest and configuration, their digests checked.

        Args: on_digest: called with the image's digest before a registry is asked for the configuration.
        Raises: BadImage and its kinds; what `on_digest` raises."""

    def open_layer(self, layer: Layer) -> BinaryIO:
        """The layer's bytes as they are stored. The read that reaches the end raises BadImage if their digest is not the
        layer's; a connection that breaks is resumed inside."""

    def close(self) -> None:
        """Let go of connections and files."""
