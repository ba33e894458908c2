"""The decorator and what it makes of a function: something that is called here, and runs on a worker if asked to.

Owns what is known of the worker's function: whether this process has seen to its being deployed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar, overload

from sockd.base.call_signature import source_tag
from sockd.client.python import calling, deploying, mapping, retrying, source
from sockd.client.python.connections import UNIX, worker_url
from sockd.client.python.errors import DeployFailed
from sockd.client.python.printed import Printed
from sockd.client.python.values import key_of
from sockd.client.python.workers import RemoteWorker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

SPAWNED = 32
"""Most spawned calls at once; more wait for their turn."""

found: list[RemoteFunction[..., Any]] = []
"""Every decorated function of this process, for `sockd deploy FILE.py`."""


class RemoteFunction(Generic[P, R]):
    """Called plainly it is the function itself, here. Its methods may be used by several threads at once."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None,
        namespace: str,
        packages: Sequence[str],
        files: Sequence[str] | None,
        pickle: bool,
        prints: bool,
        retries: int,
        settings: dict[str, Any],
    ) -> None:
        functools.update_wrapper(self, function)
        self.local = function
        """The function itself, as when it is called plainly."""
        self.name = f"{namespace}-{name or function.__name__}".removeprefix("-")
        """The name of the worker's function."""
        self._packages = packages
        self._files = files
        self._pickle = pickle
        self._prints = prints
        self._retries = retrying.check(retries)
        self._settings = settings
        self._lock = threading.Lock()
        self._target: calling.Target | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.local(*args, **kwargs)

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on the worker and wait for the result. The first call of a process deploys what has changed.

        Raises: RemoteError, NoWorker, DeployFailed; TypeError for what cannot be sent."""
        result: R = calling.call(self._ready(), args, kwargs, self._retries)
        return result

    def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run it on the worker without waiting; the future has the result, or raises as `remote`."""
        self._ready()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(SPAWNED, thread_name_prefix=f"sockd-{self.name}")
            return self._pool.submit(self.remote, *args, **kwargs)

    def map(
        self,
        inputs: Iterable[Any],
        *,
        concurrency: int = mapping.CONCURRENCY,
        return_exceptions: bool = False,
        progress: bool | None = None,
        retries: int | None = None,
    ) -> list[R]:
        """Run it for each input, many at once; the results in the inputs' order.

        Args:
            concurrency: most calls at a time; the worker queues what is over the function's own.
            return_exceptions: an error stands in the place of its result, instead of ending everything.
            progress: whether to show a bar; None: if somebody looks at a terminal.
            retries: as of the decorator; None: what that says.
        A call whose sandbox does not start in time is made once more: many starts at once make each other slow.
        Raises: the first error, after the calls that were under way have ended; no new one is begun."""
        call = self._caller(retries, lambda each: (each,))
        return mapping.run(call, inputs, **self._how(concurrency, return_exceptions, progress))

    def starmap(
        self,
        inputs: Iterable[Iterable[Any]],
        *,
        concurrency: int = mapping.CONCURRENCY,
        return_exceptions: bool = False,
        progress: bool | None = None,
        retries: int | None = None,
    ) -> list[R]:
        """As `map`, with an input's items as the arguments."""
        call = self._caller(retries, tuple)
        return mapping.run(call, inputs, **self._how(concurrency, return_exceptions, progress))

    def as_completed(
        self,
        inputs: Iterable[T],
        *,
        concurrency: int = mapping.CONCURRENCY,
        return_exceptions: bool = False,
        progress: bool | None = None,
        retries: int | None = None,
    ) -> Iterator[tuple[T, R]]:
        """As `map`, but each input with its result as soon as that is there, in the order of their ends.

        No more inputs are taken while results wait to be read. A caller that stops reading stops the calls that have not
        begun.
        Raises: the first error, after all results that there are."""
        call = self._caller(retries, lambda each: (each,))
        ended = mapping.ended(call, inputs, **self._how(concurrency, return_exceptions, progress))
        return ((each, result) for _, each, result in ended)

    def deploy(self, *, force: bool = False, check: bool = True, worker: RemoteWorker | None = None) -> dict[str, Any]:
        """Deploy it now, changed or not; what the worker says of it.

        Args: force: although the worker's function of this name was deployed from another source; check: whether its new
            version is started once before calls go to it; worker: one elsewhere.
        Raises: NameTaken, DeployFailed, NoWorker."""
        packed, deployer = self._packed(), self._deployer()
        return deploying.deploy(self.name, packed, deployer, force=force, check=check, worker=worker)

    def _caller(self, retries: int | None, arguments: Callable[[Any], Iterable[Any]]) -> Callable[[Any], R]:
        """What makes the call for one input."""
        target, tries = self._ready(), self._retries if retries is None else retrying.check(retries)

        def call(each: Any) -> R:
            result: R = calling.started(target, tuple(arguments(each)), {}, tries)
            return result

        return call

    def _how(self, concurrency: int, return_exceptions: bool, progress: bool | None) -> mapping.How:
        label = self.name if mapping.is_watched(progress) else None
        return {"concurrency": concurrency, "return_exceptions": return_exceptions, "label": label}

    def _ready(self) -> calling.Target:
        with self._lock:
            if self._target is None:
                self._target = self._prepared()
            return self._target

    def _prepared(self) -> calling.Target:
        """The worker's function, deployed if this user can and its code is not there. Calls are bound to that code."""
        url, here, deployer = worker_url(), self.local.__module__, self._deployer()
        renamed = {source.place_of(self.local).module: here} if here == "__main__" else {}
        current = deploying.deployed(self.name)
        if current is None:
            return calling.Target(url, self.name, deployer.key, renamed, self._code_of_others(url, deployer))
        packed = self._packed()
        if not current or not deployer.has_deployed(current, packed.digest):
            deploying.deploy(self.name, packed, deployer)
        printed = Printed(self.name) if self._prints else None
        return calling.Target(url, self.name, deployer.key, renamed, [packed.digest], is_deployer=True, printed=printed)

    def _code_of_others(self, url: str, deployer: deploying.Deployer) -> list[str]:
        """What may run of a function that somebody else has deployed: the code that is here; and on this very host what was
        deployed from this very file, although other files next to it may have changed since."""
        code = [source_tag(deployer.source)] if url.startswith(UNIX) else []
        try:
            return [self._packed().digest, *code]
        except DeployFailed:
            if not code:
                raise
            return code

    def _packed(self) -> source.Packed:
        place = source.place_of(self.local)
        return source.package(place, self._packages, self._settings, files=self._files, pickles=self._pickle)

    def _deployer(self) -> deploying.Deployer:
        place = source.place_of(self.local)
        return deploying.Deployer(place.source, key_of(self.name) if self._pickle else None)


