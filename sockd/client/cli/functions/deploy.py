"""`sockd deploy`: deploy a directory or zip archive as a function."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sockd.base.errors import BuildNeeded
from sockd.base.own_command import runnable
from sockd.client.cli.functions import wasm_file
from sockd.client.cli.functions.code_directory import CodeDirectory, left_out_json, show_left_out, show_plan
from sockd.client.cli.functions.options import egress_option, egress_setting, no_check_option
from sockd.client.cli.functions.release import Release, guard_options
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.inputs import ARCHIVE_BYTES, MODULE_BYTES, read_file
from sockd.client.console.output import USAGE, Failure, echo, json_option, print_json, progress, say

EMPTY = b"PK\5\6" + bytes(18)
"""A zip without files: of a function whose code is all in its image."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _words(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    try:
        return shlex.split(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("source", default=".", type=click.Path(path_type=Path))
@click.option("--name", help="The function's name.  [default: the name of SOURCE]")
@click.option("--image", metavar="REF", help="The container image that the function runs in.")
@click.option("--entrypoint", metavar="WORDS", callback=_words, help="Instead of the image's ENTRYPOINT.")
@click.option("--command", metavar="WORDS", callback=_words, help="Instead of the image's CMD.")
@click.option("--working-directory", metavar="PATH", help="Instead of the image's WORKDIR.")
@click.option("--app-port", type=int, metavar="PORT", help="The port of a web server in the image.")
@click.option("--readiness-path", metavar="PATH", help="What is requested of it until it answers.  [default: /]")
@click.option(
    "--writable-root", is_flag=True, default=None, help="Let each sandbox change its image's files, for itself."
)
@click.option("--handler", metavar="MODULE:ATTR", help="module:attr of the handler.  [default: found by name]")
@click.option("--memory", "memory_mb", type=int, metavar="MB", help="Memory limit of a sandbox.")
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Time limit of a request.")
@click.option("--concurrency", type=int, help="Maximum number of concurrent requests.")
@click.option("--python", metavar="VERSION", help="Python that runs it, as 3.13.  [default: the worker's own]")
@click.option("--network", type=click.Choice(["host", "none", "private"]), help="The function's network.")
@egress_option
@click.option(
    "--zygote", type=click.Choice(["packages", "stdlib", "none"]), help="Zygotes that may serve the function."
)
@click.option(
    "--snapshot/--no-snapshot", default=None, help="Fork starts from a process that has run the function's init once."
)
@click.option("--storage", type=click.Choice(["own", "sockd"]), help="The library that `import storage` imports.")
@click.option(
    "--initscript",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A WebAssembly module that fetches inputs during the start.",
)
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="An environment variable; may be repeated.")
@click.option("--build", is_flag=True, help="Build packages that have no wheel from source, in a sandbox.")
@no_check_option
@click.option("--alias", metavar="ALIAS", help="Publish the deploy, and point this alias to it.")
@click.option(
    "--canary", metavar="10%", help="Give it this share of the alias's requests, and the version before the rest."
)
@guard_options
@click.option("--dry-run", is_flag=True, help="List what is packed and what is left out; deploy nothing.")
@click.option("--force", is_flag=True, help="Replace a function of another source, or one whose secrets do not open.")
@state_dir_option
@json_option
def deploy(
    source: Path,
    name: str | None,
    image: str | None,
    env: tuple[str, ...],
    egress: tuple[str, ...],
    initscript: Path | None,
    build: bool,
    no_check: bool,
    alias: str | None,
    canary: str | None,
    rollback_on_errors: str | None,
    promote_after: str | None,
    least_requests: int | None,
    dry_run: bool,
    force: bool,
    state_dir: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Deploy a directory, zip archive or WebAssembly file as a function.

    With --image, SOURCE is the function's name, or a directory with its sockd.toml. REF is a reference for a registry, as docker
    knows them, the digest of an image that the worker has, or a local image, which is uploaded: oci:DIR, an archive of
    `docker save` or an OCI layout, or - for one on the standard input.

    SOURCE contains the code and optionally sockd.toml and dependencies (requirements.txt, pylock.toml, uv.lock, pyproject.toml,
    or PEP 723 in the entry file). Options override sockd.toml. A handler that is missing or does not compile is refused.
    .sockdignore and .gitignore name what is not packed; secrets, such as .env, are left out unless .sockdignore includes them.
    The new version is started once, without a request; one that does not start is refused, and the version before serves on.
    A running function switches to the new version without losing a request. With --alias prod --canary 10%
    --rollback-on-errors 5%, callers of NAME:prod switch by and by: a tenth of their requests goes to the new version, until it
    is withdrawn for its errors, or has held and is promoted.

    A SOURCE that ends in .wasm is the whole code of a function if it is a WASI command or a component. Else it is an initscript:
    the function --name gets it, its code and settings stay. One that ends in .py is imported, here, and each function in it that
    @sockd.function decorates is deployed, with the settings that it says. A function that was deployed from another such file,
    or as a directory where this is a file, stays as it is without --force. So does one whose variables and secrets do not open,
    because the worker lacks their key; --force deploys it without them."""
    is_path = image is None or len(source.parts) > 1  # else it may be the name of a function
    if is_path and not source.exists():
        raise click.BadParameter(f"Path '{source}' does not exist.", param_hint="'[SOURCE]'")
    if dry_run:
        show_plan(source, in_image=image is not None, as_json=as_json)
        return
    release = Release.of_options(alias, canary, rollback_on_errors, promote_after, least_requests)
    module = _wasm(source, Management(state_dir))
    is_module = wasm_file.is_function(module)
    if release is not None and source.is_file() and source.suffix in (".py", ".wasm") and not is_module:
        raise Failure(f"--alias is for directories and archives, and not for {source.name}", exit_code=USAGE)
    if source.suffix == ".py" and source.is_file():
        from sockd.client.cli.functions.deploy_app import deploy_app

        others = {"name": name, "env": env, "egress": egress, "initscript": initscript, "build": build}
        given = [key for key, value in {**options, **others}.items() if value]
        deploy_app(source, given, state_dir, as_json, force=force, check=not no_check)
        return
    if source.suffix == ".wasm" and not is_module:
        _deploy_initscript(source, name, Management(state_dir), as_json)
        return
    name = named(name, source) if name else default_name(source)
    settings = {key: value for key, value in options.items() if value is not None} | egress_setting(egress)
    overrides: dict[str, Any] = {"check_handler": True, **settings}
    if is_module:
        overrides |= {"runtime": "wasm", "handler": source.name}
    if build:
        overrides["build"] = True
    if env:
        overrides["env"] = dict(_pair(item) for item in env)
    if force:
        overrides["force"] = True
    if no_check:
        overrides["check"] = False
    management = Management(state_dir)
    if release is not None:
        release.check(management, name)
    headers = {"x-sockd-overrides": json.dumps(overrides)}  # ASCII: a header carries no other letters
    wasm = _module(initscript, management) if initscript is not None else b""
    if wasm:
        headers["x-sockd-initscript-bytes"] = str(len(wasm))
    has_code = image is None or source.is_dir()
    notes: list[str] = []
    code = CodeDirectory(source, management, in_image=image is not None) if source.is_dir() else None
    with progress(f"packing {source}" if has_code else f"deploying {name}") as show:
        if image is not None:
            overrides["image"] = worker_reference(image, management, show)
            headers["x-sockd-overrides"] = json.dumps(overrides)
        archive = wasm_file.packed(source, module) if is_module else b""
        body = wasm + (archive or (_code(source, code, management) if has_code else EMPTY))
        if has_code:
            show(f"sending {len(body)} bytes")
        try:
            lines = management.lines("PUT", "functions", name, body=body, headers=headers)
            function = management.result(lines, show, notes.append)
        except Failure as failure:
            if failure.kind == BuildNeeded.error_type:
                failure.fix = runnable(f"sockd {shlex.join(sys.argv[1:])} --build")
            for note in notes:  # one may say why
                say(f"note: {note}")
            raise
        released = release.run(management, name) if release is not None else ""
    left_out = code.left_out if code is not None else ()
    # Where the port of a worker elsewhere is published is not known here.
    url = None if management.is_elsewhere else f"{management.get('status')['url']}/run/{name}"
    if as_json:
        print_json({**function, "url": url, "left_out": left_out_json(left_out), "notes": notes})
        return
    packages = function["packages"]
    runs = (
        f"image {function['image']}"
        if function.get("image")
        else f"handler {function['handler']}, {len(packages)} package{'' if len(packages) == 1 else 's'}"
    )
    echo(
        f"{name}: version {function['version_number']} ({function['version'][:12]}), {runs}{_initscript_words(function)}"
    )
    is_app = bool(function.get("is_app"))
    if url is not None:
        echo(f"  {url}\n  curl {url}/" if is_app else f"  {url}\n  curl -d '{{}}' {url}")
    if not is_app:  # a web app answers HTTP requests, and refuses other events
        echo(f"  {runnable(f'sockd invoke {name}')} -d '{{}}'")
    if released:
        say(released)
    for note in notes:
        say(f"note: {note}")
    show_left_out(source, left_out)


def _code(source: Path, code: CodeDirectory | None, management: Management) -> bytes:
    """Return the code as a zip. Args: code: None: the source is a file that is sent as it is. Raises: Failure."""
    if code is not None:
        return code.packed().archive
    return read_file(source, ARCHIVE_BYTES, lambda: int(management.get("status")["limits"]["archive_bytes"]))


def worker_reference(image: str, management: Management, show: Callable[[str], None]) -> str:
    """How the worker names an image: a reference as it is, and the digest of a local image, which is uploaded."""
    from sockd.client.console.image_uploads import imported, is_local, refuse_layout

    refuse_layout(image)
    return str(imported(image, management, show)["digest"]) if is_local(image) else image


def _deploy_initscript(source: Path, name: str | None, management: Management, as_json: bool) -> None:
    if name is None:
        fix = f"sockd deploy {source} --name FUNCTION"
        raise Failure("an initscript needs a function", why="which one?", fix=fix, exit_code=USAGE)
    with progress(f"sending {source}") as show:
        function = management.result(
            management.lines("PUT", "functions", name, "initscript", body=_module(source, management)), show
        )
    if as_json:
        print_json(function)
    else:
        echo(f"{name}: version {function['version_number']}{_initscript_words(function)}")


def _initscript_words(function: dict[str, Any]) -> str:
    return f", initscript {function['initscript'][:12]}" if function.get("initscript") else ""


def _wasm(source: Path, management: Management) -> bytes:
    """Return a WebAssembly file; empty: the source is none."""
    is_one = source.suffix == ".wasm" and source.is_file()
    return _code(source, None, management) if is_one else b""


def _module(path: Path, management: Management) -> bytes:
    return read_file(path, MODULE_BYTES, lambda: int(management.get("status")["limits"]["initscript_bytes"]))


def default_name(source: Path) -> str:
    """The default name of a function. Raises: Failure."""
    return named(source.resolve().stem if source.is_file() else source.resolve().name, source)


def named(name: str, source: Path) -> str:
    """The name, unchanged. Raises: Failure if it is not valid."""
    if not NAME.fullmatch(name):
        valid = re.sub("[^A-Za-z0-9_-]+", "-", name)[:64].strip("-") or "my-function"
        raise Failure(
            f"{name!r} cannot be a function's name",
            why="a name is 1 to 64 of A-Z a-z 0-9 _ -",
            fix=f"sockd deploy {shlex.quote(str(source))} --name {valid}",
            exit_code=USAGE,
        )
    return name


def _pair(item: str) -> tuple[str, str]:
    key, equals, value = item.partition("=")
    if not equals or not key:
        raise Failure(f"--env {item!r} is not KEY=VALUE", exit_code=USAGE)
    return key, value
