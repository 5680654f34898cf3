"""python -m lib.cost plan --model gpt-3-175b --gpu A100-80GB --gpus 1024 --batch 1536

Lists the plans that fit, how fast each of them is, and how sure that is.
"""

import argparse
import sys

from lib.cost import explain
from lib.cost.plan import RECOMPUTE

FIXED = ("tp", "pp", "dp", "cp", "ep", "v", "micro_batch", "zero")


def parser():
    commands = argparse.ArgumentParser(
        prog="python -m lib.cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = commands.add_subparsers(dest="command", required=True)
    plan = which.add_parser("plan")
    plan.add_argument(
        "--model", required=True, help="a name in lib/cost/data/models.csv, or a .json file"
    )
    plan.add_argument("--gpu", required=True, help="a name in lib/cost/data/machines.csv")
    plan.add_argument("--gpus", type=int, required=True)
    plan.add_argument("--batch", type=int, required=True, help="sequences per step, over all GPUs")
    plan.add_argument("--seq", type=int, help="tokens per sequence (default: the model's, 2048)")
    plan.add_argument("--precision", default="bf16", choices=("bf16", "fp8", "fp4"))
    plan.add_argument(
        "--tokens",
        type=float,
        default=1e9,
        help="of the whole training, for GPU-hours (default: 1e9)",
    )
    for name in FIXED:
        plan.add_argument(
            f"--{name.replace('_', '-')}", type=int, help=f"only plans with this {name}"
        )
    plan.add_argument("--recompute", choices=RECOMPUTE, help="only plans that recompute this")
    plan.add_argument("--show", type=int, default=10, help="how many of the best plans to print")
    return commands


def main():
    """Rank plans. If a request cannot be met, exit with the reason and without a traceback."""
    asked = parser().parse_args()
    fixed = {name: getattr(asked, name) for name in (*FIXED, "recompute")}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    job = asked.gpus, asked.batch, asked.seq, asked.precision, asked.show, asked.tokens, fixed
    try:
        print(explain.report(asked.model, asked.gpu, *job))
    except (ValueError, OSError) as reason:
        sys.exit(f"{asked.command}: {reason}")


if __name__ == "__main__":
    main()
