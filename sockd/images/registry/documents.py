"""Manifests, indexes and configurations: JSON of strangers, read into plain data. Pure.

Both media types of each document are accepted, OCI's and Docker's, because registries convert neither.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from sockd.base.errors import BadImage, ImageTooLarge
from sockd.images.registry.digests import AGAIN
from sockd.images.registry.image import ImageConfig, Layer, OciImage, Platform
from sockd.images.registry.reference import DIGEST

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
INDEXES = (OCI_INDEX, DOCKER_LIST)
MANIFESTS = (OCI_MANIFEST, DOCKER_MANIFEST)
CONFIGS = (OCI_CONFIG, DOCKER_CONFIG, "")
"""An empty media type is that of a docker archive."""
ACCEPTED = (*INDEXES, *MANIFESTS)
SCHEMA_1 = (
    "application/vnd.docker.distribution.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
)
MOST_MANIFEST_BYTES = 4 << 20
"""As registries limit it."""
MOST_CONFIG_BYTES = 8 << 20
MOST_INDEX_DEPTH = 4
REF_NAME = "org.opencontainers.image.ref.name"
_LAYER_TYPES = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
)
_FOREIGN = ("foreign", "nondistributable")


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to a blob."""

    digest: str
    size: int = -1
    media_type: str = ""
    platform: dict[str, Any] | None = None
    annotations: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if not DIGEST.fullmatch(self.digest):
            raise ValueError(f"{self.digest[:80]!r} is not a digest that is supported (sha256, sha512)")

    @property
    def tag(self) -> str:
        """In the index of a layout."""
        return (self.annotations or {}).get(REF_NAME, "")


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """Manifests of several platforms, or the images of a layout."""

    manifests: tuple[Descriptor, ...]
    media_type: str = ""


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """One image of one platform."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    media_type: str = ""


class _Kind(msgspec.Struct, frozen=True, rename="camel"):
    """What tells the documents apart."""

    schema_version: int = 2
    media_type: str = ""
    manifests: msgspec.Raw = msgspec.Raw()
    layers: msgspec.Raw = msgspec.Raw()
    config: msgspec.Raw = msgspec.Raw()
    rootfs: msgspec.Raw = msgspec.Raw()


class _RunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    working_dir: str = ""
    user: str = ""
    exposed_ports: dict[str, Any] | None = None
    volumes: dict[str, Any] | None = None
    labels: dict[str, str] | None = None


class _RootFs(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...]


class Configuration(msgspec.Struct, frozen=True):
    """The document that a manifest's `config` refers to."""

    rootfs: _RootFs
    architecture: str = ""
    os: str = ""
    variant: str = ""
    config: _RunConfig | None = None
    layers: msgspec.Raw = msgspec.Raw()
    manifests: msgspec.Raw = msgspec.Raw()


T = TypeVar("T")


