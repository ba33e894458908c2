"""The folder's daemon, which takes what boto3 signs, and a function for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.aws_client import KEYS, create
from tests.daemon.versions.numbered import code, publish

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def config() -> str:
    return f"{KEYS}[sandbox]\nmemory_mb = 2048\n"


@pytest.fixture
def function(client: Any) -> Iterator[str]:
    """A function of its own for each test, as numbers are not used twice; deployed once and not published."""
    name = f"f{next(numbers)}"
    create(client, name, code(1), Timeout=10)
    yield name
    client.delete_function(FunctionName=name)


@pytest.fixture
def versions(client: Any, function: str) -> list[str]:
    """Two published versions of it, 1 and 2."""
    return [publish(client, function, number) for number in (1, 2)]
