"""Asynchronous invocations: the event queue, dead letters, destinations, schedules."""
