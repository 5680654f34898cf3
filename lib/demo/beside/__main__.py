"""`python -m lib.demo.beside`: run all sides, store the rows, print the tables. Needs DeepSpeed;
about two minutes."""

from lib.demo.beside.rows import WORLDS, store, stored
from lib.demo.beside.table import table

if __name__ == "__main__":
    store()
    alone, *rows = stored()["rows"]
    for N in WORLDS:
        print("\n".join([*table([alone, *(row for row in rows if row.N == N)]), ""]))
