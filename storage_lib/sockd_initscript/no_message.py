"""The error of the app link. It is in a file of its own, because the package imports the link only when there is one."""


class NoMessage(Exception):
    """What was waited for will not come, or not in time. The text says why."""
