"""One request's way through a function: however it ends, its place and its sandbox are given back, and its outcome is passed on
once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sockd.base.errors import (
    ClientGone,
    ImageUnavailable,
    NoCapacity,
    NotTaken,
    SandboxDied,
    SandboxFailed,
    SockdError,
    StoreUnavailable,
    TooManyRequests,
)
from sockd.base.invoke_request import InvokeRequest
from sockd.functions.serving.admission import Admission
from sockd.functions.serving.leased import Leased, Outcome
from sockd.functions.serving.serving import Serving
from sockd.functions.serving.start_gate import StartGate, StartLimits, StartPlace
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.lifecycle import State
from sockd.linux.latency.latency import Latency
from sockd.starts.sources import Started, Starting
from tests.functions.fake_sandbox import FakeSandbox

pytestmark = pytest.mark.anyio


class FakeBeside:
    """A run beside a cold start."""

    def __init__(self) -> None:
        self.given_up = 0

    def give_up(self) -> None:
        self.given_up += 1


class CountedLatency(Latency):
    """A latency that counts its calls."""

    starts = 0

    def start_begun(self) -> None:
        self.starts += 1


class FakeImage:
    """An image whose reads have failed, or not."""

    def __init__(self, failure: SockdError | None) -> None:
        self._failure = failure
        self.uses = 0

    def used(self) -> None:
        self.uses += 1

    def failure_since(self, begun_ns: int) -> SockdError | None:
        return self._failure


class FakeFunction:
    """One place, a queue of one, and a sandbox, which is `warm` or has to be started."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.admission = Admission(1, 1)
        self.starts = StartGate(self.loop, StartLimits(), 1, 1, lambda: self.admission.running, lambda: True)
        self.running = 0
        self.sandbox = FakeSandbox()
        self.beside = FakeBeside()
        self.warm = True
        self.asked_exclusive: list[object] = []
        self.spare: Leased | Exception | None = None
        self.room = asyncio.Event()
        self.caches = SimpleNamespace(latency=CountedLatency())
        self.failure: SockdError = NoCapacity("no memory left")
        program, record = SimpleNamespace(is_app=False), SimpleNamespace(version=7)
        self.version = SimpleNamespace(
            program=program,
            record=record,
            number="$LATEST",
            initscript=None,
            call=lambda request, is_app: None,
            image=None,
        )

    def find_idle(self, request: InvokeRequest) -> Leased | None:
        return Leased(self.sandbox, "warm") if self.warm else None  # type: ignore[arg-type]

    def find_new(self, request: InvokeRequest) -> Leased | Starting:
        if isinstance(self.spare, Exception):
            raise self.spare
        return self.spare or self.forked

    async def forked(self) -> Started:
        raise AssertionError("`start` is this function's")

    def init_begins(self, sandbox: FakeSandbox, place: StartPlace) -> None:
        """End the init at once, successfully."""
        place.end(is_ready=True)

    def begin_script(self, script: object, request: InvokeRequest, program: object = None) -> FakeBeside:
        return self.beside

    def find_exclusive(self, version: object, program: object = None) -> Starting:
        self.asked_exclusive.append(version)
        return self.forked

    async def start(self, version: object, starting: Starting, beside: FakeBeside, *_: object, **__: object) -> Leased:
        try:
            await asyncio.wait_for(self.room.wait(), 10)
            raise self.failure
        except BaseException:
            beside.give_up()
            raise

    def dispose(self, leased: Leased, version: object) -> None:
        """The sandbox of a request that goes on in another."""
        leased.sandbox.destroy()

    def put_back(self, leased: Leased, version: object) -> None:
        self.leave()
        self.admission.leave()

    def leave(self) -> None:
        self.running -= 1


@pytest.fixture
async def function() -> FakeFunction:
    return FakeFunction()


def begin(function: Any, gone: Callable[[], bool] | None = None) -> tuple[Serving, list[Outcome | BaseException]]:
    reported: list[Outcome | BaseException] = []
    serving = Serving(function, InvokeRequest("f", b"{}", bytes(16), 0, gone), reported.append)
    serving.begin()
    return serving, reported


async def steps() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def settled(function: FakeFunction) -> bool:
    """Whether nothing of any request is left."""
    await steps()
    admission, starts = function.admission, function.starts
    return not (function.running or admission.running or admission.waiting or starts.starting or starts.waiters)


async def test_a_warm_request_is_answered_without_a_task(function: FakeFunction) -> None:
    tasks = asyncio.all_tasks()
    _, reported = begin(function)
    assert function.sandbox.done is not None and not reported
    function.sandbox.done(Reply(b"[]"))
    (outcome,) = reported
    assert isinstance(outcome, Outcome) and outcome.invocation.body == b"[]"
    assert asyncio.all_tasks() == tasks
    assert await settled(function)


