"""WebAssembly of functions: initscripts, and functions that are modules."""
