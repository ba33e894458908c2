"""The one interface of all parts: the worker says what begins and what ends, and each part does what it is for.

One for a worker. Owns the parts.
"""

from __future__ import annotations

import logging
from typing import Self

from sockd.base.config import LatencyConfig
from sockd.base.errors import BadConfig
from sockd.linux.cgroups.hierarchies import Hierarchies
from sockd.linux.latency import favordynmods
from sockd.linux.latency.garbage import Collector
from sockd.linux.latency.hrtick import PERIOD_NS, HrTick, tick_s

FAVORDYNMODS_IS_ON = (
    "favordynmods was switched on for all cgroups of this host, until it reboots: a process moves without a wait of 8 to 16 ms"
    ' (latency.favordynmods = "off" leaves it alone)'
)

_log = logging.getLogger(__name__)


class Latency:
    """`running` and `request_begun` for each request, `start_begun` for each new sandbox; `close` last."""

    def __init__(self, hrtick: HrTick | None = None, *, collects: bool = False, notice: str = "") -> None:
        """Args: hrtick: owned from now on; collects: take garbage collection over; notice: sentences about what changed on the
        host, for people."""
        self.running = 0
        """Requests that run or wait for their turn: counted by who runs them, as a method is a call of each request."""
        self.request_begun = hrtick.request_begun if hrtick is not None else None
        """Called when a function is called; None: no part wants to know."""
        self.notice = notice
        self._hrtick = hrtick
        self._collector = Collector(lambda: self.running) if collects else None

    @classmethod
    def open(cls, config: LatencyConfig, hierarchies: Hierarchies) -> Self:
        """Every part that is wanted and possible. Raises: BadConfig, when one that is "on" is not possible."""
        notice = FAVORDYNMODS_IS_ON if switch_favordynmods(config.favordynmods, hierarchies) else ""
        return cls(open_hrtick(config.hrtick), collects=config.garbage == "auto", notice=notice)

    def start_begun(self) -> None:
        """A sandbox is being started for a request."""
        if self._hrtick is not None:
            self._hrtick.start_begun()

    def serving_begun(self) -> None:
        """All that stays is there: the next thing is a request."""
        if self._collector is not None:
            self._collector.start()

    def close(self) -> None:
        """Safe to call twice."""
        if self._collector is not None:
            self._collector.close()
        if self._hrtick is not None:
            self._hrtick.close()


def switch_favordynmods(setting: str, hierarchies: Hierarchies) -> bool:
    """Make cgroup moves cheap, machine-wide, unless that is switched off (ADR 0002).

    Returns: whether it was switched on now. Raises: BadConfig."""
    if setting == "off" or (setting == "auto" and not favordynmods.enabled_needed(hierarchies)):
        return False
    try:
        favordynmods.enable()
    except Exception as error:
        if setting == "on":
            raise BadConfig(f"latency.favordynmods: {error}") from error
        _log.warning("favordynmods cannot be switched on; idle cold starts will take 8-12 ms longer: %s", error)
        return False
    return True


def open_hrtick(setting: str) -> HrTick | None:
    """The tick, where it is wanted and possible (ADR 0040). Raises: BadConfig."""
    if setting == "off" or (setting == "auto" and tick_s() * 1e9 <= PERIOD_NS):
        return None
    try:
        return HrTick.open()
    except OSError as error:
        if setting == "on":
            raise BadConfig(f"latency.hrtick: {error}") from error
        return None
