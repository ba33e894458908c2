"""What a bench asks of the package index: the suite's own requirements, for the Python in use.

Pure but for reading the suite. Where the suite has no file for so new a Python, its newest pins become lower bounds: they
name wheels that were never built for it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from benchmarks.sebs_runner.benches import DYNAMODB, Bench
from benchmarks.sebs_runner.suite import Suite
from benchmarks.sebs_runner.torch_source import TorchSource, without_local

BOTO3 = "boto3==1.44.5"
"""AWS has boto3 in its image, so SeBS does not list it. Ours is imported only for what the region does not hold."""
Version = tuple[int, int]


def requirements(bench: Bench, suite: Suite | None, python: Version, torch: TorchSource | None = None) -> list[str]:
    """The lines of a bench's requirements.txt.

    Args:
        suite: None only for a bench of ours.
        python: (3, 11) and the like, of the sandboxes; torch: where the bench has that from, if it needs it."""
    if bench.requirements is not None:
        lines, written_for = list(bench.requirements), (3, 12)
    else:
        assert suite is not None
        lines, written_for = _of_suite(bench, suite, python)
    if python > written_for:
        lines = [without_local(line).replace("==", ">=") for line in lines]
    if torch is not None:
        lines = torch.requirements(lines)
    if bench.storage or DYNAMODB in bench.needs:
        lines.append(BOTO3)
    return lines


def _of_suite(bench: Bench, suite: Suite, python: Version) -> tuple[list[str], Version]:
    """The lines, and the newest Python that they were written for."""
    directory = (*bench.directory, "python")
    names = suite.files(*directory)
    found = [re.fullmatch(r"requirements\.txt\.(\d+)\.(\d+)", name) for name in names]
    versions = sorted((int(match[1]), int(match[2])) for match in found if match)
    fitting = [version for version in versions if version <= python]
    if fitting:
        newest = fitting[-1]
        return _lines(suite.read(*directory, f"requirements.txt.{newest[0]}.{newest[1]}")), newest
    return (_lines(suite.read(*directory, "requirements.txt")) if "requirements.txt" in names else []), python


def _lines(data: bytes) -> list[str]:
    stripped = (line.strip() for line in data.decode().splitlines())
    return [by_name(line) for line in stripped if line and not line.startswith("#")]


def by_name(line: str) -> str:
    """A wheel's URL as the name and version that it is for, since a worker takes packages from its index alone."""
    if "://" not in line:
        return line
    name, version = unquote(line).rpartition("/")[2].split("-")[:2]
    return f"{name}=={version}"
