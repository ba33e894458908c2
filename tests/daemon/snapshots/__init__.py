"""Functions with snapshots."""
