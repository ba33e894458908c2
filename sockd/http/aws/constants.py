"""Operations whose answer is always the same, since sockd does not have what they tell of: tools read them before anything else.

Owns nothing. Each answers as AWS does for a function that does not use the feature; the operations that would use it are refused.
"""

from __future__ import annotations

from sockd.base.function_arns import arn
from sockd.http.aws.names import function_named, whole_function
from sockd.http.aws.operations import Call, Result, Table
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker


class ConstantOperations:
    """Code signing, runtime versions, recursion, layers, event sources."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.GET_FUNCTION_CODE_SIGNING_CONFIG: self._code_signing,
            Operation.GET_RUNTIME_MANAGEMENT_CONFIG: self._runtime_management,
            Operation.GET_FUNCTION_RECURSION_CONFIG: self._recursion,
            Operation.LIST_LAYERS: self._layers,
            Operation.LIST_EVENT_SOURCE_MAPPINGS: self._event_sources,
        }

    async def _code_signing(self, call: Call) -> Result:
        self._worker.functions.details(whole_function(call.segment))
        return 200, {}

    async def _runtime_management(self, call: Call) -> Result:
        name, qualifier = function_named(call.segment, call.parameter("Qualifier"))
        self._worker.functions.details(name, qualifier or "")
        return 200, {"UpdateRuntimeOn": "Auto", "FunctionArn": arn(name, qualifier)}

    async def _recursion(self, call: Call) -> Result:
        """Events that go round are stopped (`sockd.events.event_endings`)."""
        self._worker.functions.details(whole_function(call.segment))
        return 200, {"RecursiveLoop": "Terminate"}

    async def _layers(self, call: Call) -> Result:
        return 200, {"Layers": []}

    async def _event_sources(self, call: Call) -> Result:
        if (text := call.parameter("FunctionName")) is not None:
            name, qualifier = function_named(text)
            self._worker.functions.details(name, qualifier or "")
        return 200, {"EventSourceMappings": []}
