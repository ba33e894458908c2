"""Access control: callers with and without keys, managers, web pages."""
