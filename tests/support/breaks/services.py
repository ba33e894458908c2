"""Breaks of services: what keeps one serving when its program fails, and its port its own."""

from __future__ import annotations

from sockd.functions.services.service import Service
from sockd.linux.bpf.port_guard import PortGuard
from tests.support.breaks.breaking import breaks


@breaks("early-end")
def early_end() -> None:
    """A deploy ends the program that serves before the next one is ready."""
    adopt = Service.adopt

    def end_and_adopt(self: Service) -> None:
        self._dismiss()
        adopt(self)

    Service.adopt = end_and_adopt  # type: ignore[method-assign]


@breaks("open-ports")
def open_ports() -> None:
    """No port is guarded: whichever sandbox binds one first has it."""
    PortGuard.hold = lambda self, port: None  # type: ignore[method-assign]
    PortGuard.grant = lambda self, port, uid: None  # type: ignore[method-assign]
    PortGuard.release = lambda self, port: None  # type: ignore[method-assign]
