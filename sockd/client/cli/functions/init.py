"""`sockd init NAME`: create a small project. Owns the templates."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from sockd.base.own_command import runnable
from sockd.client.cli.functions import wasm_templates
from sockd.client.cli.functions.deploy import default_name
from sockd.client.console.client import public_url
from sockd.client.console.output import USAGE, Failure, echo
from sockd.client.python.connections import DEFAULT_STATE_DIR

HELLO = '''"""The function `handler` answers each event; a second parameter would get AWS's context."""


def handler(event):
    return {"hello": event.get("name", "world")}
'''
SEBS = '''"""A benchmark as SeBS has them: `result` is measured work, `measurement` its times in microseconds."""

import datetime


def handler(event):
    begin = datetime.datetime.now()
    total = sum(range(int(event.get("size", 1000))))
    end = datetime.datetime.now()
    return {"result": total, "measurement": {"compute_time": (end - begin) / datetime.timedelta(microseconds=1)}}
'''
WSGI = '''"""A web app; frameworks make such an `app`, too, with their name in requirements.txt."""


def app(environ, start_response):
    start_response("200 OK", [("content-type", "text/plain; charset=utf-8")])
    return [f"hello from {environ['PATH_INFO'] or '/'}\\n".encode()]
'''
CRON = '''"""Run by the clock: each event is one tick. It may come twice, after a crash, so the work must bear that."""


def handler(event):
    print("working on the tick of", event.get("time"))
'''
SETTINGS = """# Every key is optional; `sockd deploy` says which there are when one is wrong.
memory_mb = 128
timeout_s = 3
"""
TEMPLATES: dict[str, dict[str, str]] = {
    "hello": {"handler.py": HELLO, "sockd.toml": SETTINGS},
    "wsgi": {"app.py": WSGI, "sockd.toml": SETTINGS},
    "cron": {"handler.py": CRON, "sockd.toml": SETTINGS},
    "sebs": {"function/function.py": SEBS, "sockd.toml": SETTINGS},
    **wasm_templates.TEMPLATES,
}
"""Files by name."""
NEXT = {"wsgi": "curl {url}/run/{name}/", "cron": "sudo sockd schedule add {name} 'rate(5 minutes)'"}
INVOKE = "sockd invoke {name} -d '{{}}'"


@click.command()
@click.argument("directory", metavar="NAME", type=click.Path(path_type=Path))
@click.option(
    "--template", type=click.Choice(sorted(TEMPLATES)), default="hello", show_default=True, help="Kind of project."
)
def init(directory: Path, template: str) -> None:
    """Create a directory with a small project."""
    name = default_name(directory)
    _check(directory)
    try:
        for path, text in TEMPLATES[template].items():
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    except OSError as error:
        raise Failure(f"{directory} cannot be written", why=str(error)) from None
    url = public_url(Path(os.environ.get("SOCKD_STATE_DIR", DEFAULT_STATE_DIR)))
    makes = [f"make -C {shlex.quote(str(directory))}"] if "Makefile" in TEMPLATES[template] else []
    steps = [f"sudo sockd dev {directory}", NEXT.get(template, INVOKE).format(name=name, url=url)]
    echo("\n  ".join([f"made {directory}; next:", *makes, *map(runnable, steps)]))


def _check(directory: Path) -> None:
    """Raises: Failure, before anything is written, unless a project can be made there."""
    parent = directory.absolute().parent
    if not parent.is_dir():
        fix = f"mkdir -p {shlex.quote(str(parent))}"
        raise Failure(f"{directory} cannot be made", why=f"{parent} is not there", fix=fix, exit_code=USAGE)
    if not directory.exists():
        return
    if not directory.is_dir():
        raise Failure(f"{directory} is a file", fix="sockd init ANOTHER-NAME", exit_code=USAGE)
    if any(directory.iterdir()):
        raise Failure(f"{directory} is not empty", fix="sockd init ANOTHER-NAME", exit_code=USAGE)
