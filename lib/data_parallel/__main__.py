"""`python -m lib.data_parallel`: train DiLoCo and data parallelism with three seeds, and
store their losses."""

from lib.data_parallel.diloco_comparison import store

if __name__ == "__main__":
    store()
