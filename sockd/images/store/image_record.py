"""What the worker knows of an image that it has: plain data, kept as JSON next to its files."""

from __future__ import annotations

import re

import msgspec

from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_facts import ImageFacts

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One image. The digest is its name; the reference is how somebody asked for it first."""

    digest: str
    """The digest of the image's manifest for this platform."""
    reference: str
    """As it was imported: of a registry, or what was uploaded. Tags may mean something else by now."""
    config: ImageConfig
    size_bytes: int
    """The size of the image's file system, in bytes."""
    layers: int
    imported_at: float
    """Unix time."""
    notes: tuple[str, ...] = ()
    """Notes on what was left out of the image, for the output of a deploy."""
    facts: ImageFacts = ImageFacts()
    """What was found in it."""
    form: str = "2"
    """The form of the file system that was made of the layers. Records of the first form that was kept do not have this
    field."""

    @property
    def stored_name(self) -> str:
        """What it is called in the chunk store: the same layers in another form are other bytes."""
        return stored_name(self.digest, self.form)

    @property
    def hex(self) -> str:
        return self.digest.removeprefix("sha256:")

    @property
    def repository(self) -> str:
        """The reference without digest and tag. The builds of one program have the same one."""
        named = self.reference.partition("@")[0]
        repository, _, tag = named.rpartition(":")
        return named if not repository or "/" in tag else repository

    @property
    def resolved(self) -> str:
        """The reference with the digest instead of the tag; of what is in no registry, the digest."""
        repository = self.repository
        return f"{repository}@{self.digest}" if "/" in repository else self.digest


def stored_name(digest: str, form: str) -> str:
    return f"{digest}-{form}"


def form_of(stored_name: str) -> tuple[str, str]:
    """(digest, form)."""
    digest, _, form = stored_name.rpartition("-")
    return digest, form


def digest_of(stored_name: str) -> str:
    return form_of(stored_name)[0]
