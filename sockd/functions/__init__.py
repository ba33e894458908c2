"""Functions that are served: versions, admission, provisioned sandboxes, deploys."""
