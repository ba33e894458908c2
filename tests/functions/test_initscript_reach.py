"""What the initscript of a function may connect to, by the function's network."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.modules.initscripts import Initscript
from sockd_initscripts.rpc import EndpointPolicy


@pytest.mark.parametrize(
    ("settings", "endpoints", "private"),
    [
        ({}, None, None),
        ({"network": "none"}, [], None),
        ({"network": "private"}, None, ["internet"]),
        ({"network": "private", "egress": []}, None, []),
        (
            {"network": "private", "egress": ["10.0.0.0/8:5432", "*.example.com:80-90/tcp", "10.1.2.3:53/udp"]},
            None,
            ["10.0.0.0/8:5432-5432", "*.example.com:80-90"],
        ),
        ({"network": "private", "egress": ["host:5432", "function:other"]}, None, ["host:5432"]),
    ],
)
def test_a_scripts_reach_follows_from_its_functions_network(
    settings: dict[str, Any], endpoints: list[str] | None, private: list[str] | None
) -> None:
    for digest in ("digest", ""):
        budget = Initscript.of("f", digest, FunctionConfig(**settings)).budget
        assert (budget.endpoints, budget.private) == (endpoints, private)
        EndpointPolicy(budget.endpoints, private=budget.private)  # it reads what it is given
