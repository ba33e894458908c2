"""A Zygote: an interpreter that has imported packages and forks, blocking and single-threaded, until its daemon is gone.

Forking and confining is C (native/fork.c, native/confine.c); what is left here is importing. Knows no function: code,
environment and secrets reach the child on the child's own channel, after the fork.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time

from sockd_zygote import _native, protocol, rehearsal
from sockd_zygote.forks import fork_hooks, hygiene
from sockd_zygote.handlers import handler_server, import_hooks

CHANNEL_FD = 3
"""A process's one connection to the daemon: the channel of a sandbox, the control socket of a Zygote (native.h)."""

SERVING = {
    "messages.log_layout": {"logging"},
    "handlers.app_kinds": {"inspect"},
    "handlers.wsgi": {"urllib.parse"},
    "handlers.asgi": {"urllib.parse", "asyncio"},
}
"""What serves some kinds of functions, with the modules of the standard library that it imports."""
MOST_WORDS = 50
"""For how many failing modules the reason is reported: where more do, they fail for the same reason."""

UNSEEN = "which sees the Zygote's variables and files instead of the function's"
"""Why no Zygote may do an import that starts a process."""

MESSAGE, SANDBOX, SPARE, ZYGOTE = range(4)
"""What `_native.serve` returns: there is a message to answer; or, in a new child, what that is to be."""


def serve() -> int:
    """Be a Zygote until the daemon is gone (MESSAGE). In each forked sandbox it returns SANDBOX or SPARE, so that this runs
    at the top of the stack, not five frames deep."""
    zygote = ZYGOTE  # looked up before the fork
    while True:
        role = _native.serve(CHANNEL_FD)
        if role == zygote:
            continue
        if role:
            return role
        data = _native.message()
        if not data:
            return role
        answer(protocol.decode_control(data))


def answer(message: dict) -> None:
    """Do what a control message asks for. A process that this has forked and that comes back ends: there is one Zygote at the
    socket."""
    pid = os.getpid()
    try:
        done = OPERATIONS[message["op"]](message)
    except Exception as error:
        done = {"op": "refused", "error": f"{type(error).__name__}: {error}"[:500]}
    if os.getpid() != pid:
        os._exit(0)
    os.write(CHANNEL_FD, protocol.encode_control({**done, "id": message["id"]}))


def say_hello(message: dict) -> dict:
    """`hello`: it serves."""
    return {"op": "hello"}


def settle_in_network(message: dict) -> dict:
    """`settle`: leave the network of the Zygote that forked this one, which has imported nothing yet, for an empty one."""
    (network,) = _native.message_fds()
    _native.settle_in_network(network)
    return {"op": "settled"}


def import_modules(message: dict) -> dict:
    """`import`: put the packages on sys.path, import the modules, and settle for forking. The answer's memory file says what was
    done, and what the imports saw."""
    from sockd_zygote.forks.surroundings import Surroundings

    file, tree = _native.message_fds()
    try:
        with Surroundings(tree):
            count = report_imports(file, message["bytes"])
            settle()
    finally:
        os.close(file)
        import_hooks.hide()
    return {"op": "imported", "bytes": count}


def become_template(message: dict) -> dict:
    """`template`: run the init of a version of a function, and serve as its template from now on."""
    standard = set(sys.modules)
    from sockd_zygote import template  # not in other Zygotes, whose forks would copy more pages for it

    forget_modules(sys.modules.keys() - standard)
    import_hooks.hide()
    file, tree, output, *network = _native.message_fds()
    try:
        count = template.become(file, message["bytes"], tree, output, network)
    finally:
        os.close(file)
        import_hooks.hide(import_hooks.OF_ZYGOTES)
    return {"op": "templated", "bytes": count}


def keep_ahead(message: dict) -> dict:
    """`ahead`: which pages spares of a template are to copy."""
    handler_server.ahead[:] = [(first, count) for first, count in message["pages"]]
    return {"op": "ahead"}


def report_imports(file: int, count: int) -> int:
    """Do what a memory file asks for and write there what was done; its length. Nothing of it is left for the forks."""
    from sockd_zygote.forks.surroundings import OpenFiles

    _native.separate_growth()
    request = json.loads(os.pread(file, count, 0))
    with OpenFiles(request["open_files"]):
        done = imported(request, file)
    report = json.dumps(done, ensure_ascii=False).encode(errors="replace")
    if len(report) > protocol.IMPORT_REPORT_MAX_BYTES:
        raise ValueError(f"the report of its imports has {len(report)} bytes, limit {protocol.IMPORT_REPORT_MAX_BYTES}")
    return os.pwrite(file, report, 0)


