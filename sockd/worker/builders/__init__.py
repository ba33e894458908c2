"""The builders of a worker's parts: one for each area, in the order of `Worker.build`, and one for what all APIs use."""
