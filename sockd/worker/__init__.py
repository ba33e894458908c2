"""The composition root: builds all rooms, and closes them in order."""
