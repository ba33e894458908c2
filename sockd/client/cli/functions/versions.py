"""`sockd publish`, `versions`, `alias`, `provision` and `rollback`: versions of a function."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import size
from sockd.client.cli.functions.release import guard_of, guard_options, guard_words
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import USAGE, Failure, age, echo, json_option, print_json, say, suggest
from sockd.client.console.tables import print_table


@click.command()
@click.argument("name")
@click.option("--description", help="Description of this version.")
@state_dir_option
@json_option
def publish(name: str, description: str | None, state_dir: Path, as_json: bool) -> None:
    """Publish the last deploy as a numbered version, which never changes."""
    version = _send(state_dir, "POST", "functions", name, "versions", description=description)
    if as_json:
        print_json(version)
    else:
        say(f"{name}: version {version['version']} is deploy {version['deploy']} ({version['digest'][:12]})")
        suggest("run it", f"sockd invoke {name}:{version['version']}")


@click.command()
@click.argument("name")
@click.option("--rm", "number", type=click.IntRange(1), metavar="VERSION", help="Delete a published version.")
@state_dir_option
@json_option
def versions(name: str, number: int | None, state_dir: Path, as_json: bool) -> None:
    """List the versions of a function, its aliases and its last deploys."""
    management = Management(state_dir)
    if number is not None:
        management.call("DELETE", "functions", name, "versions", str(number))
        say(f"{name}: version {number} is deleted")
    found = management.get("functions", name, "versions")
    if as_json:
        print_json(found)
        return
    now_s = time.time()
    if found["versions"]:
        print_table(
            ("version", "aliases", "kept ready", "deploy", "code", "published", "description"),
            [_row(each, found, now_s) for each in found["versions"]],
            optional=("code", "deploy", "kept ready", "published"),
        )
    else:
        suggest("nothing is published yet", f"sockd publish {name}")
    for each in found["aliases"]:
        if words := _canary_words(each):
            echo(f"alias {each['alias']}: {words}")
    print_table(
        ("deploy", "code", "deployed", ""),
        [
            (
                str(each["deploy"]),
                each["digest"][:12],
                age(now_s - each["deployed_at"]),
                "$LATEST" if each["deploy"] == found["latest"] else "",
            )
            for each in found["deploys"]
        ],
    )


def _canary_words(alias: dict[str, Any]) -> str:
    """What becomes of the alias's guarded version, or became of the last one; empty: it had none."""
    guard = alias["guard"]
    if guard is None:
        return str(alias["outcome"])
    (other,) = alias["canary"]
    failed = f"{guard['failed']} of the last {guard['requests']} requests to version {other} failed"
    return f"{failed}, where {guard['most_errors'] * 100:.4g} % of them may"


def _row(version: dict[str, Any], found: dict[str, Any], now_s: float) -> tuple[str, ...]:
    number = str(version["version"])
    aliases = []
    for alias in found["aliases"]:
        share = sum(alias["canary"].values())
        if alias["version"] == number:
            aliases.append(f"{alias['alias']} {1 - share:.0%}" if share else alias["alias"])
        elif number in alias["canary"]:
            aliases.append(f"{alias['alias']} {share:.0%}")
    words = {number, *(alias["alias"] for alias in found["aliases"] if alias["version"] == number)}
    kept = [each for each in found["provisioned"] if each["qualifier"] in words]
    return (
        number,
        ", ".join(aliases),
        ", ".join(f"{each['available']}/{each['wanted']}" for each in kept),
        str(version["deploy"]),
        size(version["code_bytes"]),
        age(now_s - version["published_at"]),
        version["description"],
    )


@click.command()
@click.argument("name")
@click.argument("alias")
@click.argument("version", required=False)
@click.option("--canary", metavar="VERSION=10%", help="Second version and its share of the requests.")
@guard_options
@click.option("--rm", "remove", is_flag=True, help="Delete the alias.")
@state_dir_option
@json_option
def alias(
    name: str,
    alias: str,
    version: str | None,
    canary: str | None,
    rollback_on_errors: str | None,
    promote_after: str | None,
    least_requests: int | None,
    remove: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Point an alias to a published version (or to $LATEST, in quotes)."""
    if remove or version is None:
        if not remove:
            raise Failure("the version is missing", fix=f"sockd alias {name} {alias} VERSION", exit_code=USAGE)
        answer = _send(state_dir, "DELETE", "functions", name, "aliases", alias)
        words = f"{name}: alias {alias} is deleted"
    else:
        shares = _canary(canary) if canary else {}
        guard = guard_of(rollback_on_errors, promote_after, least_requests)
        lead = {"version": version, "canary": shares, "guard": guard}
        answer = _send(state_dir, "PUT", "functions", name, "aliases", alias, **lead)
        rest = "".join(f", {share * 100:.4g} % of the requests to {other}" for other, share in shares.items())
        words = f"{name}:{alias} leads to {version}{rest}{guard_words(guard, next(iter(shares), ''))}"
    if as_json:
        print_json(answer)
    else:
        say(words)


@click.command()
@click.argument("name")
@click.argument("qualifier", metavar="VERSION|ALIAS")
@click.argument("count", type=click.IntRange(0))
@state_dir_option
@json_option
def provision(name: str, qualifier: str, count: int, state_dir: Path, as_json: bool) -> None:
    """Keep sandboxes of a version initialized, so that its requests are warm; 0 keeps none."""
    answer = _send(state_dir, "PUT", "functions", name, "provisioned", qualifier, wanted=count)
    if as_json:
        print_json(answer)
    else:
        suggest(f"{name}:{qualifier}: {count} are kept initialized; see", f"sockd versions {name}")


@click.command()
@click.argument("name")
@click.option("--to", "number", type=click.IntRange(1), metavar="VERSION", help="A published version to deploy.")
@state_dir_option
@json_option
def rollback(name: str, number: int | None, state_dir: Path, as_json: bool) -> None:
    """Deploy the code before the last deploy again.

    A second rollback reverts the first. Secrets, tags and the concurrency do not change."""
    answer = _send(state_dir, "POST", "functions", name, "rollback", version=number)
    if as_json:
        print_json(answer)
    else:
        say(f"{name}: deploy {answer['deploy']} is {answer['digest'][:12]} again")


def _canary(text: str) -> dict[str, float]:
    """ "4=10%" as {"4": 0.1}. Raises: Failure."""
    version, _, share = text.partition("=")
    try:
        value = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not version or not 0 <= value < 1:
        raise Failure(f"--canary {text!r} is not VERSION=10%, of less than 100%", exit_code=USAGE)
    return {version: value}


def _send(state_dir: Path, method: str, *path: str, **body: object) -> dict[str, Any]:
    import json

    given = {key: value for key, value in body.items() if value is not None}
    answer: dict[str, Any] = Management(state_dir).call(method, *path, body=json.dumps(given).encode())
    return answer
