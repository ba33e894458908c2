"""The engine's client in the daemon, and the keeper of the engine's process."""
