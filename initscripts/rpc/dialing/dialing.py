"""From a name to a connected TCP socket, each address judged at the moment when it is connected to.

Owns the sockets until they are connected. Knows nothing of what is spoken over them.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sockd_initscripts.rpc.base import RpcFailed, refused, reset, timed_out
from sockd_initscripts.rpc.dialing.addresses import IpAddress, Origin, parse_ip
from sockd_initscripts.rpc.dialing.policy import EndpointPolicy


async def resolve(origin: Origin, policy: EndpointPolicy) -> list[IpAddress]:
    """The addresses of a host that the policy lets be used, at least one.

    Raises: RpcFailed (denied if the policy lets none be used, unresolved)."""
    literal = policy.address_of(origin.host, origin.port)
    if literal is not None:
        policy.check(origin.host, literal, origin.port)
        return [literal]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RpcFailed(errno.ECONNREFUSED, "unresolved", f"{origin.host}: {error}") from error
    ips = list(dict.fromkeys(ip for *_, address in found if (ip := parse_ip(str(address[0]))) is not None))
    permitted = [ip for ip in ips if policy.allows(origin.host, ip, origin.port)]
    if ips and not permitted:
        policy.check(origin.host, ips[0], origin.port)
    if not permitted:
        raise RpcFailed(errno.ECONNREFUSED, "unresolved", f"{origin.host} has no address")
    return permitted


async def connect(origin: Origin, policy: EndpointPolicy) -> tuple[socket.socket, IpAddress]:
    """A connected non-blocking socket, and the address at its other end. Give it a deadline with `within`.

    Raises: RpcFailed (denied, unresolved, refused)."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for ip in await resolve(origin, policy):
        sock = socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, (str(ip), origin.port))
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock, ip
    raise refused(f"{origin.authority}: {failure}") from failure


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Give up after so many seconds; errors of the socket and of TLS become RpcFailed."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise timed_out(f"{what}: not within {seconds:g} s") from error
    except ssl.SSLError as error:
        raise RpcFailed(errno.EPROTO, "tls", f"{what}: {error}") from error
    except OSError as error:
        raise reset(f"{what}: {error}") from error
