"""One thread for PyTorch, whichever test imports it first: what the figures in the tests were measured with."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
