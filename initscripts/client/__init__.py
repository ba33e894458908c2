"""The engine's client in the daemon, and the engine's process."""
