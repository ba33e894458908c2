"""The registry client: against Debian's docker-registry, and against one that breaks, redirects, refuses and lies."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sockd.base.errors import BadImage, ImageAccessDenied, NoSuchImage, RegistryUnavailable
from sockd.images.registry import documents
from sockd.images.registry.credentials import Credentials, DockerConfig
from sockd.images.registry.destinations import Destinations
from sockd.images.registry.http import MOST_ATTEMPTS, HttpClient
from sockd.images.registry.image import OciImage
from sockd.images.registry.limits import Limits
from sockd.images.registry.merge import apply_layers
from sockd.images.registry.origin import Origin, is_loopback
from sockd.images.registry.reference import Reference
from sockd.images.registry.sources import open_source
from sockd.images.registry.unpacked import UnpackedLayers
from tests.support.images import docker_registry as registries
from tests.support.images.docker_registry import Registry, docker_registry
from tests.support.images.oci_images import Blobs, descriptor, digest, member, needs, tar
from tests.support.images.scripted_registry import TOKEN, Script, raw_registry, scripted_registry

LAYERS = [tar([member("etc/a", b"1" * 3_000_000)]), tar([member("etc/b", b"2")])]
GIVEN = Credentials("user", "password")
GIVEN_BASIC = "Basic " + base64.b64encode(b"user:password").decode()


def client(**options: Any) -> HttpClient:
    return HttpClient(**{"first_wait_s": 0.001, "timeout_s": 5.0, **options})


def pulled(reference: str, path: Path, credentials: Credentials | None = None, **options: Any) -> OciImage:
    """Resolve and fetch all of an image; both digests of each layer are checked in there."""
    source = open_source(Reference.parse(reference), str(path), credentials=credentials, client=client(**options))
    with closing(source):
        image = source.resolve()
        with UnpackedLayers.fetch(source, image.layers, str(path), Limits()) as layers:
            assert set(apply_layers(layers, Limits()).tree) == {"", "etc", "etc/a", "etc/b"}
    return image


# ---- Debian's docker-registry ----


@pytest.fixture(scope="module")
def real() -> Iterator[Registry]:
    with docker_registry() as registry:
        yield registry


@needs(registries.PROGRAM)
def test_an_image_is_pulled_by_tag_and_by_digest(real: Registry, tmp_path: Path) -> None:
    blobs = Blobs()
    manifest = blobs.image(LAYERS, Entrypoint=["/f"])
    real.push("team/app:v1", blobs, manifest, documents.OCI_MANIFEST)
    image = pulled(f"{real.address}/team/app:v1", tmp_path)
    assert (image.digest, image.config.entrypoint) == (digest(manifest), ("/f",))
    assert pulled(f"{real.address}/team/app@{digest(manifest)}", tmp_path) == image
    assert pulled(f"localhost:{real.address.partition(':')[2]}/team/app:v1", tmp_path) == image
    with pytest.raises(NoSuchImage, match=r"has no .*team/app:other: manifest unknown"):
        pulled(f"{real.address}/team/app:other", tmp_path)
    with pytest.raises(NoSuchImage):
        pulled(f"{real.address}/team/nothing:v1", tmp_path)


@needs(registries.PROGRAM)
def test_an_index_and_docker_s_own_media_types_are_pulled(real: Registry, tmp_path: Path) -> None:
    blobs = Blobs()
    text = blobs.image(LAYERS).decode()
    text = text.replace(documents.OCI_MANIFEST, documents.DOCKER_MANIFEST)
    text = text.replace(documents.OCI_CONFIG, documents.DOCKER_CONFIG)
    text = text.replace(
        "application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"
    )
    manifest = text.encode()
    real.push("team/docker:amd64", blobs, manifest, documents.DOCKER_MANIFEST)
    platform = {"os": "linux", "architecture": "amd64"}
    index = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": documents.DOCKER_LIST,
            "manifests": [descriptor(manifest, documents.DOCKER_MANIFEST, platform=platform)],
        }
    ).encode()
    real.push("team/docker:v1", {}, index, documents.DOCKER_LIST)
    assert pulled(f"{real.address}/team/docker:v1", tmp_path).digest == digest(manifest)


@needs(registries.PROGRAM)
def test_a_private_registry_wants_the_credentials_of_docker_login(tmp_path: Path) -> None:
    blobs = Blobs()
    manifest = blobs.image(LAYERS)
    with docker_registry(has_auth=True) as registry:
        registry.push("team/app:v1", blobs, manifest, documents.OCI_MANIFEST)
        reference = f"{registry.address}/team/app:v1"
        auth = base64.b64encode(f"{registries.USER}:{registries.PASSWORD}".encode()).decode()
        config = DockerConfig.parse(json.dumps({"auths": {registry.address: {"auth": auth}}}).encode())
        assert pulled(reference, tmp_path, config.credentials(registry.address)).digest == digest(manifest)
        with pytest.raises(ImageAccessDenied, match="`docker login`"):
            pulled(reference, tmp_path)
        with pytest.raises(ImageAccessDenied, match="does not accept these credentials"):
            pulled(reference, tmp_path, Credentials(registries.USER, "wrong"))


# ---- one that does what it is asked to ----


@pytest.fixture
def script() -> Script:
    blobs = Blobs()
    manifest = blobs.image(LAYERS)
    return Script({"v1": (manifest, documents.OCI_MANIFEST)}, dict(blobs))


Pull = Callable[..., OciImage]


@pytest.fixture
def pull(script: Script, tmp_path: Path) -> Iterator[Pull]:
    with scripted_registry(script) as address:

        def pull(credentials: Credentials | None = None, tag: str = ":v1", **options: Any) -> OciImage:
            return pulled(f"{address}/team/app{tag}", tmp_path, credentials, **options)

        yield pull


def test_an_anonymous_token_is_asked_for_and_used(script: Script, pull: Pull) -> None:
    script.wants = "Bearer"
    pull()
    assert script.count("/token?service=registry&scope=repository%3Ateam%2Fapp%3Apull") == 1
    assert script.authorizations("/token") == {"": 1}
    assert script.authorizations("/blobs") == {f"Bearer {TOKEN}": 3}


def test_credentials_go_to_the_token_server_and_the_token_to_the_registry(script: Script, pull: Pull) -> None:
    script.wants, script.token_credentials = "Bearer", GIVEN_BASIC
    pull(GIVEN)
    assert script.authorizations("/token") == {GIVEN_BASIC: 1} and script.count("account=user") == 1
    assert GIVEN_BASIC not in script.authorizations("/v2/")
    with pytest.raises(ImageAccessDenied, match="token server"):
        pull(Credentials("user", "wrong"))


def test_an_identity_token_is_exchanged_as_oauth_2_says(script: Script, pull: Pull) -> None:
    script.wants = "Bearer"
    pull(Credentials(identity_token="refresh"))
    assert script.count("grant_type=refresh_token&refresh_token=refresh") == 1


def test_a_token_that_has_expired_is_asked_for_again(script: Script, pull: Pull) -> None:
    script.wants, script.tokens = "Bearer", ["old", "new"]
    script.accepted = {"Bearer old", "Bearer new"}
    script.answers["/blobs"] = [(401, {"WWW-Authenticate": 'Bearer realm="http://{}/token"'})]
    with scripted_registry(Script(tokens=["new"])) as tokens:
        script.answers["/blobs"] = [(401, {"WWW-Authenticate": f'Bearer realm="http://{tokens}/token"'})]
        pull(destinations=Destinations(insecure_hosts=(tokens,)))
    assert set(script.authorizations("/blobs")) == {"Bearer old", "Bearer new"}


def test_a_registry_that_accepts_no_token_is_asked_a_few_times_only(script: Script, pull: Pull) -> None:
    script.wants, script.accepted = "Bearer", set()
    with pytest.raises(ImageAccessDenied, match=r"does not accept these credentials"):
        pull()
    assert len(script.requests) < 10


def test_a_redirect_to_another_host_does_not_carry_credentials(script: Script, pull: Pull) -> None:
    storage = Script(blobs=script.blobs)
    script.wants, script.accepted = "Basic", {GIVEN_BASIC}
    with scripted_registry(storage) as address:
        script.redirect = f"http://{address}"
        pull(GIVEN, destinations=Destinations(insecure_hosts=(address,)))
    assert script.authorizations("/blobs") == {GIVEN_BASIC: 3} and storage.authorizations() == {"": 3}


def test_a_redirect_on_the_same_host_keeps_them(script: Script, pull: Pull) -> None:
    script.wants, script.accepted = "Basic", {GIVEN_BASIC}
    challenge = {"WWW-Authenticate": 'Basic realm="tests"'}
    script.answers["/manifests/v1"] = [(401, challenge), (302, {"Location": "/v2/team/app/manifests/other"})]
    script.manifests["other"] = script.manifests["v1"]
    pull(GIVEN)
    assert script.authorizations("/manifests/other") == {GIVEN_BASIC: 1}


@pytest.mark.parametrize(
    "location",
    ["ftp://example.com/", "file:///etc/passwd", "http://user:x@127.0.0.1/", "http://127.0.0.1:x/", "http:///x", ""],
)
def test_a_redirect_to_what_is_no_address_is_not_followed(script: Script, pull: Pull, location: str) -> None:
    script.answers["/manifests"] = [(302, {"Location": location})] * 10
    with pytest.raises(BadImage):
        pull()


def test_a_redirect_to_a_host_without_https_is_not_followed(script: Script, pull: Pull) -> None:
    script.redirect = "http://192.0.2.1"
    with pytest.raises(BadImage, match="only spoken with over HTTPS"):
        pull()


def test_a_registry_sends_no_request_to_another_service_of_this_host(script: Script, pull: Pull) -> None:
    with scripted_registry(Script()) as other:
        victim = f"http://{other}/admin/shutdown?now=1"
        script.wants, script.realm = "Bearer", victim
        with pytest.raises(BadImage, match="token server without HTTPS"):
            pull()
        script.wants = ""
        for path in ("/manifests", "/blobs"):
            script.answers = {path: [(307, {"Location": victim})] * 10}
            with pytest.raises(BadImage, match="only spoken with over HTTPS"):
                pull()


def test_a_registry_over_https_sends_no_request_to_this_host(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTPS, too, whose certificate would be valid."""
    context, authority = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    victim = Script(blobs=script.blobs)
    with scripted_registry(script, tls=context) as address, scripted_registry(victim, tls=context) as other:
        script.wants, script.realm = "Bearer", f"https://{other}/run/victim"
        with pytest.raises(
            BadImage, match=r"sends this import to 127.0.0.1:\d+, which is 127.0.0.1, not a public address"
        ):
            pulled(f"{address}/team/app:v1", tmp_path)
        script.realm = f"http://{other}/run/victim"
        with pytest.raises(BadImage, match="token server without HTTPS"):
            pulled(f"{address}/team/app:v1", tmp_path)
        script.wants, script.redirect = "", f"https://{other}"
        with pytest.raises(BadImage, match=r"images\.redirect_hosts names hosts"):
            pulled(f"{address}/team/app:v1", tmp_path)
        assert not victim.requests
        pulled(f"{address}/team/app:v1", tmp_path, destinations=Destinations(redirect_hosts=(other,)))
        assert victim.count("/blobs") == 3


