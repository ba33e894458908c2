"""SeBS's storage API, over the link to an initscript and S3."""
