"""Whether a fork of a Zygote becomes what a start of its own becomes: trials of versions, and what comes of them."""
