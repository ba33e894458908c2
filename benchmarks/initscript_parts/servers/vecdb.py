"""A vector database on usearch: its vectors are searched where they are, in memory that the engine has received into.

GET /nearest/N answers with the number of the vector that is nearest to number N, which is N.
"""

import answering
import numpy as np
import state
from usearch.index import MetricKind, search

DIMENSIONS = 128

if __name__ == "__main__":
    vectors = np.frombuffer(state.view(), dtype=np.float32).reshape(-1, DIMENSIONS)

    def nearest(path: str) -> bytes:
        number = int(path.rpartition("/")[2])
        found = search(vectors, vectors[number], 1, MetricKind.L2sq, exact=True)
        return str(int(found.keys[0])).encode()

    answering.serve(nearest)
