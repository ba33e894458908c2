"""Names that modules have taken from another one while a watch stood in for it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any


def give_back(ours: Any, theirs: Any) -> None:
    """Have all modules' names that are the watch's function be the original, as after a start without a watch."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            for name in [name for name, value in names.items() if value is ours]:
                names[name] = theirs
