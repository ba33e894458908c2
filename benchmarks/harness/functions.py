"""The functions that benchmarks deploy: tiny handlers, each with the real package that it imports."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NOOP = "def handler(event, context):\n    return {}\n"
ECHO = "def handler(event, context):\n    return event\n"


@dataclass(frozen=True, slots=True)
class Function:
    """The sources of one function."""

    name: str
    code: str = NOOP
    requirements: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of its sockd.toml."""

    def write(self, parent: Path) -> Path:
        """Write the function's directory below `parent` and return it."""
        directory = parent / self.name
        directory.mkdir(parents=True)
        (directory / "handler.py").write_text(self.code)
        settings = {"handler": "handler:handler", **self.settings}
        (directory / "sockd.toml").write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        )
        if self.requirements:
            (directory / "requirements.txt").write_text("\n".join(self.requirements) + "\n")
        return directory


def importing(name: str, requirement: str, statement: str) -> Function:
    """A function that runs `statement` when it is imported and answers {}."""
    settings = {"memory_mb": 512, "timeout_s": 30, "init_timeout_s": 60}
    return Function(name, f"{statement}\n\n\n{NOOP}", (requirement,), settings)


IMPORTS = {
    name: importing(name, requirement, statement)
    for name, requirement, statement in (
        ("requests", "requests", "import requests"),
        ("numpy", "numpy", "import numpy"),
        ("pandas", "pandas", "import pandas"),
        ("django", "Django", "import django.db.models\nimport django.http"),
        ("flask", "Flask", "import flask"),
        ("boto3", "boto3", "import boto3"),
        ("pillow", "Pillow", "import PIL.Image"),
        ("sqlalchemy", "SQLAlchemy", "import sqlalchemy.orm"),
        ("scipy", "scipy", "import scipy.stats"),
        ("matplotlib", "matplotlib", "import matplotlib\n\nmatplotlib.use('Agg')\nimport matplotlib.pyplot"),
        ("aiohttp", "aiohttp", "import aiohttp"),
        ("anthropic", "anthropic", "import anthropic"),
        ("beautifulsoup4", "beautifulsoup4", "import bs4"),
        ("celery", "celery", "import celery"),
        ("cryptography", "cryptography", "import cryptography.fernet\nimport cryptography.x509"),
        ("duckdb", "duckdb", "import duckdb"),
        ("faker", "faker", "import faker"),
        ("fastapi", "fastapi", "import fastapi"),
        ("geopandas", "geopandas", "import geopandas"),
        ("grpcio", "grpcio", "import grpc"),
        ("httpx", "httpx", "import httpx"),
        ("litellm", "litellm", "import litellm"),
        ("lxml", "lxml", "import lxml.etree"),
        ("networkx", "networkx", "import networkx"),
        ("openai", "openai", "import openai"),
        ("polars", "polars", "import polars"),
        ("pyarrow", "pyarrow", "import pyarrow"),
        ("redis", "redis", "import redis"),
        ("scikit-learn", "scikit-learn", "import sklearn.linear_model"),
        ("sympy", "sympy", "import sympy"),
    )
}
"""One function per package: of SOCK's study first, then what functions import today; importing what such a function would."""
STANDARD_LIBRARY = Function("standard-library", f"import asyncio, logging, sqlite3, ssl, urllib.request\n\n\n{NOOP}")
"""Its name is that of the Zygote which holds what it imports."""
