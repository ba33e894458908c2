"""The `/run` door: its options, signed calls, replays."""
