"""The `/run` API: options, signed calls, replays."""
