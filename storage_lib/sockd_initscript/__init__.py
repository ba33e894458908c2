"""The link between a function and its initscript."""
