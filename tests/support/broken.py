"""A worker with one protection taken away, to prove that the suite sees it: python -m tests.support.broken NAME up ...

The product has no switch for any of this: the breaks are in `tests.support.breaks`.
"""

from __future__ import annotations

import sys

from tests.support.breaks import apis, groups, images, sandboxes, services, state, zygotes  # noqa: F401 - they register breaks
from tests.support.breaks.breaking import BREAKS, IN_TESTS

__all__ = ["BREAKS", "IN_TESTS"]


def main() -> None:
    """`sockd` itself, after the break."""
    from sockd.client.cli.main import main as sockd_main

    BREAKS[sys.argv.pop(1)]()
    sockd_main()


if __name__ == "__main__":
    main()
