"""Publications: deploys of a function that were given a number, 1, 2, ..., and stay as they were until they are deleted.

AWS counts what is published, we count deploys besides: a publication is a number for one deploy, whose record and code
stay as long as the publication is there. A number is used once, even if its function is deleted and made anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from sockd.base.errors import SockdError


class VersionInUse(SockdError):
    """An alias leads to the published version."""

    status = 409
    error_type = "ResourceConflictException"


@dataclass(frozen=True, slots=True)
class Publication:
    """One published version."""

    name: str
    number: int
    version: int
    """The deploy that it is (`FunctionRecord.version`)."""
    description: str
    published_at: float
    """Unix time."""
