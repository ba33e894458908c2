"""Versions, aliases and deploys of a function, as the management API and the page show them.

Owns nothing.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sockd.functions.provisioning import Status
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.versions import Described
from sockd.http.worker import Versions

LISTED = 100
"""How many of the newest published versions are shown."""


def described(versions: Versions, name: str) -> dict[str, Any]:
    """All that there is of a function. Raises: NoSuchFunction."""
    published = [versions.described(name, each) for each in versions.list(name)[-LISTED:] if each is not None]
    return {
        "name": name,
        "latest": versions.get(name).record.version,
        "versions": [version_row(each) for each in published],
        "aliases": [alias_row(versions, each) for each in versions.aliases(name)],
        "provisioned": [provision_row(each) for each in versions.provisioning.list(name)],
        "deploys": [deploy_of(each) for each in versions.deploys(name)],
    }


def deploy_of(record: FunctionRecord) -> dict[str, Any]:
    """One deploy."""
    return {"deploy": record.version, "digest": ran(record), "deployed_at": record.published_at}


def ran(record: FunctionRecord) -> str:
    """The digest of a deploy's code; of an image, which comes without code, the image's."""
    return record.image.removeprefix("sha256:") or record.digest


def version_row(described: Described) -> dict[str, Any]:
    record, publication = described
    assert publication is not None
    return {
        "version": publication.number,
        "description": publication.description,
        "published_at": publication.published_at,
        "deploy": record.version,
        "digest": ran(record),
        "code_bytes": record.code_bytes,
    }


def alias_row(versions: Versions, alias: Alias) -> dict[str, Any]:
    canary = {alias.other: alias.weight} if alias.other else {}
    guard = None
    if alias.guard is not None:
        requests, failed = versions.canaries.counts(alias.name, alias.alias)
        guard = {**asdict(alias.guard), "requests": requests, "failed": failed}
    return {
        "alias": alias.alias,
        "version": alias.version,
        "canary": canary,
        "description": alias.description,
        "revision": alias.revision,
        "guard": guard,
        "outcome": alias.outcome,
    }


def provision_row(status: Status) -> dict[str, Any]:
    return {**asdict(status.provision), "available": status.available, "state": status.state, "reason": status.reason}
