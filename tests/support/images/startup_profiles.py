"""Startup profiles as workers have them: sealed, in a file."""

from __future__ import annotations

from io import FileIO

from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import OpenProfile, Profile, seal_profile
from sockd.linux.memory_file import memory_file

KEY = bytes(range(32))


def unsealed(sealed: bytes, manifest: Manifest, tenant_key: bytes = KEY) -> OpenProfile:
    """Raises: Tampered."""
    return OpenProfile.of(FileIO(memory_file("profile", sealed)), manifest, tenant_key)


def opened(manifest: Manifest, profile: Profile) -> OpenProfile:
    """A profile for `ImageAgent.open`."""
    return unsealed(seal_profile(manifest, profile, KEY), manifest)


def whole(profile: OpenProfile) -> Profile:
    """Return the profile with all of its data. Raises: Tampered."""
    segments = profile.segments
    if segments is None:
        return Profile(profile.order)
    data = bytearray(segments.size)
    for number in range(segments.count):
        segments.read_into(profile.file.fileno(), number, memoryview(data)[segments.place(number)])
    return Profile(profile.order, bytes(data))
