"""`sockd curl`: an HTTP request to a function's URL."""

from __future__ import annotations

import codecs
import http.client
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import click

from sockd.client.cli.calls.invoke import payload_of
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import FAILED, UNREACHABLE, USAGE, Failure, say, write_result

_PIECE_BYTES = 64 * 1024
_KEPT = "/?&=%:@!$'()*+,;~#"


@click.command()
@click.argument("name")
@click.argument("path", default="/")
@click.option("-X", "--method", metavar="METHOD", help="[default: GET, or POST with a body]")
@click.option("-d", "--data", metavar="TEXT|@FILE|-", help="The body.")
@click.option("-H", "--header", multiple=True, metavar="NAME:VALUE", help="A header; may be repeated.")
@click.option("-i", "--include", is_flag=True, help="Also print status and headers.")
@state_dir_option
def curl(
    name: str, path: str, method: str | None, data: str | None, header: tuple[str, ...], include: bool, state_dir: Path
) -> None:
    """Send a request to the URL of a function and stream the answer.

    The function needs a URL without signatures: sockd url NAME."""
    urls = Management(state_dir).get("functions", name, "urls")
    where = next((url["path_url"] for url in urls if url["auth"] == "NONE" and not url["qualifier"]), None)
    if where is None:
        why = "its URL requires signatures" if urls else "it has none"
        raise Failure(f"{name} has no URL that sockd curl can call", why=why, fix=f"sockd url {name} --auth none")
    body = payload_of(data) if data is not None else None
    parts = urlsplit(where)
    target = parts.path.rstrip("/") + "/" + quote(path.lstrip("/"), safe=_KEPT)
    headers = dict(_header(each) for each in header)
    try:
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
            connection.request(method or ("GET" if body is None else "POST"), target, body, headers)
            response = connection.getresponse()
            _print(response, include=include)
    except ValueError as error:
        raise Failure(f"the request cannot be sent: {error}", exit_code=USAGE) from None
    except http.client.IncompleteRead:
        raise Failure("the answer is incomplete", fix=f"sockd logs {name}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"no worker answers at {where}", why=str(error), exit_code=UNREACHABLE) from None
    if response.status >= 400:
        say(f"status {response.status} {response.headers.get('x-sockd-error', '')}".rstrip())
        sys.exit(FAILED)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise Failure(f"-H {text!r} is not NAME:VALUE", exit_code=USAGE)
    return name.strip(), value.strip()


def _print(response: http.client.HTTPResponse, *, include: bool) -> None:
    if include:
        lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{n}: {v}" for n, v in response.getheaders())]
        write_result("\n".join([*lines, "", ""]).encode("latin-1", "replace"))
    # Pieces may end within a character: the decoder keeps what is not whole yet.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while piece := response.read1(_PIECE_BYTES):
        write_result(piece, decoder)
    write_result(b"", decoder, final=True)
