"""The order of events: whatever comes, goes and fails, each is taken when it is due, and no function beyond its places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sockd.events.event import Event
from sockd.events.event_queue import EventQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.sampled_from("abc"), st.integers(0, 5)),
        st.tuples(st.just("take"), st.just(""), st.just(0)),
        st.tuples(st.just("end"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("again"), st.just(""), st.integers(0, 5)),
        st.tuples(st.just("pass"), st.just(""), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.sampled_from("abc"), st.just(0)),
    ),
    max_size=80,
)
PLACES = {"a": 1, "b": 2, "c": 5}


@given(STEPS)
def test_against_a_model(steps: list[tuple[str, str, int]]) -> None:
    queue, now, seq = EventQueue(PLACES.__getitem__), 0.0, 0
    waiting: dict[int, tuple[Event, float]] = {}
    taken: dict[int, Event] = {}

    def free(function: str) -> bool:
        return sum(event.function == function for event in taken.values()) < PLACES[function]

    def take() -> bool:
        able = [event for event, due in waiting.values() if due <= now and free(event.function)]
        entry = queue.take(now)
        assert (entry is None) == (not able)
        if entry is None:
            return False
        assert entry.event in able
        del waiting[entry.event.seq]
        taken[entry.event.seq] = entry.event
        return True

    for step, function, number in steps:
        if step == "push":
            seq += 1
            event = Event(seq, b"", function, "", "", 0, 0.0, 0.0, 0, 0, 0, 10)
            queue.push(event, due=now + number, born=now)
            waiting[seq] = event, now + number
        elif step == "take":
            take()
        elif step in ("end", "again") and taken:
            event = taken.pop(sorted(taken)[number % len(taken)])
            if step == "end":
                queue.drop(event)
            queue.leave(event)
            if step == "again":
                queue.push(event, due=now + number, born=0.0)
                waiting[event.seq] = event, now + number
        elif step == "pass":
            now += number
        elif step == "remove":
            queue.drop_function(function)
            waiting = {key: pair for key, pair in waiting.items() if pair[0].function != function}
        assert (len(queue), queue.size_bytes) == (len(waiting) + len(taken), 10 * (len(waiting) + len(taken)))
        assert queue.running == set(taken)
    now += 10
    while waiting:
        if not take():
            event = taken.pop(next(iter(taken)))
            queue.drop(event)
            queue.leave(event)


def test_functions_take_turns() -> None:
    queue = EventQueue(lambda name: 100)
    for number, function in enumerate("aaaaabbc"):
        queue.push(Event(number, b"", function, "", "", 0, 0.0, 0.0, 0, 0, 0, 1), due=0.0, born=0.0)
    order = [entry.event.function for _ in range(8) if (entry := queue.take(1.0)) is not None]
    assert order == list("abcabaaa")
