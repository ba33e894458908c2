"""The operation of a request, by the paths of AWS's service model.

Pure. Paths are matched while percent-encoded, so that a slash or colon of an ARN stays within its part.
"""

from __future__ import annotations

import enum
import re

from sockd.http.aws.errors import UnknownOperation
from sockd.http.aws.refused_operations import operation_of

PREFIX = b"/20"
"""With what every path of this API begins: the year of its version."""


class Operation(enum.Enum):
    """The operations of AWS's API that sockd offers, by AWS's names."""

    INVOKE = "Invoke"
    INVOKE_WITH_RESPONSE_STREAM = "InvokeWithResponseStream"
    INVOKE_ASYNC = "InvokeAsync"
    CREATE_FUNCTION = "CreateFunction"
    LIST_FUNCTIONS = "ListFunctions"
    GET_FUNCTION = "GetFunction"
    DELETE_FUNCTION = "DeleteFunction"
    GET_FUNCTION_CONFIGURATION = "GetFunctionConfiguration"
    UPDATE_FUNCTION_CONFIGURATION = "UpdateFunctionConfiguration"
    UPDATE_FUNCTION_CODE = "UpdateFunctionCode"
    PUBLISH_VERSION = "PublishVersion"
    LIST_VERSIONS_BY_FUNCTION = "ListVersionsByFunction"
    CREATE_ALIAS = "CreateAlias"
    GET_ALIAS = "GetAlias"
    UPDATE_ALIAS = "UpdateAlias"
    DELETE_ALIAS = "DeleteAlias"
    LIST_ALIASES = "ListAliases"
    PUT_PROVISIONED_CONCURRENCY_CONFIG = "PutProvisionedConcurrencyConfig"
    GET_PROVISIONED_CONCURRENCY_CONFIG = "GetProvisionedConcurrencyConfig"
    DELETE_PROVISIONED_CONCURRENCY_CONFIG = "DeleteProvisionedConcurrencyConfig"
    LIST_PROVISIONED_CONCURRENCY_CONFIGS = "ListProvisionedConcurrencyConfigs"
    PUT_FUNCTION_CONCURRENCY = "PutFunctionConcurrency"
    GET_FUNCTION_CONCURRENCY = "GetFunctionConcurrency"
    DELETE_FUNCTION_CONCURRENCY = "DeleteFunctionConcurrency"
    PUT_FUNCTION_EVENT_INVOKE_CONFIG = "PutFunctionEventInvokeConfig"
    UPDATE_FUNCTION_EVENT_INVOKE_CONFIG = "UpdateFunctionEventInvokeConfig"
    GET_FUNCTION_EVENT_INVOKE_CONFIG = "GetFunctionEventInvokeConfig"
    DELETE_FUNCTION_EVENT_INVOKE_CONFIG = "DeleteFunctionEventInvokeConfig"
    LIST_FUNCTION_EVENT_INVOKE_CONFIGS = "ListFunctionEventInvokeConfigs"
    GET_ACCOUNT_SETTINGS = "GetAccountSettings"
    LIST_TAGS = "ListTags"
    TAG_RESOURCE = "TagResource"
    UNTAG_RESOURCE = "UntagResource"
    CREATE_FUNCTION_URL_CONFIG = "CreateFunctionUrlConfig"
    GET_FUNCTION_URL_CONFIG = "GetFunctionUrlConfig"
    UPDATE_FUNCTION_URL_CONFIG = "UpdateFunctionUrlConfig"
    DELETE_FUNCTION_URL_CONFIG = "DeleteFunctionUrlConfig"
    LIST_FUNCTION_URL_CONFIGS = "ListFunctionUrlConfigs"
    ADD_PERMISSION = "AddPermission"
    REMOVE_PERMISSION = "RemovePermission"
    GET_POLICY = "GetPolicy"
    GET_FUNCTION_CODE_SIGNING_CONFIG = "GetFunctionCodeSigningConfig"
    GET_RUNTIME_MANAGEMENT_CONFIG = "GetRuntimeManagementConfig"
    GET_FUNCTION_RECURSION_CONFIG = "GetFunctionRecursionConfig"
    LIST_LAYERS = "ListLayers"
    LIST_EVENT_SOURCE_MAPPINGS = "ListEventSourceMappings"