async def test_a_sandbox_is_put_back_behind_the_answer_in_the_same_step(
    function: FakeFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back, answers = function.put_back, []
    _, reported = begin(function)

    def noted(leased: Leased, version: object) -> None:
        answers.append(len(reported))
        put_back(leased, version)

    monkeypatch.setattr(function, "put_back", noted)
    assert function.sandbox.done is not None
    function.sandbox.done(Reply(b"[]"))
    assert answers == [1] and (function.running, function.admission.running) == (0, 0)


async def test_a_request_that_the_program_did_not_take_is_started_anew_once(
    function: FakeFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = function.sandbox, FakeSandbox()
    second.process = SimpleNamespace(image=None)  # type: ignore[attr-defined]

    async def start(*_: object, **__: object) -> Leased:
        return Leased(second, "zygote", 1)  # type: ignore[arg-type]

    monkeypatch.setattr(function, "start", start)
    _, reported = begin(function)
    assert first.done is not None
    first.done(Reply(error=NotTaken(), log=b"of the first, "))
    await steps()
    assert first.lifecycle.is_dead and second.done is not None and not reported
    assert (function.running, function.admission.running) == (1, 1)
    second.done(Reply(error=NotTaken(), log=b"of the second"))
    await steps()
    (outcome,) = reported
    assert isinstance(outcome, Outcome) and isinstance(outcome.reply.error, NotTaken)
    assert outcome.reply.log == b"of the first, of the second" and outcome.invocation.origin == "zygote"
    assert await settled(function)


async def test_the_next_of_the_queue_goes_on_when_the_first_is_answered(function: FakeFunction) -> None:
    begin(function)
    _, reported = begin(function)
    first = function.sandbox.done
    assert first is not None and function.admission.waiting == 1
    first(Reply())
    await steps()
    assert function.sandbox.done is not first and function.admission.running == 1
    function.sandbox.done(Reply())  # type: ignore[misc]
    assert len(reported) == 1
    assert await settled(function)


async def test_one_too_many_is_refused_but_not_before_it_has_begun(function: FakeFunction) -> None:
    servings = [begin(function)[0] for _ in range(2)]
    _, reported = begin(function)
    assert not reported
    await steps()
    assert isinstance(reported[0], TooManyRequests)
    for serving in reversed(servings):
        serving.cancel()
    assert await settled(function)


async def test_one_whose_client_hung_up_in_the_queue_is_not_run(function: FakeFunction) -> None:
    first, _ = begin(function)
    _, reported = begin(function, gone=lambda: True)
    first.cancel()
    assert await settled(function)
    assert isinstance(reported[0], ClientGone)


async def test_a_cancelled_one_tells_no_one_and_leaves_the_queue(function: FakeFunction) -> None:
    first, told_first = begin(function)
    second, told_second = begin(function)
    second.cancel()
    second.cancel()
    await steps()
    assert (function.admission.waiting, function.running) == (0, 1)
    first.cancel()
    first.cancel()
    assert await settled(function)
    assert function.sandbox.lifecycle.state is State.DEAD and told_first == told_second == []


async def test_one_that_is_cancelled_as_its_turn_comes_passes_it_on(function: FakeFunction) -> None:
    begin(function)
    second, reported = begin(function)
    function.sandbox.done = None
    function.admission.leave()  # as one that was refused does: the turn comes in another step
    second.cancel()
    function.running -= 1
    assert await settled(function)
    assert function.sandbox.done is None and reported == []


async def test_the_queue_learns_when_the_function_is_switched_off(function: FakeFunction) -> None:
    first, _ = begin(function)
    second, reported = begin(function)
    function.admission.resize(0, 1)
    assert not reported
    second.cancel()  # too late: it has been refused, and counts no more
    assert function.running == 1
    first.cancel()
    assert await settled(function)
    assert len(reported) == 1 and isinstance(reported[0], TooManyRequests)


@pytest.mark.parametrize(("state", "starts"), [(State.IDLE, 0), (State.PAUSED, 0), (State.STARTING, 1), (None, 1)])
async def test_a_start_is_reported_and_a_thaw_is_none(function: FakeFunction, state: State | None, starts: int) -> None:
    latency = function.caches.latency
    function.warm = state in (State.IDLE, State.PAUSED)
    function.sandbox.lifecycle.state = state or State.STARTING
    if state is State.STARTING:
        function.spare = Leased(function.sandbox, "spare", 1)  # type: ignore[arg-type]
    serving, _ = begin(function)
    assert latency.starts == starts
    await steps()
    serving.cancel()
    assert await settled(function)


async def test_a_request_that_there_is_a_spare_for_is_no_task(function: FakeFunction) -> None:
    function.warm = False
    function.sandbox.lifecycle.state = State.STARTING
    function.spare = Leased(function.sandbox, "spare", 1)  # type: ignore[arg-type]
    tasks = asyncio.all_tasks()
    _, reported = begin(function)
    assert function.sandbox.done is not None and not reported
    function.sandbox.done(Reply(b"[]"))
    (outcome,) = reported
    assert isinstance(outcome, Outcome) and outcome.invocation.body == b"[]" and outcome.leased.why == ""
    assert asyncio.all_tasks() == tasks
    assert await settled(function)


@pytest.mark.parametrize("ends", ["unprepared", "unasked", "cancelled"])
async def test_a_spare_that_comes_to_nothing_gives_the_place_back(function: FakeFunction, ends: str) -> None:
    function.warm = False
    function.sandbox.lifecycle.state = State.STARTING
    function.sandbox.fails = ends == "unasked"
    function.spare = Leased(function.sandbox, "spare", 1)  # type: ignore[arg-type]
    if ends == "unprepared":
        function.spare = SandboxFailed("no mount")
    serving, reported = begin(function)
    assert not reported
    if ends == "cancelled":
        serving.cancel()
    assert await settled(function)
    assert len(reported) == (ends != "cancelled")
    if ends != "unprepared":
        assert function.sandbox.lifecycle.state is State.DEAD


@pytest.mark.parametrize("wait", [False, True])
async def test_a_cold_start_that_is_cancelled_gives_its_place_back(function: FakeFunction, wait: bool) -> None:
    function.warm = False
    serving, reported = begin(function)
    if wait:
        await steps()
    serving.cancel()
    assert await settled(function)
    assert reported == [] and function.beside.given_up == 1


async def test_a_paused_sandbox_that_is_not_thawed_after_all_is_destroyed(function: FakeFunction) -> None:
    function.sandbox.lifecycle.state = State.PAUSED
    serving, _ = begin(function)
    serving.cancel()
    assert await settled(function)
    assert function.sandbox.lifecycle.state is State.DEAD


async def test_a_paused_sandbox_whose_image_is_lost_before_it_is_thawed_is_replaced(function: FakeFunction) -> None:
    sandbox: Any = function.sandbox
    sandbox.lifecycle.state = State.PAUSED

    async def unpause() -> None:
        raise SandboxDied("the sandbox was destroyed")

    sandbox.unpause, sandbox.has_lost_image = unpause, True
    _, reported = begin(function)
    function.room.set()
    assert await settled(function)
    assert isinstance(reported[0], NoCapacity), "it is the error of the new start"
    assert function.asked_exclusive == [function.version] and function.caches.latency.starts == 1


@pytest.mark.parametrize("ends", ["lost", "read", "cancelled"])
async def test_an_end_in_an_image_is_reported_once_it_is_known_whether_the_image_is_lost(
    function: FakeFunction, ends: str
) -> None:
    is_settled, sandbox = asyncio.Event(), cast(Any, function.sandbox)

    async def why_lost() -> ImageUnavailable | None:
        await is_settled.wait()
        return ImageUnavailable("the agent is gone") if ends == "lost" else None

    sandbox.process = SimpleNamespace(image=SimpleNamespace(why_lost=why_lost))
    function.version.image = None
    serving, reported = begin(function)
    sandbox.done(Reply(error=SandboxDied("signal: bus error")))
    await steps()
    assert not reported and function.running == 1
    if ends == "cancelled":
        serving.cancel()
    is_settled.set()
    assert await settled(function)
    kind = ImageUnavailable if ends == "lost" else SandboxDied
    assert [type(cast(Outcome, each).reply.error) for each in reported] == ([] if ends == "cancelled" else [kind])


async def test_a_cold_start_that_fails_is_reported(function: FakeFunction) -> None:
    function.warm = False
    _, reported = begin(function)
    function.room.set()
    assert await settled(function)
    assert isinstance(reported[0], NoCapacity) and function.beside.given_up == 1


async def test_a_sandbox_that_cannot_be_asked_is_destroyed(function: FakeFunction) -> None:
    function.sandbox.fails = True
    _, reported = begin(function)
    assert await settled(function)
    assert isinstance(reported[0], OSError) and function.sandbox.lifecycle.state is State.DEAD


@pytest.mark.parametrize("failure", [None, StoreUnavailable("of images", "no chunk has come")], ids=["other", "store"])
async def test_a_start_that_could_not_read_its_image_learns_why(
    function: FakeFunction, failure: SockdError | None
) -> None:
    function.warm, function.failure = False, SandboxFailed("the root Zygote is being restarted")
    function.version.image = image = FakeImage(failure)
    _, reported = begin(function)
    function.room.set()
    while not reported:
        await asyncio.sleep(0)
    assert reported == [failure or function.failure] and image.uses == 1
    assert function.running == 0 and function.admission.try_enter()


async def test_other_failures_of_a_start_stay_what_they_are(function: FakeFunction) -> None:
    function.warm = False
    function.version.image = FakeImage(StoreUnavailable("of images", "no chunk has come"))
    _, reported = begin(function)
    function.room.set()
    while not reported:
        await asyncio.sleep(0)
    assert reported == [function.failure], "there was no memory"
