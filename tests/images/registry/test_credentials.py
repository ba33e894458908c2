"""Credentials for registries: as docker login leaves them, and never in a text."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from sockd.base.errors import BadImage
from sockd.images.registry.credentials import Credentials, DockerConfig


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("config", "host", "found"),
    [
        ({"auths": {"ghcr.io": auth("u:p:q")}}, "ghcr.io", Credentials("u", "p:q")),
        ({"auths": {"https://ghcr.io/v2/": auth("u:p")}}, "ghcr.io", Credentials("u", "p")),
        ({"auths": {"https://index.docker.io/v1/": auth("u:p")}}, "docker.io", Credentials("u", "p")),
        ({"auths": {"docker.io": auth("u:p")}}, "docker.io", Credentials("u", "p")),
        ({"auths": {"ghcr.io": {"username": "u", "password": "p"}}}, "ghcr.io", Credentials("u", "p")),
        (
            {"auths": {"ghcr.io": {**auth("<token>:"), "identitytoken": "t"}}},
            "ghcr.io",
            Credentials("<token>", "", "t"),
        ),
        ({"auths": {"ghcr.io": auth("u:p")}, "credsStore": "x"}, "ghcr.io", Credentials("u", "p")),
        ({"auths": {"ghcr.io": auth("u:p")}}, "ghcr.io:443", None),
        ({"auths": {"ghcr.io": auth("u:p")}}, "evil-ghcr.io", None),
        ({"auths": {"ghcr.io": {}}}, "ghcr.io", None),
        ({"credHelpers": {"gcr.io": "gcloud"}}, "ghcr.io", None),
        ({"credsStore": "desktop"}, "ghcr.io", None),
        ({"HttpHeaders": {}, "auths": {}}, "ghcr.io", None),
    ],
)
def test_credentials_are_found_as_docker_login_leaves_them(
    config: dict[str, Any], host: str, found: Credentials | None
) -> None:
    assert DockerConfig.parse(json.dumps(config).encode()).credentials(host) == found


@pytest.mark.parametrize(
    "config",
    [
        {"credHelpers": {"ghcr.io": "x"}},
        {"credsStore": "desktop", "auths": {"ghcr.io": {}}},
        {"auths": {"ghcr.io": {"auth": "&&&"}}},
        {"auths": {"ghcr.io": auth("no colon")}},
        {"auths": []},
    ],
)
def test_credentials_that_cannot_be_used_are_a_typed_error_and_no_helper_is_run(config: dict[str, Any]) -> None:
    with pytest.raises(BadImage):
        DockerConfig.parse(json.dumps(config).encode()).credentials("ghcr.io")


def test_what_to_set_instead_of_a_helper_is_reported() -> None:
    with pytest.raises(
        BadImage, match=r'docker_config in \[images\] .*\{"auths": \{"ghcr.io": \{"auth": "BASE64"\}\}\}'
    ):
        DockerConfig.parse(b'{"credHelpers": {"ghcr.io": "x"}}').credentials("ghcr.io")


def test_a_password_is_in_no_text() -> None:
    assert "password" not in repr(Credentials("user", "password")).replace("'user'", "")
