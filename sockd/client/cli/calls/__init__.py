"""Commands that run functions, now or later."""
