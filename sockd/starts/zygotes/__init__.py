"""The import cache: a tree of Zygotes; policies decide which there are (`selection`, `eviction`) and whom they may serve
(`sharing`, `soundness`, `verification`)."""
