"""HAProxy's file for a group of workers.

    POLICY: all requests of one function go to one worker, its home, by consistent hashing, so that its sandboxes, Zygotes and
    caches are used. While the home has many, and when it is gone or drains, HAProxy's own ring of workers gets those that come,
    of which none has more than 1.5 times the mean. That bound alone would pass a home over for a single request, as long as the
    mean is not much more than one, and each time a sandbox would start elsewhere.

Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from sockd.linux.network.loopback import LOOPBACKS

HOME_REQUESTS = 32
"""With fewer requests, a function's home gets the next one whatever the others have."""
BOUND_PERCENT = 150
"""The most load that a worker which is not the home may have, in percent of the mean."""
PLACES, MANY_PLACES, MANY_WORKERS = 256, 4096, 16
"""Into so many parts the functions are divided, each with a home; into many, if there are many workers."""
PLACES_A_LINE = 50
"""HAProxy refuses lines of more than 64 words."""
SILENT_S = 5
"""How long a worker's machine may acknowledge nothing, before the requests that it has get an error."""
_FILE = """\
# HAProxy 2.6 or newer in front of sockd's workers; written by `sockd cluster haproxy`.
defaults
    mode http
    timeout connect 2s
    timeout check 2s
    timeout http-request 30s
    timeout http-keep-alive 60s
    timeout queue 30s
    timeout client 20m
    timeout server 20m

frontend functions
    bind {listen}
    # The function of a request, without version or alias: /run/NAME, /url/ID, AWS's API with a name or an ARN, a URL's host name.
    http-request set-var(txn.function) path,url_dec,field(3,/),regsub(':.*','')
    acl is_aws path_reg ^/20[0-9-]+/functions/
    http-request set-var(txn.function) path,url_dec,field(4,/),regsub('^.*:function:',''),regsub(':.*','') if is_aws
    acl is_url req.hdr(host) -m sub .lambda-url.
    http-request set-var(txn.function) req.hdr(host),field(1,.) if is_url
    http-request set-var(txn.place) var(txn.function),xxh32,mod({places})
    # Where workers ask each other, without this proxy.
    http-request deny deny_status 404 if {{ path,url_dec -m reg ^/+group(/|$) }} !is_url
{rules}    default_backend workers

backend workers
    # The home of each place, while it has few requests; else the next worker of the ring that has no more than its share.
{homes}    balance hash var(txn.function)
    hash-type consistent wt6 avalanche
    hash-balance-factor {bound}
    # A client's request is never sent on another client's connection, which a worker that dies may be about to cut: so each
    # client loses one request at most, and where a new connection is refused, the next worker gets the request.
    http-reuse never
    option redispatch 1
    retries 3
    option forwardfor
    # A worker whose machine is gone, or cut off, resets no connection: give up what it acknowledges no more.
    option srvtcpka
    srvtcpka-idle {silent_s}s
    srvtcpka-intvl 1s
    srvtcpka-cnt 3
    option httpchk
    http-check send meth GET uri /healthz ver HTTP/1.1 hdr Host 127.0.0.1
    http-check expect status 200
    # A worker that is stopped answers 503 for `group.drain_notice_s` and serves meanwhile.
    default-server check inter 500ms fastinter 100ms fall 2 rise 1
{servers}"""
_LOOPBACK = """\
    # Workers that listen on loopback answer to its names only.
    http-request set-header Host 127.0.0.1 if {{ path_beg /run/ /url/ }}
"""


def haproxy_file(workers: Mapping[str, str], listen: str) -> str:
    """Return the file. Args: workers: address and port of each, by name; listen: address and port of the front."""
    hosts = {address.rpartition(":")[0].strip("[]") for address in workers.values()}
    return _FILE.format(
        listen=listen,
        rules=_LOOPBACK.format() if hosts.intersection(LOOPBACKS) else "",
        places=MANY_PLACES if len(workers) > MANY_WORKERS else PLACES,
        homes="".join(f"    {line}\n" for name, places in homes(list(workers)).items() for line in _home(name, places)),
        bound=BOUND_PERCENT,
        silent_s=SILENT_S,
        servers="".join(
            f"    server {name} {address} tcp-ut {SILENT_S}s\n" for name, address in sorted(workers.items())
        ),
    )


def homes(workers: Sequence[str]) -> dict[str, list[int]]:
    """Return the places of each worker: one that comes takes some of all others, one that goes leaves its own to them."""
    places: dict[str, list[int]] = {name: [] for name in sorted(workers)}
    for place in range(MANY_PLACES if len(places) > MANY_WORKERS else PLACES):
        places[max(places, key=lambda name: hashlib.sha256(f"{place} {name}".encode()).digest())].append(place)
    return places


def _home(name: str, places: Sequence[int]) -> Iterator[str]:
    """Iterate over the lines that make a worker the home of places."""
    for begin in range(0, len(places), PLACES_A_LINE):
        yield f"acl home_{name} var(txn.place) -m int {' '.join(map(str, places[begin : begin + PLACES_A_LINE]))}"
    if places:
        yield f"use-server {name} if home_{name} {{ srv_conn({name}) lt {HOME_REQUESTS} }}"
