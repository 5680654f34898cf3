"""Published facts, one CSV file per table in `data/`, each row with its source.

gpus          memory of GPUs
machines      their rates and links
models        shapes of known models
gpt3_models   shapes of the GPT-3 family
links         what NCCL's all-reduce reaches over NVLink, PCIe and networks
nccl          collectives measured with nccl-tests, by size
zero_bubble   bubbles of pipeline schedules, with the times of F, B (of the input), W and a message
              behind them
zero_bubble_times    those times for every configuration
rows          about 2,000 published measurements: model, plan, step time, throughput, memory
unseen        116 rows more, from other pages of the same sources, which no fit has seen
unseen_stacks 124 rows of releases and publishers of which no row is known
residuals     errors of step times, cross-validated, and of peak memory
sweeps        the rest of a published sweep of plans, with the columns of rows;
              nothing is fitted to it
sources       where each of them was published, and under which conditions
stacks        software stacks; parameters: what is fitted
"""

import csv
from pathlib import Path

DATA = Path(__file__).parent / "data"


def table(name):
    """The rows of data/`name`.csv as dicts; numbers are int or float, empty cells None.

    Raises ValueError for a table that does not exist.
    """
    return [{key: _value(text) for key, text in row.items()} for row in table_as_text(name)]


def table_as_text(name):
    """The same as dicts of text, as `lib.cost.rows` reads them."""
    path = DATA / f"{name}.csv"
    if not path.exists():
        raise ValueError(
            f"no table {name!r}: there are {', '.join(sorted(p.stem for p in DATA.glob('*.csv')))}"
        )
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
