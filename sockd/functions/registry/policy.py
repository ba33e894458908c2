"""A resource policy: who may call a function, or one version or alias of it, as AWS's AddPermission says.

    POLICY: a policy decides about function URLs with the authorization NONE. Such a URL is open until a statement about
    lambda:InvokeFunctionUrl is added; from then on it is open while a statement allows it to everybody, and closed after the
    last of these is removed. Other statements are kept and shown, and allow nothing: callers of other services do not exist here.

Pure.
"""

from __future__ import annotations

import msgspec

from sockd.base.errors import SockdError

INVOKE_URL = "lambda:InvokeFunctionUrl"
_ALLOW_URL = (INVOKE_URL, "lambda:*", "*")


class StatementExists(SockdError):
    """The policy has a statement with this id."""

    status = 409
    error_type = "ResourceConflictException"


class NoSuchStatement(SockdError):
    """The policy has no statement with this id."""

    status = 404
    error_type = "ResourceNotFoundException"


class Statement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One permission; empty conditions are not set."""

    id: str
    action: str
    principal: str
    """`*`, a service such as s3.amazonaws.com, an account or an ARN."""
    url_auth: str = ""
    """NONE or AWS_IAM: of URLs with this authorization alone."""
    source_arn: str = ""
    source_account: str = ""
    organization: str = ""
    event_source_token: str = ""
    via_url: bool = False
    """Whether the statement concerns calls through a function URL only."""

    @property
    def is_about_urls(self) -> bool:
        """Whether it makes the policy decide about URLs."""
        return self.action == INVOKE_URL

    @property
    def opens_urls(self) -> bool:
        """Whether everybody may call a URL with the authorization NONE."""
        conditions = (self.source_arn, self.source_account, self.organization, self.event_source_token)
        is_for_all = self.principal == "*" and not any(conditions)
        return is_for_all and self.action in _ALLOW_URL and self.url_auth in ("", "NONE")


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The statements of one qualifier."""

    statements: tuple[Statement, ...] = ()
    decides_urls: bool = False
    """Whether a statement about URLs is or was among them."""
    revision: str = ""
    """Another one after each change."""

    @property
    def opens_urls(self) -> bool:
        """Whether everybody may call a URL with the authorization NONE."""
        return not self.decides_urls or any(statement.opens_urls for statement in self.statements)

    def with_statement(self, statement: Statement, revision: str) -> Policy:
        """Raises: StatementExists."""
        if any(each.id == statement.id for each in self.statements):
            raise StatementExists(
                f"The statement id ({statement.id}) provided already exists. Please provide a new statement id, or remove "
                "the existing statement."
            )
        decides = self.decides_urls or statement.is_about_urls
        return Policy((*self.statements, statement), decides, revision)

    def without_statement(self, id: str, revision: str) -> Policy:
        """Raises: NoSuchStatement."""
        statements = tuple(each for each in self.statements if each.id != id)
        if len(statements) == len(self.statements):
            raise NoSuchStatement(f"Statement {id} is not found in resource policy.")
        return Policy(statements, self.decides_urls, revision)
