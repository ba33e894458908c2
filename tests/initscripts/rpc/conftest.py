"""What the tests of the RPC stacks share: a region, a pool, certificates."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcLimits

REGION_BYTES = 16 << 20


@pytest.fixture
def region() -> Iterator[Region]:
    region = Region(REGION_BYTES)
    yield region
    region.close()


@pytest.fixture
def limits() -> RpcLimits:
    """Tests with less patience override it."""
    return RpcLimits(silence_s=10)


@pytest.fixture
async def pool(limits: RpcLimits, client_tls: ssl.SSLContext) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(limits, tls=client_tls)
    yield pool
    await pool.aclose()


@pytest.fixture
async def dialer(pool: ConnectionPool) -> Dialer:
    return Dialer({}, EndpointPolicy(), pool)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a certificate of localhost and 127.0.0.1, with its key, valid for a day."""
    file = tmp_path_factory.mktemp("tls") / "localhost.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = subprocess.run([*command.split(), *names, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
    file.write_bytes(made.stdout)
    return file


@pytest.fixture(scope="session")
def client_tls(certificate: Path) -> ssl.SSLContext:
    """Trusts that certificate alone."""
    return ssl.create_default_context(cafile=str(certificate))


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
