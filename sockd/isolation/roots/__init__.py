"""Images: where a sandbox's files come from. The host's software is the first source."""