class Permission(enum.Enum):
    """What an operation requires of its caller."""

    INVOKE = "a signature; without keys in the worker's configuration what `/run` requires"
    KEY = "a signature with a key of the worker"


UPLOADS = frozenset({Operation.CREATE_FUNCTION, Operation.UPDATE_FUNCTION_CODE})
"""The operations whose body holds an archive."""

_FUNCTIONS = "/2015-03-31/functions"
_FUNCTION = _FUNCTIONS + "/{}"
_EVENT_CONFIG = "/2019-09-25/functions/{}/event-invoke-config"
_PROVISIONED = "/2019-09-30/functions/{}/provisioned-concurrency"
_URL = "/2021-10-31/functions/{}/url"
TABLE: tuple[tuple[str, str, Operation, Permission], ...] = (
    ("POST", _FUNCTION + "/invocations", Operation.INVOKE, Permission.INVOKE),
    (
        "POST",
        "/2021-11-15/functions/{}/response-streaming-invocations",
        Operation.INVOKE_WITH_RESPONSE_STREAM,
        Permission.INVOKE,
    ),
    ("POST", "/2014-11-13/functions/{}/invoke-async", Operation.INVOKE_ASYNC, Permission.INVOKE),
    ("POST", _FUNCTIONS, Operation.CREATE_FUNCTION, Permission.KEY),
    ("GET", _FUNCTIONS, Operation.LIST_FUNCTIONS, Permission.KEY),
    ("GET", _FUNCTION, Operation.GET_FUNCTION, Permission.KEY),
    ("DELETE", _FUNCTION, Operation.DELETE_FUNCTION, Permission.KEY),
    ("GET", _FUNCTION + "/configuration", Operation.GET_FUNCTION_CONFIGURATION, Permission.KEY),
    ("PUT", _FUNCTION + "/configuration", Operation.UPDATE_FUNCTION_CONFIGURATION, Permission.KEY),
    ("PUT", _FUNCTION + "/code", Operation.UPDATE_FUNCTION_CODE, Permission.KEY),
    ("POST", _FUNCTION + "/versions", Operation.PUBLISH_VERSION, Permission.KEY),
    ("GET", _FUNCTION + "/versions", Operation.LIST_VERSIONS_BY_FUNCTION, Permission.KEY),
    ("POST", _FUNCTION + "/aliases", Operation.CREATE_ALIAS, Permission.KEY),
    ("GET", _FUNCTION + "/aliases", Operation.LIST_ALIASES, Permission.KEY),
    ("GET", _FUNCTION + "/aliases/{}", Operation.GET_ALIAS, Permission.KEY),
    ("PUT", _FUNCTION + "/aliases/{}", Operation.UPDATE_ALIAS, Permission.KEY),
    ("DELETE", _FUNCTION + "/aliases/{}", Operation.DELETE_ALIAS, Permission.KEY),
    ("PUT", _PROVISIONED, Operation.PUT_PROVISIONED_CONCURRENCY_CONFIG, Permission.KEY),
    ("GET", _PROVISIONED, Operation.GET_PROVISIONED_CONCURRENCY_CONFIG, Permission.KEY),
    ("DELETE", _PROVISIONED, Operation.DELETE_PROVISIONED_CONCURRENCY_CONFIG, Permission.KEY),
    ("PUT", "/2017-10-31/functions/{}/concurrency", Operation.PUT_FUNCTION_CONCURRENCY, Permission.KEY),
    ("GET", "/2019-09-30/functions/{}/concurrency", Operation.GET_FUNCTION_CONCURRENCY, Permission.KEY),
    ("DELETE", "/2017-10-31/functions/{}/concurrency", Operation.DELETE_FUNCTION_CONCURRENCY, Permission.KEY),
    ("PUT", _EVENT_CONFIG, Operation.PUT_FUNCTION_EVENT_INVOKE_CONFIG, Permission.KEY),
    ("POST", _EVENT_CONFIG, Operation.UPDATE_FUNCTION_EVENT_INVOKE_CONFIG, Permission.KEY),
    ("GET", _EVENT_CONFIG, Operation.GET_FUNCTION_EVENT_INVOKE_CONFIG, Permission.KEY),
    ("DELETE", _EVENT_CONFIG, Operation.DELETE_FUNCTION_EVENT_INVOKE_CONFIG, Permission.KEY),
    ("GET", _EVENT_CONFIG + "/list", Operation.LIST_FUNCTION_EVENT_INVOKE_CONFIGS, Permission.KEY),
    ("GET", "/2016-08-19/account-settings", Operation.GET_ACCOUNT_SETTINGS, Permission.KEY),
    ("GET", "/2017-03-31/tags/{}", Operation.LIST_TAGS, Permission.KEY),
    ("POST", "/2017-03-31/tags/{}", Operation.TAG_RESOURCE, Permission.KEY),
    ("DELETE", "/2017-03-31/tags/{}", Operation.UNTAG_RESOURCE, Permission.KEY),
    ("POST", _URL, Operation.CREATE_FUNCTION_URL_CONFIG, Permission.KEY),
    ("GET", _URL, Operation.GET_FUNCTION_URL_CONFIG, Permission.KEY),
    ("PUT", _URL, Operation.UPDATE_FUNCTION_URL_CONFIG, Permission.KEY),
    ("DELETE", _URL, Operation.DELETE_FUNCTION_URL_CONFIG, Permission.KEY),
    ("GET", _URL + "s", Operation.LIST_FUNCTION_URL_CONFIGS, Permission.KEY),
    ("POST", _FUNCTION + "/policy", Operation.ADD_PERMISSION, Permission.KEY),
    ("DELETE", _FUNCTION + "/policy/{}", Operation.REMOVE_PERMISSION, Permission.KEY),
    ("GET", _FUNCTION + "/policy", Operation.GET_POLICY, Permission.KEY),
    (
        "GET",
        "/2020-06-30/functions/{}/code-signing-config",
        Operation.GET_FUNCTION_CODE_SIGNING_CONFIG,
        Permission.KEY,
    ),
    (
        "GET",
        "/2021-07-20/functions/{}/runtime-management-config",
        Operation.GET_RUNTIME_MANAGEMENT_CONFIG,
        Permission.KEY,
    ),
    ("GET", "/2024-08-31/functions/{}/recursion-config", Operation.GET_FUNCTION_RECURSION_CONFIG, Permission.KEY),
    ("GET", "/2018-10-31/layers", Operation.LIST_LAYERS, Permission.KEY),
    ("GET", "/2015-03-31/event-source-mappings", Operation.LIST_EVENT_SOURCE_MAPPINGS, Permission.KEY),
)
_ROUTES = [
    (method, re.compile(re.escape(path).replace(r"\{\}", "([^/]+)") + "/?"), name) for method, path, name, _ in TABLE
]


