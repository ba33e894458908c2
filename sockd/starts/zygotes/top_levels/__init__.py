"""The top levels of versions: what they import, which of it may be shared, and what is known of each. No Zygote is made here."""
