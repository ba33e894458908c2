"""Who may use a door: callers with and without keys, managers."""