def test_a_blob_whose_connection_breaks_is_resumed_where_it_ended(script: Script, pull: Pull) -> None:
    script.break_after = [10_000, 100, 200, 0, 50, 1, 20, 30, 40]  # the first is the configuration
    pull()
    assert [headers["Range"] for _, path, headers in script.requests if "Range" in headers]


def test_a_registry_without_ranges_sends_the_beginning_again(script: Script, pull: Pull) -> None:
    script.has_range, script.break_after = False, [300, 10, 1000, 20]
    pull()


def test_another_part_than_the_one_asked_for_is_refused(script: Script, pull: Pull) -> None:
    script.range_shift, script.break_after = 1, [100_000, 50, 50]
    with pytest.raises(BadImage, match="another part"):
        pull()


@pytest.mark.parametrize("size", [b"-5", b"-1", b"x", b""])
def test_a_size_of_a_chunk_that_cannot_be_is_a_broken_connection(tmp_path: Path, size: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\n" + b"x" * 100
    with raw_registry(answer) as address, pytest.raises(RegistryUnavailable, match="broke 5 times"):
        pulled(f"{address}/team/app:v1", tmp_path)


def test_a_connection_that_breaks_at_once_again_and_again_is_given_up(script: Script, pull: Pull) -> None:
    script.break_after = [0] * 1000
    with pytest.raises(RegistryUnavailable, match="broke 5 times"):
        pull()
    assert script.count("/blobs") <= 2 * MOST_ATTEMPTS * len(script.blobs)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_temporary_failure_is_tried_again_and_not_for_ever(script: Script, pull: Pull, status: int) -> None:
    script.answers = {"/manifests": [(status, {})] * 2, "/blobs": [(status, {"Retry-After": "0"})] * 2}
    pull()
    script.answers = {"/manifests": [(status, {})] * 100}
    script.said = b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "pull rate limit"}]}'
    with pytest.raises(
        RegistryUnavailable,
        match=rf"127.0.0.1:\d+ does not answer after 5 attempts: HTTP status {status}: pull rate limit",
    ):
        pull()


