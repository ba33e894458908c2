"""The rules of a function's private network while its settings change.

Owns nothing: the function's allowance has its rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection

from sockd.base.errors import NetworkUnavailable
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.serving.allowances import Allowances
from sockd.isolation.networks.networks import Networks
from sockd.isolation.sandbox.granted_ports import GrantedPorts


class NetworkRules:
    """The rules of all functions of a worker."""

    def __init__(
        self, allowances: Allowances, networks: Networks | None, ports: GrantedPorts, publish_on: Collection[str] = ()
    ) -> None:
        """Args: networks: None: functions cannot have private ones; ports: of the host, for services that have its network;
        publish_on: as `NetworkConfig` has it."""
        self._ports = ports
        self._publish_on = publish_on
        self._allowances = allowances
        self._networks = networks

    @contextlib.asynccontextmanager
    async def enforced(self, name: str, config: FunctionConfig, *, are_given: bool) -> AsyncIterator[None]:
        """Change the rules of a function's network, which hold at once for all its sandboxes; the old ones come back if the
        block fails.

        Args: are_given: whether the rules are part of this change, so that the worker's limits apply; else they are as they
        were.
        Raises: BadFunctionConfig, NetworkUnavailable, NoHostPort."""
        if config.service is not None:
            config.service.addresses(self._publish_on)
            if config.network == "host":
                self._ports.check()
        if are_given and self._networks is not None:
            self._networks.parse(config.egress)
        if config.network == "private":
            if self._networks is None:
                raise NetworkUnavailable("it was started without them")
            await self._networks.ready()
        allowance = self._allowances.get(name)
        async with allowance.egress.changing(config.egress) if allowance else contextlib.nullcontext():
            yield
