"""Whom the engine's connections trust."""

from __future__ import annotations

import errno
import ssl
from pathlib import Path

import certifi
import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcTiming
from sockd_initscripts.rpc.dialing.tls import Trust, client_context
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.peer import Request, peer


def test_a_host_without_certificates_has_those_of_certifi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert client_context().cert_store_stats()["x509_ca"] > 50


def test_a_hosts_own_certificates_are_all_that_is_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificates = Path(certifi.where()).read_text()
    end = "-----END CERTIFICATE-----\n"
    (tmp_path / "one").write_text(certificates[: certificates.index(end) + len(end)])
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "one"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert client_context().cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize("authorities", [b"", b"not a certificate", b"-----BEGIN CERTIFICATE-----\nnonsense\n"])
def test_authorities_that_are_none_trust_no_one(authorities: bytes) -> None:
    context = Trust(authorities).context
    assert (context.cert_store_stats()["x509_ca"], context.verify_mode) == (0, ssl.CERT_REQUIRED)


def test_a_bundle_with_comments_in_any_language_is_read() -> None:
    bundle = "# Főtanúsítvány\n".encode() + Path(certifi.where()).read_bytes()
    assert Trust(bundle).context.cert_store_stats()["x509_ca"] > 50


@pytest.mark.anyio
async def test_an_aws_service_is_trusted_by_the_authorities_of_its_function_alone(
    pool: ConnectionPool, region: Region, server_tls: ssl.SSLContext, certificate: Path
) -> None:
    """The pool trusts the server; another function's kept connection is not used for one that does not."""

    async def answer(request: Request) -> None:
        request.answer(b"an object")

    async with peer(answer, tls=server_tls) as server:
        env = {"AWS_ENDPOINT_URL_S3": server.url}
        asked = {"bucket": "data", "key": "a"}
        for authorities in (None, certificate.read_bytes()):
            dialer = Dialer(env, EndpointPolicy(), pool, authorities=authorities)
            for kind in ("new", "kept"):
                timing = RpcTiming()
                connection = dialer.connect("s3:")
                assert content(await ask(connection, region, "GetObject", asked, timing)) == b"an object"
                assert timing.connection == kind
        stranger = Dialer(env, EndpointPolicy(), pool, authorities=Path(certifi.where()).read_bytes())
        async with failing("tls", errno.EPROTO):
            await ask(stranger.connect("s3:"), region, "GetObject", asked)
        assert server.connections == 2
