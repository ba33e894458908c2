"""Live screens. Owns the screen while it draws."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sockd.console.output import console
from sockd.plain.printable import one_line


def watch(draw: Callable[[int], Sequence[str]], every_s: float) -> None:
    """Redraw a screen until Ctrl-C. Args: draw: returns the lines for a width in columns; every_s: interval in seconds."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    screen_of = console()

    def screen() -> Group:
        lines = draw(screen_of.width)[: max(screen_of.height - 1, 1)]
        return Group(
            *(
                Text(one_line(line), style="bold" if number < 1 else "", no_wrap=True, overflow="crop")
                for number, line in enumerate(lines)
            )
        )

    pause = threading.Event()  # nobody sets it: a wait that Ctrl-C ends
    try:
        with Live(screen(), console=screen_of, screen=True, auto_refresh=False) as live:
            while not pause.wait(every_s):
                live.update(screen(), refresh=True)
    except KeyboardInterrupt:
        return
