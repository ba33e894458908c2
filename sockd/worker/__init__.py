"""The composition root: builds all parts of a worker, and closes them in order."""
