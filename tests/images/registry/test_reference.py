"""References: docker's rules for names, hosts, tags and digests, and the forms of files."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.base.errors import BadImage
from sockd.images.registry.reference import Reference
from tests.support.examples import examples

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/python", "docker.io/library/python:latest"),
        ("index.docker.io/team/app:1", "docker.io/team/app:1"),
        ("docker://python:3", "docker.io/library/python:3"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app:v1", "localhost:5000/app:v1"),
        ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("ghcr.io/team/app_one/two--three.x__y:V.1-2", "ghcr.io/team/app_one/two--three.x__y:V.1-2"),
        (f"ghcr.io/team/app@{DIGEST}", f"ghcr.io/team/app@{DIGEST}"),
        (f"app:1@{DIGEST}", f"docker.io/library/app:1@{DIGEST}"),
        ("MYHOST/app", "MYHOST/app:latest"),
        ("oci:/images/app", "oci:/images/app"),
        ("oci:/images/app:v1", "oci:/images/app:v1"),
        ("oci-archive:a.tar", "oci-archive:a.tar"),
        ("docker-archive:a.tar:team/app:1", "docker-archive:a.tar:team/app:1"),
        ("docker-archive:a.tar:app", "docker-archive:a.tar:app:latest"),
        ("./image", "./image"),
        ("/images/app.tar", "/images/app.tar"),
        ("image.tar.gz", "image.tar.gz"),
        ("-", "-"),
    ],
)
def test_a_reference_means_what_it_means_to_docker_and_skopeo(text: str, canonical: str) -> None:
    reference = Reference.parse(text)
    assert str(reference) == canonical and Reference.parse(canonical) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        "UPPER",
        "team//app",
        "app:",
        "app:tag:tag",
        "app:tag/more",
        "app@sha256:123",
        f"app@{DIGEST.upper()}",
        f"app@md5:{'0' * 32}",
        "app@" + DIGEST + "@" + DIGEST,
        "app:" + "t" * 129,
        "a" * 256,
        "0123456789abcdef" * 4,
        "host:port/app",
        "-host.example.com/app",
        "https://ghcr.io/team/app",
        "user:password@ghcr.io/app",
        "app name",
        "app\n",
        "app\0",
        "../../etc/passwd\0",
        "oci:",
        "oci:dir:a b",
        "oci-archive::tag",
        "docker-archive:a.tar:UPPER",
        f"docker-archive:a.tar:app@{DIGEST}",
        "ghcr.io/../app",
        "ghcr.io/team/app?x=1",
        "ghcr.io/team/app#x",
        "ghcr.io/team/%2e%2e/app",
        "x" * 5000,
    ],
)
def test_what_is_no_reference_is_refused_by_a_typed_error(text: str) -> None:
    with pytest.raises(BadImage):
        Reference.parse(text)


@settings(max_examples=examples(40))
@given(st.text(st.characters(), max_size=60) | st.from_regex(r"[a-zA-Z0-9./:@_\-\[\]]{0,60}", fullmatch=True))
def test_any_text_is_parsed_or_refused_and_the_canonical_form_is_stable(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except BadImage:
        return
    assert Reference.parse(str(reference)) == reference
    if reference.kind == "registry":
        assert not set(reference.repository + reference.tag + reference.host) & set(" ?#%\\\"'")
        assert ".." not in reference.repository.split("/")


def test_an_image_has_its_path_at_a_mirror() -> None:
    digest = f"sha256:{64 * 'a'}"
    for mirror, wanted in {
        "mirror.internal:5000": "mirror.internal:5000/library/python:3.12",
        "mirror.internal/hub/proxy": "mirror.internal/hub/proxy/library/python:3.12",
    }.items():
        assert str(Reference.parse("python:3.12").at_mirror(mirror)) == wanted
    assert Reference.parse(f"python@{digest}").at_mirror("m:1").digest == digest
