"""The import cache: a tree of Zygotes; policies decide which there are (`learning`, `selection`, `eviction`) and which functions
they may serve (`top_levels`, `verification`)."""
