"""`python -m lib.moe`: train the runs of seeds.py with three seeds, and store their validation
losses. This takes about ten minutes."""

from lib.moe.seeds import store

if __name__ == "__main__":
    store()
