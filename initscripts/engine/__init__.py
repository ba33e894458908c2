"""The initscript engine: guests, their host functions, runs."""
