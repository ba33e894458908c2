"""The settings of functions that the APIs read before a request reaches its function: who may call it, and what of an error
is answered.

Owns both tables, which the APIs read.
"""

from __future__ import annotations

from sockd.base.config import ErrorDetail, RunRule
from sockd.functions.code.function_config import FunctionConfig


class RequestSettings:
    """The APIs' settings of all functions of a worker, those that cannot run included."""

    def __init__(self) -> None:
        self.run_rules: dict[str, RunRule] = {}
        """The functions that restrict /run, with their rule."""
        self.error_details: dict[str, ErrorDetail] = {}
        """The functions that set how much of an error /run tells."""

    def note(self, name: str, config: FunctionConfig) -> None:
        """Put the settings of a function in force."""
        self.forget(name)
        if config.run not in (None, "open"):
            self.run_rules[name] = config.run
        if config.errors is not None:
            self.error_details[name] = config.errors

    def forget(self, name: str) -> None:
        """Drop the settings of a removed function."""
        self.run_rules.pop(name, None)
        self.error_details.pop(name, None)
