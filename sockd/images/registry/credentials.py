"""Credentials of registries, as `docker login` and `podman login` keep them. Runs no credential helper."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from sockd.base.errors import BadImage
from sockd.images.registry.reference import DOCKER_HUB

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io")
HUB_SERVER = "registry-1.docker.io"


class Credentials(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The credentials of one registry."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    """A refresh token of OAuth 2, which some registries give instead of keeping the password."""
    registry_token: str = ""
    """A bearer token that is sent as it is."""

    def __repr__(self) -> str:
        return f"Credentials({self.username!r}, ...)"


class _Auth(msgspec.Struct, rename=None):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""


class DockerConfig(msgspec.Struct, rename="camel"):
    """~/.docker/config.json, or podman's auth.json."""

    auths: dict[str, _Auth] = {}
    cred_helpers: dict[str, Any] = {}
    creds_store: str = ""

    @classmethod
    def parse(cls, data: bytes) -> DockerConfig:
        """Raises: BadImage."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise BadImage(f"the file with registry credentials is malformed: {str(error)[:200]}") from error

    def credentials(self, host: str) -> Credentials | None:
        """Return the credentials of a registry, or None if the file has none.

        Raises: BadImage if only a credential helper, which is not run here, has them."""
        keys = _keys(host)
        for name, auth in self.auths.items():
            if _host_of(name) in keys and (found := _decoded(auth, host)) is not None:
                return found
        named = any(_host_of(name) in keys for name in self.auths)
        if any(_host_of(name) in keys for name in self.cred_helpers) or (self.creds_store and named):
            file = f'{{"auths": {{"{host}": {{"auth": "BASE64"}}}}}}'
            raise BadImage(
                f"the credentials of {host} are with a credential helper of docker, which sockd does not run; set docker_config "
                f"in [images] to the absolute path of a file {file}, with USER:PASSWORD in base64"
            )
        return None


def _keys(host: str) -> set[str]:
    return {host, *map(_host_of, _HUB_KEYS)} if host == DOCKER_HUB else {host}


def _host_of(name: str) -> str:
    """A key of `auths`: a host, or with a scheme or path, as older dockers wrote it."""
    return name.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _decoded(auth: _Auth, host: str) -> Credentials | None:
    username, password = auth.username, auth.password
    if auth.auth:
        try:
            username, colon, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
        if not colon:
            raise BadImage(f"the credentials of {host} in docker's config.json are malformed")
    if not (username or auth.identitytoken or auth.registrytoken):
        return None
    return Credentials(username, password.rstrip("\0"), auth.identitytoken, auth.registrytoken)
