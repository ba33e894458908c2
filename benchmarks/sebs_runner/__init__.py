"""SeBS, the serverless benchmark suite of Copik et al. (Middleware '21), on sockd: its Python functions, unmodified.

The suite is installed from PyPI into a cache (`suite`), never copied into this repository. A bench (`benches`) is packed in
SeBS's own layout (`packaging`, `wrapper`), its inputs are the user's SeBS data or stand-ins of the same size and kind
(`inputs`), it runs on a worker (`target`) against an S3 (`object_store`) in SeBS's experiments (`experiment`), its
answers are checked (`checks`) and written in SeBS's own files (`reports`).

Not to be mixed up with "ServerlessBench" of SJTU-IPADS (SoCC '20), nor with the package `sebs` on PyPI.
"""
