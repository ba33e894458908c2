"""How many examples Hypothesis tries: `make test` all that a test names, `make check` a part of them.

Owns the two profiles of settings. `make check` chooses the second by `--hypothesis-profile`.
"""

from __future__ import annotations

import os

from hypothesis import settings

WHOLE, QUICK = "sockd", "check"
ALL, PART = 100, 20
"""Examples of a test that names no number, by profile; for others the share counts."""


def register_profiles() -> None:
    """Register both profiles, and load the one of all examples."""
    # A slow example says more of a busy machine than of the code; what hangs runs into the timeout of its test.
    # In CI the examples are the same for the same tests: what fails there is the change, not the luck of the draw.
    is_ci = os.environ.get("SOCKD_CI") == "1"
    settings.register_profile(WHOLE, deadline=None, print_blob=True, derandomize=is_ci, max_examples=ALL)
    settings.register_profile(QUICK, settings.get_profile(WHOLE), max_examples=PART)
    settings.load_profile(WHOLE)


def examples(most: int) -> int:
    """Return how many of so many examples this run tries, at least one."""
    return max(1, most * settings().max_examples // ALL)