_WITH_QUERY: dict[tuple[str, Operation], Operation | None] = {
    ("List=ALL", Operation.GET_PROVISIONED_CONCURRENCY_CONFIG): Operation.LIST_PROVISIONED_CONCURRENCY_CONFIGS,
    ("find=LayerVersion", Operation.LIST_LAYERS): None,
}
"""Where the query says what is meant; None: an operation that sockd does not offer."""
PERMISSIONS = {operation: permission for _, _, operation, permission in TABLE}
PERMISSIONS |= {other: PERMISSIONS[operation] for (_, operation), other in _WITH_QUERY.items() if other}
"""By operation."""
EVENTS = frozenset(operation for operation, permission in PERMISSIONS.items() if permission is Permission.INVOKE)
"""Operations whose body is an event: it may have the size of one."""


def route(method: str, path: str, query: str = "") -> tuple[Operation, tuple[str, ...]]:
    """The operation, and the variable parts of the path, still percent-encoded: the first names a function, if any does.

    Raises: UnknownOperation."""
    for wanted, pattern, operation in _ROUTES:
        found = pattern.fullmatch(path) if method == wanted else None
        if found:
            meant = next(
                (_WITH_QUERY[key] for word in query.split("&") if (key := (word, operation)) in _WITH_QUERY), operation
            )
            if meant is None:
                break
            return meant, found.groups()
    name = operation_of(method, path, query)
    what = f"{name} ({method} {path[:200]})" if name else f"{method} {path[:200]}, which is no operation of AWS's model"
    raise UnknownOperation(f"sockd does not offer {what}; docs/reference/lambda-api.md lists what it has")