def test_a_wait_ends_when_the_source_is_closed(script: Script, tmp_path: Path) -> None:
    script.answers["/manifests"] = [(503, {"Retry-After": "30"})]
    with scripted_registry(script) as address:
        source = open_source(Reference.parse(f"{address}/team/app:v1"), str(tmp_path))
        source.close()
        with pytest.raises(RegistryUnavailable, match="stopped"):
            source.resolve()


@pytest.mark.parametrize(("status", "error"), [(403, ImageAccessDenied), (404, NoSuchImage), (400, BadImage)])
def test_a_refusal_is_a_typed_error(script: Script, pull: Pull, status: int, error: type[Exception]) -> None:
    script.answers["/manifests"] = [(status, {})]
    with pytest.raises(error):
        pull()


def test_a_part_that_is_missing_is_named(script: Script, pull: Pull) -> None:
    script.answers["/blobs"] = [(404, {})]
    with pytest.raises(
        NoSuchImage, match=r"has .*team/app:v1, but not its part sha256:[0-9a-f]{12}; push the image again"
    ):
        pull()


def test_a_web_page_is_no_manifest(script: Script, pull: Pull) -> None:
    script.manifests["v1"] = (b"\n<!doctype html><title>Log in</title>", "text/html; charset=utf-8")
    with pytest.raises(BadImage, match=r"answers with a web page for .*team/app:v1"):
        pull()


