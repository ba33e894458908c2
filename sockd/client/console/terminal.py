"""Live screens. Owns the screen while it draws."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from sockd.base.printable import one_line
from sockd.client.console.output import console


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

    try:
        with Live(screen(), console=screen_of, screen=True, auto_refresh=False) as live:
            while not is_interrupted_within(every_s):
                live.update(screen(), refresh=True)
    except KeyboardInterrupt:
        return


def is_interrupted_within(seconds: float) -> bool:
    """Wait; whether Ctrl-C ended it. Event.wait would not do: interrupted between the release of its lock and the wait, it
    raises RuntimeError."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return signal.sigtimedwait({signal.SIGINT}, seconds) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
