"""Operations of AWS's model that sockd does not offer, so that the error can name them.

Pure.
"""

from __future__ import annotations

import re

TABLE: tuple[tuple[str, str, str], ...] = (
    ("POST", "/2018-10-31/layers/{}/versions/{}/policy", "AddLayerVersionPermission"),
    ("POST", "/2025-12-01/durable-executions/{}/checkpoint", "CheckpointDurableExecution"),
    ("POST", "/2025-11-30/capacity-providers", "CreateCapacityProvider"),
    ("POST", "/2020-04-22/code-signing-configs", "CreateCodeSigningConfig"),
    ("POST", "/2015-03-31/event-source-mappings", "CreateEventSourceMapping"),
    ("DELETE", "/2025-11-30/capacity-providers/{}", "DeleteCapacityProvider"),
    ("DELETE", "/2020-04-22/code-signing-configs/{}", "DeleteCodeSigningConfig"),
    ("DELETE", "/2025-12-01/durable-executions/{}", "DeleteDurableExecution"),
    ("DELETE", "/2015-03-31/event-source-mappings/{}", "DeleteEventSourceMapping"),
    ("DELETE", "/2020-06-30/functions/{}/code-signing-config", "DeleteFunctionCodeSigningConfig"),
    ("DELETE", "/2018-10-31/layers/{}/versions/{}", "DeleteLayerVersion"),
    ("DELETE", "/2026-07-09/resource-policy/{}", "DeleteResourcePolicy"),
    ("GET", "/2025-11-30/capacity-providers/{}", "GetCapacityProvider"),
    ("GET", "/2020-04-22/code-signing-configs/{}", "GetCodeSigningConfig"),
    ("GET", "/2025-12-01/durable-executions/{}", "GetDurableExecution"),
    ("GET", "/2025-12-01/durable-executions/{}/history", "GetDurableExecutionHistory"),
    ("GET", "/2025-12-01/durable-executions/{}/state", "GetDurableExecutionState"),
    ("GET", "/2015-03-31/event-source-mappings/{}", "GetEventSourceMapping"),
    ("GET", "/2025-11-30/functions/{}/function-scaling-config", "GetFunctionScalingConfig"),
    ("GET", "/2018-10-31/layers/{}/versions/{}", "GetLayerVersion"),
    ("GET", "/2018-10-31/layers?find=LayerVersion", "GetLayerVersionByArn"),
    ("GET", "/2018-10-31/layers/{}/versions/{}/policy", "GetLayerVersionPolicy"),
    ("GET", "/2026-07-09/resource-policy/{}", "GetResourcePolicy"),
    ("GET", "/2025-11-30/capacity-providers", "ListCapacityProviders"),
    ("GET", "/2020-04-22/code-signing-configs", "ListCodeSigningConfigs"),
    ("GET", "/2025-12-01/functions/{}/durable-executions", "ListDurableExecutionsByFunction"),
    ("GET", "/2025-11-30/capacity-providers/{}/function-versions", "ListFunctionVersionsByCapacityProvider"),
    ("GET", "/2020-04-22/code-signing-configs/{}/functions", "ListFunctionsByCodeSigningConfig"),
    ("GET", "/2018-10-31/layers/{}/versions", "ListLayerVersions"),
    ("POST", "/2025-12-01/durable-executions/{}/pause", "PauseDurableExecution"),
    ("POST", "/2018-10-31/layers/{}/versions", "PublishLayerVersion"),
    ("PUT", "/2020-06-30/functions/{}/code-signing-config", "PutFunctionCodeSigningConfig"),
    ("PUT", "/2024-08-31/functions/{}/recursion-config", "PutFunctionRecursionConfig"),
    ("PUT", "/2025-11-30/functions/{}/function-scaling-config", "PutFunctionScalingConfig"),
    ("PUT", "/2026-07-09/resource-policy/{}", "PutResourcePolicy"),
    ("PUT", "/2021-07-20/functions/{}/runtime-management-config", "PutRuntimeManagementConfig"),
    ("DELETE", "/2018-10-31/layers/{}/versions/{}/policy/{}", "RemoveLayerVersionPermission"),
    ("POST", "/2025-12-01/durable-executions/{}/resume", "ResumeDurableExecution"),
    ("POST", "/2025-12-01/durable-execution-callbacks/{}/fail", "SendDurableExecutionCallbackFailure"),
    ("POST", "/2025-12-01/durable-execution-callbacks/{}/heartbeat", "SendDurableExecutionCallbackHeartbeat"),
    ("POST", "/2025-12-01/durable-execution-callbacks/{}/succeed", "SendDurableExecutionCallbackSuccess"),
    ("POST", "/2025-12-01/durable-executions/{}/stop", "StopDurableExecution"),
    ("PUT", "/2025-11-30/capacity-providers/{}", "UpdateCapacityProvider"),
    ("PUT", "/2020-04-22/code-signing-configs/{}", "UpdateCodeSigningConfig"),
    ("PUT", "/2015-03-31/event-source-mappings/{}", "UpdateEventSourceMapping"),
)
"""Method, path and name; a query follows the path where it tells two operations apart."""
_PATTERNS = [
    (
        method,
        re.compile(re.escape(path.partition("?")[0]).replace(r"\{\}", "[^/]+") + "/?"),
        path.partition("?")[2],
        name,
    )
    for method, path, name in TABLE
]


def operation_of(method: str, path: str, query: str) -> str:
    """The name of the operation that a request is for; empty: AWS has none."""
    words = query.split("&")
    for wanted, pattern, word, name in _PATTERNS:
        if method == wanted and pattern.fullmatch(path) and (not word or word in words):
            return name
    return ""