def imported(request: dict, file: int) -> dict:
    """The report on an import. Args: file: notes which module is being imported, in case that the import ends this process.

    Which modules is what functions said to have imported, and a function may say anything: what neither the packages nor the
    standard library bring is not imported."""
    standard = set(sys.modules)
    from sockd_zygote.forks import children, clocks, copied_variables, kept, randomness
    from sockd_zygote.forks.module_kinds import RUNTIME, Kinds
    from sockd_zygote.forks.observer import Observer  # not in the root Zygote, whose forks would copy more pages for it
    from sockd_zygote.handlers import package_path

    forget_modules(sys.modules.keys() - standard)
    import_hooks.hide()
    kept.restore_tmp()
    offered = {
        entry.partition(".")[0] for path in request["paths"] if os.path.isdir(path) for entry in os.listdir(path)
    } | sys.stdlib_module_names
    _native.set_title(title(request["paths"]), "sockd-zygote")
    os.environ.update(request["env"])
    if request.get("sys_path"):
        os.chdir(request["directory"])
    started = time.monotonic()
    failed: dict[str, str] = {}
    threaded = ""
    kinds = Kinds()
    gc.enable()  # as in a function's own start
    left = kept.Kept()
    with children.Ends() as ends, fork_hooks.Watch(), randomness.Watch() as seeds, Observer(seeds) as observer:
        if request.get("sys_path"):
            package_path.replace(request["sys_path"], request["pth"], request["sitecustomize"])
        else:
            package_path.share(request["paths"], request["pth"])
        known = set(sys.modules)  # a function's .pth files are run before its top level, too
        loaded: list[tuple[str, list[str]]] = []
        for begun, name in enumerate(request["modules"], 1):
            os.pwrite(file, protocol.IMPORT_PROGRESS.pack(begun), protocol.IMPORT_MAX_BYTES)
            try:
                if name.partition(".")[0] not in offered and name not in sys.modules and not request["ours"]:
                    raise ModuleNotFoundError(f"{name} is not in these packages")
                __import__(name)
            except BaseException as error:  # user code: SystemExit and KeyboardInterrupt are failures like any other
                failed[name] = f"{type(error).__name__}: {error}"[:500] if len(failed) < MOST_WORDS else ""
            ends.end_returned_child()
            if not threaded and hygiene.thread_count() > 1:
                threaded = name
            left.note(name)
            if new := sorted(sys.modules.keys() - known):
                known.update(new)
                loaded.append((name, [each for each in new if kinds.key_of(each, sys.modules[each]) != RUNTIME]))
    seconds = time.monotonic() - started
    complaints = [
        *(f"an import starts {name}, {UNSEEN}" for name in observer.processes),
        *ends.complaints,
        *left.find(),
    ]
    gc.disable()
    complaints += package_path.keep()
    if not _native.settle_atfork():
        complaints.append("imports register more handlers with pthread_atfork(3) than can be run")
    tmp = [kept.restore_tmp] if kept.in_tmp else []
    copies = copied_variables.with_code()
    for copy in copies:
        copy()  # what was kept while it was observed has names of the observer's own class
    hygiene.with_code[:] = [*package_path.with_code(), *tmp, *clocks.with_code(), *copies]
    hygiene.states[:] = randomness.keep_by_hand()
    if not observer.complete:
        raise RuntimeError("a package has replaced sys.meta_path or os.environ: what it imports cannot be observed")
    seen = observer.report()
    # An error that a package has kept holds this frame by its traceback, and all forks what is still in it.
    del observer, seeds, ends, left
    return {
        "seconds": seconds,
        "threads": hygiene.thread_count(),
        "threaded": threaded,
        "failed": failed,
        "seen": seen,
        "left": [complaint[:500] for complaint in complaints[:MOST_WORDS]],
        "loaded": loaded,
    }


def forget_modules(names: set[str]) -> None:
    """Take modules of the standard library that our own code has imported out of `sys.modules`: a function finds there what it
    has imported itself, and no more."""
    for name in names:
        if not name.startswith(import_hooks.OURS):
            import_hooks.take_out(name)


def settle() -> None:
    """Leave as little as possible for each fork to copy, or to do."""
    import_what_serves()
    prepare_clients()
    fork_hooks.rehearse(rehearsal.REPETITIONS)
    hygiene.settle()
    for _ in range(rehearsal.REPETITIONS):
        hygiene.after_fork()
    _native.fill_gaps()
    _native.join_pages()


def prepare_clients() -> None:
    """Do what each fork would do to make its first client of AWS, or its first TLS context: OpenSSL sets itself up for 2.6 ms."""
    standard = set(sys.modules)
    for name in ("botocore_data", "botocore_events", "botocore_clients", "botocore_tls"):
        if (module := sys.modules.get(f"sockd_zygote.handlers.{name}")) is not None:
            module.prepare()
    forget_modules(sys.modules.keys() - standard)
    if (tls := sys.modules.get("_ssl")) is not None:
        tls._SSLContext(tls.PROTOCOL_TLS_CLIENT)


def import_what_serves() -> None:
    """Here, or in each child that needs it, for milliseconds; not in the root Zygote, whose forks would copy more pages."""
    for module, needed in SERVING.items():
        if sys.modules.keys() >= needed:
            __import__(f"sockd_zygote.{module}")


def title(paths: list[str]) -> str:
    """What ps shows of a Zygote: the names of its packages. A path is /packages/name-version-digest."""
    names = sorted({path.split("/")[2].rsplit("-", 2)[0] for path in paths if path.startswith("/packages/")})
    return f"sockd: Zygote of {', '.join(names) or 'the standard library'}"


OPERATIONS = {
    "import": import_modules,
    "template": become_template,
    "ahead": keep_ahead,
    "settle": settle_in_network,
    "hello": say_hello,
}
