"""Where sandboxes come from."""
