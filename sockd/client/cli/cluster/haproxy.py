"""HAProxy's file for a group of workers.

    POLICY: all requests of one function go to one worker, by consistent hashing, so that its sandboxes, Zygotes and caches are
    used; the next worker of the ring gets those beyond 1.5 times the mean load, and all of them when a worker is gone or drains.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from sockd.linux.network.loopback import LOOPBACKS

BOUND_PERCENT = 150
"""The most load of one worker, in percent of the mean."""
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
    http-request set-var(txn.function) req.hdr(host),field(1,.) if {{ req.hdr(host) -m sub .lambda-url. }}
{rules}    default_backend workers

backend workers
    balance hash var(txn.function)
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
    rules = _LOOPBACK.format() if hosts.intersection(LOOPBACKS) else ""
    servers = "".join(f"    server {name} {address} tcp-ut {SILENT_S}s\n" for name, address in sorted(workers.items()))
    return _FILE.format(listen=listen, rules=rules, bound=BOUND_PERCENT, silent_s=SILENT_S, servers=servers)
