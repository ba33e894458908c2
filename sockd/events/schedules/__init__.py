"""Schedules, and the events of their ticks."""
