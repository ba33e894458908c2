"""The app's side of initscripts: what a function imports to be handed what its initscript fetched.

This directory is a distribution of its own, `sockd-storage` (`pip install ./storage_lib`): the modules `storage` and
`nosql`, which have the API of SeBS's wrappers, and the packages `sockd_initscript` (the link to the engine) and
`sockd_storage` (what the two modules share). As the package `storage_lib` it only lets the engine import the wire.
"""