@overload
def function(target: Callable[P, R], /, *, namespace: str = "") -> RemoteFunction[P, R]: ...


@overload
def function(
    *,
    name: str | None = None,
    namespace: str = "",
    packages: Sequence[str] = (),
    files: Sequence[str] | None = None,
    pickle: bool = True,
    prints: bool = True,
    retries: int = 0,
    **settings: Any,
) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...


def function(
    target: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    namespace: str = "",
    packages: Sequence[str] = (),
    files: Sequence[str] | None = None,
    pickle: bool = True,
    prints: bool = True,
    retries: int = 0,
    **settings: Any,
) -> Any:
    """Make a function one that can run on a worker.

    Args:
        name: of the worker's function; None: its own.
        namespace: first part of the worker's name of the function, before a "-"; separates the names of projects.
        packages: as lines of a requirements.txt; none: the file next to the module, if there is one.
        files: names in the module's directory, all that is packed; None: everything there.
        pickle: whether what JSON cannot hold is pickled (`sockd.client.python.values`).
        prints: whether what it prints is shown here, on stderr, as it comes; only to a user who may deploy.
        retries: how often a call is made again that got no answer or did not run, as the worker was busy, being restarted or
            killed. All tries have one key, by which a worker runs the function once; but if it was killed, the function may
            run again.
        settings: keys of sockd.toml, memory_mb and the like. What stands here lies readable in the function's code."""

    def decorate(target: Callable[..., Any]) -> RemoteFunction[..., Any]:
        made = RemoteFunction(
            target,
            name=name,
            namespace=namespace,
            packages=packages,
            files=files,
            pickle=pickle,
            prints=prints,
            retries=retries,
            settings=settings,
        )
        found.append(made)
        return made

    return decorate if target is None else decorate(target)
