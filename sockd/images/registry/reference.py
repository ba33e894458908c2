"""References: how a user names an image, parsed as docker and skopeo parse it. Pure.

python:3.12-slim                          Docker Hub, with docker's defaults: docker.io/library/python:3.12-slim
registry.example.com:5000/team/app@sha256:...
oci:DIR[:TAG]                             an OCI layout
oci-archive:TAR[:TAG]                     an OCI layout in a tar file
docker-archive:TAR[:NAME:TAG]             what `docker save` writes
./PATH, /PATH, FILE.tar                   any of these three; the kind is detected when the path is opened
-                                         the standard input; the command line uploads it as an archive
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sockd.base.errors import BadImage

Kind = Literal["registry", "oci", "oci-archive", "docker-archive", "path", "stdin"]

DOCKER_HUB = "docker.io"
DEFAULT_TAG = "latest"
MOST_NAME_BYTES = 255
"""The most bytes of a repository's name with its host, as docker limits it."""
MOST_TEXT = 4096
_LOCAL: tuple[Kind, ...] = ("oci", "oci-archive", "docker-archive")
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """One image. `str` gives the canonical text, which parses to the same reference."""

    kind: Kind
    host: str = ""
    """The host of a registry, with its port."""
    repository: str = ""
    tag: str = ""
    """The tag in a registry or layout; NAME:TAG in a docker archive. Empty if none was given."""
    digest: str = ""
    path: str = ""
    """The path of a layout or an archive."""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Raises: BadImage."""
        if len(text) > MOST_TEXT or not text.isprintable():
            raise BadImage("an image reference is at most 4096 printable characters")
        if text == "-":
            return cls("stdin")
        for kind in _LOCAL:
            if text.startswith(f"{kind}:"):
                return _local(kind, text.removeprefix(f"{kind}:"), text)
        if text.startswith(("/", "./", "../")) or text in (".", "..") or text.endswith(_ARCHIVES):
            return cls("path", path=text)
        return _registry(text.removeprefix("docker://"), text)

    def __str__(self) -> str:
        match self.kind:
            case "stdin":
                return "-"
            case "path":
                return self.path
            case "registry":
                tag = f":{self.tag}" if self.tag else ""
                return f"{self.host}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")
            case _:
                return f"{self.kind}:{self.path}" + (f":{self.tag}" if self.tag else "")

    def at_mirror(self, mirror: str) -> Reference:
        """The same image of a registry in its mirror. Args: mirror: HOST[:PORT][/PATH]."""
        host, _, path = mirror.partition("/")
        return Reference(
            "registry", host, f"{path}/{self.repository}" if path else self.repository, self.tag, self.digest
        )

    def pinned(self, digest: str) -> Reference:
        """The same image by its digest; what is not in a registry has no other name."""
        if self.kind != "registry":
            return self
        return Reference("registry", self.host, self.repository, self.tag, digest)


def _local(kind: Kind, rest: str, text: str) -> Reference:
    path, _, tag = rest.partition(":")
    if not path:
        raise BadImage(f"{text!r} names no file; write {kind}:PATH")
    if tag and kind != "docker-archive" and not _is_tag(tag):
        raise BadImage(f"{tag!r} in {text!r} is not a tag")
    if tag and kind == "docker-archive":
        named = _registry(tag, text)
        if named.digest:
            raise BadImage(f"{text!r}: images in a docker archive have no digest; name the tag")
        tag = familiar(named)
    return Reference(kind, tag=tag, path=path)


def _registry(name: str, text: str) -> Reference:
    if name.startswith(("sha256:", "sha512:")):
        raise BadImage(
            f"{text!r} is not a whole digest: sha256: and 64 hexadecimal digits; `sockd images ls --json` has them"
        )
    rest, at, digest = name.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise BadImage(f"the digest in {text!r} is not sha256: and 64 lower-case hexadecimal digits")
    host, rest = _split_host(rest)
    rest, colon, tag = rest.partition(":")
    if colon and not _is_tag(tag):
        raise BadImage(f"{tag!r} in {text!r} is not a tag: letters, digits, '_', '.', '-', at most 128 characters")
    if not _HOST.fullmatch(host):
        raise BadImage(f"{host!r} in {text!r} is not a host name")
    if _IMAGE_ID.fullmatch(rest):
        raise BadImage(f"{text!r} is an image ID of one machine; name a repository")
    if host == DOCKER_HUB and "/" not in rest:
        rest = f"library/{rest}"
    if not _REPOSITORY.fullmatch(rest):
        hint = "; repositories are in lower case" if rest != rest.lower() else ""
        raise BadImage(f"{text!r} is not an image reference{hint}")
    if len(host) + 1 + len(rest) > MOST_NAME_BYTES:
        raise BadImage(f"the name of a repository has more than {MOST_NAME_BYTES} characters")
    return Reference("registry", host, rest, tag if tag or digest else DEFAULT_TAG, digest)


def _split_host(name: str) -> tuple[str, str]:
    """docker's rule: the first part is a host if it has a dot, a colon or an upper-case letter, or is `localhost`."""
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        return (DOCKER_HUB if first in ("index.docker.io", "registry-1.docker.io") else first), rest
    return DOCKER_HUB, name


def _is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def canonical(text: str) -> str:
    """A reference with docker's defaults written out, so that equal ones are equal texts; what is no reference stays as it is."""
    try:
        return str(Reference.parse(text))
    except BadImage:
        return text


def familiar(reference: Reference) -> str:
    """REPOSITORY:TAG without docker's defaults, as `docker save` writes it."""
    repository = reference.repository
    if reference.host == DOCKER_HUB:
        repository = repository.removeprefix("library/")
    else:
        repository = f"{reference.host}/{repository}"
    return f"{repository}:{reference.tag or DEFAULT_TAG}"
