"""What each kind of frame that a sandbox sends does to its conversation. Owns nothing.

User code can send any of them at any time: a frame that is not due is a ProtocolError, which ends the sandbox."""

from __future__ import annotations

from collections.abc import Callable

from sockd.base.errors import FunctionFailed, InitFailed, Interrupted, NotTaken, ResponseTooLarge, TimedOut
from sockd.isolation.sandbox.claims import read_failure, read_imports, read_times
from sockd.isolation.sandbox.conversation import Conversation, timeout_words
from sockd.isolation.sandbox.exchange import NO_REQUEST, Exchange, Reply
from sockd.isolation.sandbox.lifecycle import State, Step
from sockd.isolation.sandbox.stream import Flow
from sockd_zygote import protocol


def take(conversation: Conversation, kind: int, number: int, body: bytes) -> None:
    """Handle one frame. Raises: ProtocolError, when this frame is not due."""
    _TAKE[kind](conversation, number, body)


def _primed(conversation: Conversation, number: int, body: bytes) -> None:
    if not conversation.is_priming:
        raise protocol.ProtocolError("PRIMED that is not waited for")
    conversation.end_priming(None)


def _ready(conversation: Conversation, number: int, body: bytes) -> None:
    exchange, init, program = conversation.exchange, conversation.init, conversation.program
    if exchange is None or conversation.lifecycle.state is not State.STARTING:
        raise protocol.ProtocolError("READY that is not waited for")
    started, ended = read_times(body)
    init.started_ns, init.took_ns = started, max(0, ended - started)
    conversation.lifecycle.advance(Step.READY)
    init.has_succeeded = True
    assert program is not None
    program.is_app = body[protocol.TIMES.size :] == protocol.APP
    init.end()
    if exchange.number == NO_REQUEST and not exchange.is_over:
        image = conversation.process.image
        conversation.conclude(exchange, Reply(error=image.lost.again() if image is not None and image.lost else None))
        return
    conversation.deadline.set(program.timeout_s, conversation.expire)
    if exchange.compose is not None:
        conversation.compose(exchange, exchange.compose)


def _result(conversation: Conversation, number: int, body: bytes) -> None:
    exchange = _awaiting(conversation, protocol.RESULT, number)
    started, ended = read_times(body)
    if exchange.stream is not None and len(body) > protocol.TIMES.size:
        raise protocol.ProtocolError(f"a RESULT of {len(body)} bytes behind a HEAD")
    conversation.finish(None, bytes(body[protocol.TIMES.size :]), max(0, ended - started), started)


def _failed(conversation: Conversation, number: int, body: bytes) -> None:
    started, ended = read_times(body)
    took_ns = max(0, ended - started)
    body = body[protocol.TIMES.size :]
    is_starting = conversation.lifecycle.state is State.STARTING
    if is_starting and (conversation.exchange is not None or conversation.is_priming):
        conversation.init.started_ns, conversation.init.took_ns = started, took_ns
        conversation.finish(read_failure(body, InitFailed))
    else:
        _awaiting(conversation, protocol.FAILED, number)
        error = read_failure(body, FunctionFailed)
        if error.error_type == TimedOut.error_type and conversation.program is not None:
            error = Interrupted(timeout_words(conversation.program), "timeout_s")
        conversation.finish(error, b"", took_ns, started, is_answer=True)


def _untaken(conversation: Conversation, number: int, body: bytes) -> None:
    """Give up a sandbox whose function's program has ended; another sandbox may serve a request that waits."""
    exchange, state = conversation.exchange, conversation.lifecycle.state
    if state not in (State.BUSY, State.IDLE) or (exchange is not None and exchange.stream is not None):
        raise protocol.ProtocolError(f"UNTAKEN while {state.value}")
    if exchange is None:
        conversation.destroy()
    else:
        conversation.finish(NotTaken())


def _modules(conversation: Conversation, number: int, body: bytes) -> None:
    if conversation.init.imports is not None:
        raise protocol.ProtocolError("MODULES again")
    conversation.init.imports = read_imports(body)


def _head(conversation: Conversation, number: int, body: bytes) -> None:
    exchange = _awaiting(conversation, protocol.HEAD, number)
    if exchange.is_over:
        return  # its deadline has just passed
    flow = Flow(conversation.channel.pause, conversation.channel.resume, conversation.stop_answering)
    exchange.on_head(body, flow, max_joined_bytes=conversation.process.parts.max_answer_bytes)


def _chunk(conversation: Conversation, number: int, body: bytes) -> None:
    exchange = _awaiting(conversation, protocol.CHUNK, number)
    if exchange.is_over:
        return  # its deadline has just passed
    try:
        exchange.on_chunk(body)
    except ResponseTooLarge as error:
        conversation.end(error)
    if not body:
        conversation.deadline.restore()  # its client may have gone with the last piece, before this word of its end


def _awaiting(conversation: Conversation, kind: int, number: int) -> Exchange:
    """The exchange that a frame is for. Raises: ProtocolError, when it is for none that is under way."""
    exchange = conversation.exchange
    if exchange is None or number != exchange.number or conversation.lifecycle.state is not State.BUSY:
        raise protocol.ProtocolError(f"{protocol.FRAME_NAMES[kind]} {number} that is not waited for")
    return exchange


_TAKE: dict[int, Callable[[Conversation, int, bytes], None]] = {
    protocol.PRIMED: _primed,
    protocol.READY: _ready,
    protocol.RESULT: _result,
    protocol.FAILED: _failed,
    protocol.MODULES: _modules,
    protocol.HEAD: _head,
    protocol.CHUNK: _chunk,
    protocol.UNTAKEN: _untaken,
}
"""What is done with each kind of frame that `protocol.sandbox_limits` lets through."""
