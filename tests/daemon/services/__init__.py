"""Programs that keep running."""
