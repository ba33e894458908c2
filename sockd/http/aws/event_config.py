"""The operations on event-invoke-configs: retries and destinations of asynchronous invocations.

Owns nothing. A destination is a function's ARN or name, or `directory:NAME` (see `sockd.events.destinations`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from sockd.base.function_arns import arn
from sockd.events.event_configs import EventInvokeConfig
from sockd.functions.registry.aliases import LATEST
from sockd.http.aws import shapes
from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound
from sockd.http.aws.names import function_named
from sockd.http.aws.operations import Call, Result, Table, page
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker

RETRIES = (0, 2)
AGES_S = (60, 21600)


class Target(shapes.Shape):
    """OnSuccess, OnFailure."""

    destination: str | None = None


class DestinationConfig(shapes.Shape):
    on_success: Target | None = None
    on_failure: Target | None = None


class EventConfigRequest(shapes.Shape):
    """PutFunctionEventInvokeConfig and UpdateFunctionEventInvokeConfig."""

    maximum_retry_attempts: int | None = None
    maximum_event_age_in_seconds: int | None = None
    destination_config: DestinationConfig | None = None

    def check(self) -> None:
        """Raises: InvalidParameterValue."""
        for name, value, (least, most) in (
            ("MaximumRetryAttempts", self.maximum_retry_attempts, RETRIES),
            ("MaximumEventAgeInSeconds", self.maximum_event_age_in_seconds, AGES_S),
        ):
            if value is not None and not least <= value <= most:
                raise InvalidParameterValue(f"{name} must be from {least} to {most}")

    def on(self, config: EventInvokeConfig) -> EventInvokeConfig:
        """A config with what is said here."""
        changes: dict[str, Any] = {}
        if self.maximum_retry_attempts is not None:
            changes["max_retries"] = self.maximum_retry_attempts
        if self.maximum_event_age_in_seconds is not None:
            changes["max_age_s"] = self.maximum_event_age_in_seconds
        if self.destination_config is not None:
            changes["on_success"] = _destination(self.destination_config.on_success)
            changes["on_failure"] = _destination(self.destination_config.on_failure)
        return msgspec.structs.replace(config, **changes)


def _destination(target: Target | None) -> str:
    return (target.destination if target is not None else None) or ""


class EventConfigOperations:
    """The five of them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.PUT_FUNCTION_EVENT_INVOKE_CONFIG: self._put,
            Operation.UPDATE_FUNCTION_EVENT_INVOKE_CONFIG: self._update,
            Operation.GET_FUNCTION_EVENT_INVOKE_CONFIG: self._get,
            Operation.DELETE_FUNCTION_EVENT_INVOKE_CONFIG: self._delete,
            Operation.LIST_FUNCTION_EVENT_INVOKE_CONFIGS: self._list,
        }

    async def _put(self, call: Call) -> Result:
        name, qualifier = self._named(call)
        return await self._set(call, EventInvokeConfig(function=name, qualifier=qualifier))

    async def _update(self, call: Call) -> Result:
        return await self._set(call, self._found(call))

    async def _set(self, call: Call, old: EventInvokeConfig) -> Result:
        wanted = shapes.parse(call.body, EventConfigRequest)
        wanted.check()
        return 200, described(await self._worker.events.invoke_configs.put(wanted.on(old)))

    async def _get(self, call: Call) -> Result:
        return 200, described(self._found(call))

    async def _delete(self, call: Call) -> Result:
        config = self._found(call)
        await self._worker.events.invoke_configs.remove(config.function, config.qualifier)
        return 204, None

    async def _list(self, call: Call) -> Result:
        name, _ = self._named(call)
        configs, rest = page(call, self._worker.events.invoke_configs.all_of(name), lambda config: config.qualifier)
        return 200, {"FunctionEventInvokeConfigs": [described(config) for config in configs], **rest}

    def _named(self, call: Call) -> tuple[str, str]:
        """Raises: NoSuchFunction."""
        name, qualifier = function_named(call.segment, call.parameter("Qualifier"))
        self._worker.functions.details(name, qualifier or LATEST)
        return name, qualifier or LATEST

    def _found(self, call: Call) -> EventInvokeConfig:
        name, qualifier = self._named(call)
        config = self._worker.events.invoke_configs.get(name, qualifier)
        if config is None:
            raise ResourceNotFound(f"The function {arn(name)}:{qualifier} doesn't have an EventInvokeConfig")
        return config


def described(config: EventInvokeConfig) -> dict[str, Any]:
    """A FunctionEventInvokeConfig."""
    answer: dict[str, Any] = {
        "LastModified": config.modified_at,
        "FunctionArn": f"{arn(config.function)}:{config.qualifier}",
        "DestinationConfig": {
            "OnSuccess": {"Destination": config.on_success} if config.on_success else {},
            "OnFailure": {"Destination": config.on_failure} if config.on_failure else {},
        },
    }
    if config.max_retries is not None:
        answer["MaximumRetryAttempts"] = config.max_retries
    if config.max_age_s is not None:
        answer["MaximumEventAgeInSeconds"] = config.max_age_s
    return answer
