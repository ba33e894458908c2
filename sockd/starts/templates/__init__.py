"""Snapshots of functions: templates, Zygotes that have run the init of one version and fork its sandboxes."""
