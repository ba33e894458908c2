"""`sockd images`: the worker's container images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from sockd.base.spelling import counted, size
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.image_uploads import imported
from sockd.client.console.output import echo, json_option, print_json, progress, say, suggest
from sockd.client.console.tables import print_table


@click.group()
def images() -> None:
    """List, add, inspect, measure and remove the container images that functions run in."""


@images.command()
@state_dir_option
@json_option
def ls(state_dir: Path, as_json: bool) -> None:
    """List the images, and the functions that run in them."""
    rows = Management(state_dir).get("images")
    if as_json:
        print_json(rows)
    elif not rows:
        suggest("no images yet; a deploy imports what it needs", "sockd deploy NAME --image REF")
    else:
        headings = ("image", "references", "size", "imported", "functions")
        print_table(headings, [_row(row) for row in rows], optional=("functions", "imported"))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        _short(row["digest"]),
        ", ".join(row["references"]),
        size(row["size_bytes"]),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(row["imported_at"])),
        ", ".join(row["functions"]),
    )


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


@images.command()
@click.argument("reference", metavar="REF")
@state_dir_option
@json_option
def add(reference: str, state_dir: Path, as_json: bool) -> None:
    """Import an image before a deploy needs it: REF as of `sockd deploy --image`."""
    with progress(f"importing {reference}") as show:
        row = imported(reference, Management(state_dir), show)
    if as_json:
        print_json(row)
    else:
        echo(f"{row['digest']}\n  {size(row['size_bytes'])}, {counted(row['layers'], 'layer')}")


@images.command()
@click.argument("image")
@state_dir_option
@json_option
def inspect(image: str, state_dir: Path, as_json: bool) -> None:
    """Show one image: by its digest or the beginning of it, a reference (also a short one, as python:3.12), or a function
    that runs in it."""
    row = Management(state_dir).get("images", image)
    if as_json:
        print_json(row)
        return
    config = row["config"]
    lines = {
        "digest": row["digest"],
        "references": ", ".join(row["references"]),
        "size": f"{size(row['size_bytes'])}, {counted(row['layers'], 'layer')}",
        "entrypoint": " ".join(config["entrypoint"]),
        "command": " ".join(config["cmd"]),
        "directory": config["working_dir"],
        "ports": ", ".join(config["exposed_ports"]),
        "functions": ", ".join(row["functions"]),
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        if value:
            echo(f"{name:{width}}  {value}")
    for variable in config["env"]:
        echo(f"{'env':{width}}  {variable}")
    for note in row["notes"]:
        echo(f"{'note':{width}}  {note}")


@images.command()
@state_dir_option
@json_option
def du(state_dir: Path, as_json: bool) -> None:
    """Show what the images take in the chunk store, and how much of it goes with each."""
    found = Management(state_dir).get("images", "du")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            _short(row["digest"]),
            ", ".join(row["references"]),
            *(size(row[name]) for name in ("stored_bytes", "own_bytes")),
        )
        for row in found["images"]
    ]
    print_table(("image", "references", "in the store", "of it alone"), rows)
    say(f"{counted(len(rows), 'image')}, {size(found['stored_bytes'])}: what several share is there once")


@images.command()
@click.argument("image")
@state_dir_option
@json_option
def rm(image: str, state_dir: Path, as_json: bool) -> None:
    """Remove an image that no function needs."""
    removed = Management(state_dir).call("DELETE", "images", image)
    if as_json:
        print_json(removed)
    else:
        say(f"removed {_short(removed['digest'])}")


@images.command()
@click.option(
    "--clear-alarms", is_flag=True, help="Go on deleting after an alarm: no worker reads what has expired any more."
)
@click.option(
    "--restore", is_flag=True, help="After an alarm: keep what has expired, and copy what functions need from there."
)
@click.option("--forget-worker", metavar="NAME", default="", help="Another worker of this store is gone for ever.")
@state_dir_option
@json_option
def gc(clear_alarms: bool, restore: bool, forget_worker: str, state_dir: Path, as_json: bool) -> None:
    """Remove all images that no function needs, and their chunks from the store.

    Chunks are deleted some time after the last worker has stopped using them; the worker does that by itself."""
    query = {name: "true" for name, given in (("clear_alarms", clear_alarms), ("restore", restore)) if given}
    if forget_worker:
        query["forget_worker"] = forget_worker
    found = Management(state_dir).call("POST", "images", "gc", query=query)
    if as_json:
        print_json(found)
        return
    removed, store = found["removed"], found["store"]
    if removed:
        say(f"removed {counted(len(removed), 'image')}, {size(sum(row['size_bytes'] for row in removed))}")
    else:
        say("every image is needed by a function")
    for root in store["roots"]:
        echo(f"  {root['root']}  {root['state']:8}  {counted(root['images'], 'image')}")
    for line in (*store["problems"], *store["waits"]):
        echo(f"  {line}")
    if any(root["alarms"] for root in store["roots"]):
        suggest("a worker has read what had expired, so nothing is deleted; to keep it:", "sockd images gc --restore")
        suggest("to delete it, when no worker reads it any more:", "sockd images gc --clear-alarms")
