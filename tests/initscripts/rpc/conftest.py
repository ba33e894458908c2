"""What the tests of the RPC stacks share: a region, a pool, certificates."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcLimits
from tests.support.certificates import make_certificate

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
    """As of `make_certificate`."""
    return make_certificate(tmp_path_factory.mktemp("tls") / "localhost.pem")


@pytest.fixture(scope="session")
def client_tls(certificate: Path) -> ssl.SSLContext:
    """Trusts that certificate alone."""
    return ssl.create_default_context(cafile=str(certificate))


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
