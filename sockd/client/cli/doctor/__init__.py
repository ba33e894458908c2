"""`sockd doctor`: what this host can do, and what sockd changes on it."""
