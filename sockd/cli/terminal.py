"""What a terminal is told: strangers' text without what it would obey, and screens that are drawn again and again.

Owns the screen while one is drawn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence

_KEPT = "\n\t"
# Controls (C0, DEL, C1), and what turns the direction of text around.
_OBEYED = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _OBEYED if chr(code) not in _KEPT}


def printable(text: str) -> str:
    """A text that changes nothing in a terminal but what it shows: control characters are escaped, lines stay lines."""
    return text.replace("\r\n", "\n").translate(_ESCAPES)


def watch(draw: Callable[[int], Sequence[str]], every_s: float) -> None:
    """Draw a screen again and again until Ctrl-C. Args: draw: lines for so many columns; every_s: seconds between."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(file=sys.stdout)

    def screen() -> Group:
        lines = draw(console.width)[: max(console.height - 1, 1)]
        return Group(
            *(
                Text(line, style="bold" if number < 1 else "", no_wrap=True, overflow="crop")
                for number, line in enumerate(lines)
            )
        )

    pause = threading.Event()  # nobody sets it: a wait that Ctrl-C ends
    try:
        with Live(screen(), console=console, screen=True, auto_refresh=False) as live:
            while not pause.wait(every_s):
                live.update(screen(), refresh=True)
    except KeyboardInterrupt:
        return
