"""What the worker gives its APIs: plain values.

Owns nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NotRequired, TypedDict

from sockd.base.errors import SockdError
from sockd.base.telemetry import Invocation
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.deploy_check import FailedDeploy
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.publications import Publication
from sockd.functions.serving.restoring import Unready
from sockd.functions.versions import Described


class TreeNode(TypedDict):
    """One Zygote. A reader treats every key but `packages` as optional."""

    packages: list[str]
    """What it has imported beyond its parent's, as `name==version`; empty for a root Zygote."""
    network: NotRequired[str]
    """The network of the functions that the Zygote serves. Each kind of network has a root of its own."""
    interpreter: NotRequired[str]
    """The interpreter of the functions that the Zygote serves, such as `python:3.13`; empty for the worker's own."""
    modules: NotRequired[int]
    unique_memory_bytes: NotRequired[int]
    shared_memory_bytes: NotRequired[int]
    """With its parent and others; both as they were when it began to serve."""
    rate: NotRequired[float]
    """Forks per second, recently."""
    spares: NotRequired[int]
    starts: NotRequired[int]
    """Sandboxes forked from it so far."""
    saved_s: NotRequired[float]
    """Import time that those starts were spared."""
    passed_over: NotRequired[list[str]]
    """Why it did not serve functions that have all of its packages, a few reasons."""
    children: NotRequired[list[TreeNode]]


class TemplateRow(TypedDict):
    """One version that is to have a snapshot."""

    function: str
    version: str
    """$LATEST, or its published number."""
    state: str
    """waiting, making, serving, refused or evicted."""
    reason: str
    """Why there is none now."""
    memory_bytes: int
    """What it holds of the memory budget."""
    init_s: float
    """What it saves each start."""
    starts: int
    spares: int
    """Children that wait for a request."""
    losses: int
    """How often it has ended by itself."""


class Tree(TypedDict):
    """The Zygote tree, and the packages that no Zygote may import."""

    root: TreeNode | None
    templates: NotRequired[list[TemplateRow]]
    """The versions that are to have a snapshot."""
    refused: list[dict[str, Any]]
    """`{"package": "name==version", "reason": ..., "zygote": packages of the Zygote that failed, "tries", "retry_in_s"}`"""


class Details(NamedTuple):
    """One version of a function, with its environment: not for everybody's eyes."""

    record: FunctionRecord
    config: FunctionConfig
    publication: Publication | None = None
    """None: it is $LATEST."""
    failed: FailedDeploy | None = None
    """The last deploy of $LATEST, if its new version did not start."""
    unready: Unready | None = None
    """What $LATEST lacks, if it cannot run."""
    snapshot: str = ""
    """The state of its snapshot (`FunctionInfo.snapshot`)."""

    @classmethod
    def of(cls, described: Described) -> Details:
        """Raises: SecretsLocked."""
        return cls(described.record, described.record.settings, described.publication)

    @property
    def version(self) -> str:
        """Its published number, or $LATEST."""
        return str(self.publication.number) if self.publication else LATEST


class InvocationResult(NamedTuple):
    """One invocation and what it printed."""

    invocation: Invocation
    error: SockdError | None
    """The error that the client gets instead of an answer."""
    log: bytes
    memory_mb: int
    """What its sandbox may use."""
    peak_bytes: int
    """The most that its sandbox has used; 0: that is not known."""
    json_log_level: str = ""
    """The level of the platform's events in a log of JSON; empty if the log is text."""
    failure: SockdError | None = None
    """How it failed, also behind a complete answer."""
