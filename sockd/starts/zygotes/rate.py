"""Exponentially decaying rates of events, also per package set. Pure; the caller passes the
time."""

from __future__ import annotations

from heapq import nlargest
from math import exp

from sockd.starts.zygotes.selection import Demand

RATE_TAU_S = 600.0
"""Time constant for the import cache. Simulated: halving or doubling it moves the mean latency by 5 % at most."""


class DecayingRate:
    """Events per second, each forgotten with time constant `tau_s`; O(1) in time and memory."""

    __slots__ = ("_at_s", "_value", "tau_s")

    def __init__(self, tau_s: float, *, now_s: float = 0.0, rate: float = 0.0) -> None:
        """Starts at `rate` per second, as if it had been seen for long."""
        self.tau_s = tau_s
        self._at_s = now_s
        self._value = rate

    def hit(self, now_s: float) -> None:
        """One event at `now_s`; the clock must not run backwards."""
        self._value = self.at(now_s) + 1 / self.tau_s
        self._at_s = max(now_s, self._at_s)

    def at(self, now_s: float) -> float:
        """Events per second as of `now_s`."""
        return self._value * exp(-max(now_s - self._at_s, 0.0) / self.tau_s)


class DemandMeter:
    """How often sandboxes are started for each set of packages; the sets least in demand are forgotten beyond a
    bound."""

    def __init__(self, tau_s: float, *, max_sets: int = 1024) -> None:
        """Nothing in demand; each rate decays with `tau_s`."""
        self._tau_s = tau_s
        self._max_sets = max_sets
        self._rates: dict[frozenset[str], DecayingRate] = {}

    def hit(self, closure: frozenset[str], now_s: float) -> None:
        """One cold start for `closure`."""
        rate = self._rates.get(closure)
        if rate is None:
            if len(self._rates) >= self._max_sets:
                self._halve(now_s)
            rate = self._rates[closure] = DecayingRate(self._tau_s, now_s=now_s)
        rate.hit(now_s)

    def rate(self, closure: frozenset[str], now_s: float) -> float:
        """Cold starts of `closure` per second."""
        rate = self._rates.get(closure)
        return rate.at(now_s) if rate else 0.0

    def top(self, count: int, now_s: float, besides: frozenset[str] = frozenset()) -> list[Demand]:
        """The sets most in demand, the first most, and behind them `besides` if it is another that was ever in demand."""
        demands = (Demand(closure, rate.at(now_s)) for closure, rate in self._rates.items())
        most = nlargest(count, demands, key=lambda demand: demand.rate)
        if besides in self._rates and all(demand.closure != besides for demand in most):
            most.append(Demand(besides, self.rate(besides, now_s)))
        return most

    def _halve(self, now_s: float) -> None:
        kept = nlargest(self._max_sets // 2, self._rates.items(), key=lambda item: item[1].at(now_s))
        self._rates = dict(kept)
