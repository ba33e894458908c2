"""The operations on resource policies: AddPermission, RemovePermission, GetPolicy.

Owns nothing. What a policy decides is `sockd.functions.registry.policy`'s; the JSON that clients read is made here.
"""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import unquote

import msgspec

from sockd.base.function_arns import PARTITION
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.policy import Policy, Statement
from sockd.http.aws import shapes
from sockd.http.aws.errors import ApiError, PreconditionFailed, ResourceNotFound, ValidationFailed
from sockd.http.aws.names import Named, function_named
from sockd.http.aws.operations import Call, Changes, Result, Table
from sockd.http.aws.routes import Operation
from sockd.http.worker import Worker

MAX_POLICY_BYTES = 20 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ACTION = re.compile(r"lambda:(?:\*|[A-Za-z]{1,100})|\*")
_PRINCIPAL = re.compile(r"[^\s]{1,256}")
_ACCOUNT = re.compile(r"[0-9]{12}")


class PolicyTooLong(ApiError):
    """The policy would be longer than AWS allows."""

    status = 400
    error_type = "PolicyLengthExceededException"

    def __init__(self) -> None:
        super().__init__(
            f"The final policy size is bigger than the limit ({MAX_POLICY_BYTES}); remove statements first"
        )


class AddedPermission(shapes.Shape):
    """AddPermission."""

    statement_id: str
    action: str
    principal: str
    source_arn: str = ""
    source_account: str = ""
    event_source_token: str = ""
    function_url_auth_type: Literal["NONE", "AWS_IAM", ""] = ""
    invoked_via_function_url: bool = False
    principal_org_id: str = msgspec.field(name="PrincipalOrgID", default="")
    revision_id: str | None = None

    def check(self) -> None:
        """Raises: ValidationFailed."""
        for value, where, pattern in (
            (self.statement_id, "statementId", _ID),
            (self.action, "action", _ACTION),
            (self.principal, "principal", _PRINCIPAL),
        ):
            if not pattern.fullmatch(value):
                raise ValidationFailed(
                    value, where, f"Member must satisfy regular expression pattern: {pattern.pattern}"
                )

    def statement(self) -> Statement:
        """What the policy keeps."""
        return Statement(
            self.statement_id,
            self.action,
            self.principal,
            self.function_url_auth_type,
            self.source_arn,
            self.source_account,
            self.principal_org_id,
            self.event_source_token,
            self.invoked_via_function_url,
        )


class PolicyOperations:
    """The policy of a function, or of one of its versions or aliases."""

    def __init__(self, worker: Worker, changes: Changes) -> None:
        self._worker = worker
        self._changes = changes

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.ADD_PERMISSION: self._add,
            Operation.REMOVE_PERMISSION: self._remove,
            Operation.GET_POLICY: self._get,
        }

    async def _add(self, call: Call) -> Result:
        named = self._named(call)
        wanted = shapes.parse(call.body, AddedPermission)
        wanted.check()
        statement = wanted.statement()
        with self._changes.of(named.name):
            old = self._policy(named, wanted.revision_id)
            if len(document(named, (*old.statements, statement))) > MAX_POLICY_BYTES:
                raise PolicyTooLong()
            await self._worker.urls.policies.add(named.name, named.qualifier or "", statement)
        return 201, {"Statement": msgspec.json.encode(described(named, statement)).decode()}

    async def _remove(self, call: Call) -> Result:
        named = self._named(call)
        with self._changes.of(named.name):
            self._policy(named, call.parameter("RevisionId"))
            await self._worker.urls.policies.remove(named.name, named.qualifier or "", unquote(call.segments[1])[:128])
        return 204, None

    async def _get(self, call: Call) -> Result:
        named = self._named(call)
        policy = self._policy(named, None)
        if not policy.statements:
            raise ResourceNotFound("The resource you requested does not exist.")
        return 200, {"Policy": document(named, policy.statements).decode(), "RevisionId": policy.revision}

    def _named(self, call: Call) -> Named:
        """A function, and a version or an alias of it or nothing. Raises: NoSuchFunction, ValidationFailed."""
        name, qualifier = function_named(call.segment, call.parameter("Qualifier"))
        self._worker.functions.details(name, qualifier or "")
        return Named(name, None if qualifier == LATEST else qualifier)

    def _policy(self, named: Named, revision: str | None) -> Policy:
        """Raises: PreconditionFailed."""
        policy = self._worker.urls.policies.of(named.name, named.qualifier or "")
        if revision is not None and revision != policy.revision:
            raise PreconditionFailed()
        return policy


def document(named: Named, statements: tuple[Statement, ...]) -> bytes:
    """A policy as JSON."""
    written = [described(named, statement) for statement in statements]
    return msgspec.json.encode({"Version": "2012-10-17", "Id": "default", "Statement": written})


def described(named: Named, statement: Statement) -> dict[str, Any]:
    """A statement in IAM's language."""
    answer: dict[str, Any] = {
        "Sid": statement.id,
        "Effect": "Allow",
        "Principal": _principal(statement.principal),
        "Action": statement.action,
        "Resource": named.arn,
    }
    equals = {
        "lambda:FunctionUrlAuthType": statement.url_auth,
        "lambda:EventSourceToken": statement.event_source_token,
        "AWS:SourceAccount": statement.source_account,
        "aws:PrincipalOrgID": statement.organization,
    }
    conditions: dict[str, dict[str, str]] = {}
    if any(equals.values()):
        conditions["StringEquals"] = {key: value for key, value in equals.items() if value}
    if statement.via_url:
        conditions["Bool"] = {"lambda:InvokedViaFunctionUrl": "true"}
    if statement.source_arn:
        conditions["ArnLike"] = {"AWS:SourceArn": statement.source_arn}
    return {**answer, "Condition": conditions} if conditions else answer


def _principal(text: str) -> str | dict[str, str]:
    if text == "*":
        return text
    if _ACCOUNT.fullmatch(text):
        return {"AWS": f"arn:{PARTITION}:iam::{text}:root"}
    return {"AWS" if text.startswith("arn:") else "Service": text}
