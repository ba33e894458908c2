"""Provisions: for which versions and aliases sandboxes are to be kept initialized, and how many.

`sockd.functions.serving.provisioned` owns the sandboxes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Provision:
    """One wish."""

    name: str
    qualifier: str
    """A published number or an alias."""
    wanted: int
    updated_at: float
    """Unix time."""