def decoded(kind: type[T], data: bytes, label: str) -> T:
    """Raises: BadImage that names the document."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadImage(f"{label} is malformed: {str(error)[:300]}") from error


def index_or_manifest(data: bytes, media_type: str, label: str) -> Index | Manifest:
    """The document, by its own media type, else by the one it was sent with, else by its fields. Raises: BadImage."""
    kind = decoded(_Kind, data, label)
    if kind.schema_version == 1 or media_type in SCHEMA_1 or kind.media_type in SCHEMA_1:
        raise BadImage(
            f"{label} has Docker's old manifest schema 1, which is not supported; push the image again by a current docker"
        )
    declared = kind.media_type or media_type
    has_manifests, has_layers = bytes(kind.manifests) != b"", bytes(kind.layers) != b""
    if has_manifests and has_layers:
        # One digest, two meanings (CVE-2021-41190).
        raise BadImage(f"{label} is a manifest and an index at once")
    if bytes(kind.rootfs) != b"":
        # Of a docker archive the digest is its configuration's: this one would name another image there.
        raise BadImage(f"{label} is a manifest and a configuration at once")
    if has_manifests or (declared in INDEXES and not has_layers):
        return decoded(Index, data, label)
    if declared in ACCEPTED or has_layers:
        return decoded(Manifest, data, label)
    raise BadImage(f"{label} is neither a manifest nor an index; its media type is {declared[:80]!r}")


def choose(index: Index, platform: Platform, label: str) -> Descriptor:
    """POLICY: the first manifest of the platform; a platform without a variant accepts any, and takes the one that most machines
    can run: without a variant, or with the lowest (amd64/v3 needs AVX2). Raises: BadImage."""
    offers = [(one.platform or {}, one) for one in index.manifests]
    found = [
        (_level(str(offered.get("variant") or "")), one)
        for offered, one in offers
        if (offered.get("os"), offered.get("architecture")) == (platform.os, platform.architecture)
        and (not platform.variant or offered.get("variant", "") == platform.variant)
    ]
    if found:
        return min(found, key=lambda each: each[0])[1]
    unnamed = [one for one in index.manifests if one.platform is None]
    if len(unnamed) == 1 and len(index.manifests) == 1:
        return unnamed[0]  # its configuration names the platform, and is checked
    spelled = sorted({_spelled(one.platform) for one in index.manifests if one.platform} - {"unknown/unknown"})
    raise BadImage(
        f"{label} has no image for {platform}; it has {', '.join(spelled)[:300] or 'none at all'}; {_built_for(platform)}"
    )


def _level(variant: str) -> int:
    """The number of a variant: v1 is what all machines of the architecture can run, as is none."""
    digits = variant.removeprefix("v")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 4 else 1


def _built_for(platform: Platform) -> str:
    return f"build it with `docker build --platform {platform}`"


def _spelled(platform: dict[str, Any] | None) -> str:
    names = (str((platform or {}).get(name, "")) for name in ("os", "architecture", "variant"))
    return "/".join(filter(None, names))


def check_layers(manifest: Manifest, label: str, max_layers: int) -> None:
    """Refuse an artifact that is no container image, and layers that cannot be read. Raises: BadImage."""
    if manifest.config.media_type not in CONFIGS:
        raise BadImage(
            f"{label} is not a container image but another artifact, of the type {manifest.config.media_type[:80]!r}; "
            "name one that `docker run` starts"
        )
    if len(manifest.layers) > max_layers:
        raise BadImage(f"{label} has {len(manifest.layers)} layers; the limit is {max_layers}")
    for layer in manifest.layers:
        kind = layer.media_type
        if any(word in kind for word in _FOREIGN):
            raise BadImage(f"layer {layer.digest} of {label} is a foreign layer, which its registry may not distribute")
        if "encrypted" in kind:
            raise BadImage(f"layer {layer.digest} of {label} is encrypted ({kind[:80]})")
        if kind and not kind.startswith(_LAYER_TYPES):
            raise BadImage(f"layer {layer.digest} of {label} is not a file system: {kind[:80]!r}")


def configuration_of(data: bytes, label: str) -> Configuration:
    """The document, which is nothing else besides. Raises: BadImage."""
    configuration = decoded(Configuration, data, f"the configuration of {label}")
    if bytes(configuration.layers) != b"" or bytes(configuration.manifests) != b"":
        raise BadImage(f"the configuration of {label} is a manifest or an index at once")
    return configuration


def image_of(digest: str, manifest: Manifest, config_data: bytes, platform: Platform, label: str) -> OciImage:
    """The image that manifest and configuration describe together. Raises: BadImage."""
    configuration = configuration_of(config_data, label)
    diff_ids = diff_ids_of(configuration, len(manifest.layers), label)
    if (configuration.os or "linux", configuration.architecture or platform.architecture) != (
        platform.os,
        platform.architecture,
    ):
        raise BadImage(
            f"{label} is for {configuration.os}/{configuration.architecture}, not for {platform}; {_built_for(platform)}"
        )
    layers = tuple(
        Layer(one.digest, diff_id, one.media_type, one.size)
        for one, diff_id in zip(manifest.layers, diff_ids, strict=True)
    )
    return OciImage(digest, run_config(configuration, label), layers)


def diff_ids_of(configuration: Configuration, count: int, label: str) -> tuple[str, ...]:
    """The digests of the uncompressed layers. Raises: BadImage."""
    diff_ids = configuration.rootfs.diff_ids
    if len(diff_ids) != count:
        raise BadImage(f"{label} has {count} layers, and its configuration {len(diff_ids)}")
    for diff_id in diff_ids:
        if not DIGEST.fullmatch(diff_id):
            raise BadImage(f"the configuration of {label} has the malformed digest {diff_id[:80]!r}")
    return diff_ids


def run_config(configuration: Configuration, label: str) -> ImageConfig:
    """What is in it about running. Raises: BadImage for texts that no execve(2) takes; ImageTooLarge."""
    run = configuration.config or _RunConfig()
    texts = (*(run.entrypoint or ()), *(run.cmd or ()), *(run.env or ()), run.working_dir, run.user)
    if any("\0" in text for text in texts):
        raise BadImage(f"the configuration of {label} holds a zero byte")
    config = ImageConfig(
        entrypoint=run.entrypoint or (),
        cmd=run.cmd or (),
        env=run.env or (),
        working_dir=run.working_dir,
        user=run.user,
        exposed_ports=tuple(sorted(run.exposed_ports or ())),
        volumes=tuple(sorted(run.volumes or ())),
        labels=run.labels or {},
        architecture=configuration.architecture,
        os=configuration.os,
    )
    if excess := config.excess():
        raise ImageTooLarge(f"the configuration of {label} has {excess}")
    return config


def digest_of(data: bytes, like: str = "sha256:") -> str:
    """Return the digest of data, by the algorithm of another digest."""
    name = like.partition(":")[0]
    return f"{name}:{hashlib.new(name, data).hexdigest()}"


def check_digest(data: bytes, digest: str, label: str) -> bytes:
    """The data. Raises: BadImage if its digest is another one."""
    found = digest_of(data, digest)
    if found != digest:
        raise BadImage(f"{label} was altered or truncated: its digest is {found}, not {digest}; {AGAIN}")
    return data
