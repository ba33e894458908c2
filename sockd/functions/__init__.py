"""Deployed functions: versions, admission, provisioned sandboxes, deploys."""