def test_a_manifest_or_blob_that_is_not_what_its_digest_says_is_refused(script: Script, pull: Pull) -> None:
    manifest = script.manifests["v1"][0]
    script.manifests[digest(manifest)] = (manifest + b" ", documents.OCI_MANIFEST)
    with pytest.raises(BadImage, match=r"the manifest of .* was altered"):
        pull(tag=f"@{digest(manifest)}")
    config, layer = (json.loads(manifest)[key] for key in ("config", "layers"))
    for name in (config["digest"], layer[0]["digest"]):
        whole = script.blobs[name]
        for changed in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], whole + b"x", b""):
            script.blobs[name] = changed
            with pytest.raises(BadImage):
                pull()
        script.blobs[name] = whole
    pull()


def test_documents_without_end_are_refused(script: Script, pull: Pull) -> None:
    script.manifests["v1"] = (b" " * (documents.MOST_MANIFEST_BYTES + 1), documents.OCI_MANIFEST)
    with pytest.raises(BadImage, match="has more than"):
        pull()


def test_no_other_host_than_this_machine_is_spoken_with_in_plain_http() -> None:
    one = client(destinations=Destinations(insecure_hosts=("registry.test:5000", "plain.test")))
    with pytest.raises(BadImage, match="only spoken with over HTTPS"):
        one.request("http://registry.test/v2/", {}, registry=Origin("http", "registry.test", 80))
    assert [is_loopback(host) for host in ("localhost", "127.1.2.3", "::1", "10.0.0.1", "localhost.example.com")] == [
        *[True] * 3,
        *[False] * 2,
    ]


def test_a_registry_that_waits_in_the_handshake_is_spoken_with_in_plain_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one behind a proxy that reads up to the end of a head before it does anything."""
    monkeypatch.setattr("sockd.images.registry.http.PROBE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def serve() -> bytes:
            with closing(listener.accept()[0]), closing(listener.accept()[0]) as plain:
                head = plain.recv(1 << 16)
                plain.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return head

        served = pool.submit(serve)
        with pytest.raises(NoSuchImage):
            pulled(f"127.0.0.1:{listener.getsockname()[1]}/team/app:v1", tmp_path)
        assert served.result(5).startswith(b"GET /v2/team/app/manifests/v1 ")


def certificate(path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context and the file of its self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (path / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    (path / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path / "certificate.pem", path / "key.pem")
    return context, path / "certificate.pem"


def test_tls_is_checked_against_the_system_s_authorities(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, authority = certificate(tmp_path)
    with scripted_registry(script, tls=context) as address:
        with pytest.raises(RegistryUnavailable, match=r"certificate of 127.0.0.1:\d+ is not valid"):
            pulled(f"{address}/team/app:v1", tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))  # where OpenSSL looks for the system's
        pulled(f"{address}/team/app:v1", tmp_path)
        with scripted_registry(Script(blobs=script.blobs)) as plain:
            script.redirect = f"http://{plain}"
            with pytest.raises(BadImage, match="redirects from HTTPS to plain HTTP"):
                pulled(f"{address}/team/app:v1", tmp_path)


# ---- credentials ----
