"""The command `python -m lib.demo`. It launches the ranks, shows their progress, and then reports
whether the claims hold."""

import argparse
import sys
import tempfile
import threading
from pathlib import Path

from tqdm import tqdm

from lib import launch
from lib.demo.claims import report
from lib.demo.on_ranks import PER_RANK, SEQ_LEN, shape_for, train
from lib.training import text as texts
from lib.training.model import GPT


def show_progress(path, finished):
    """Show the progress of the run until the event `finished` is set: as a bar in a terminal, and
    elsewhere as a line for every fifth of the run. path: the file to which rank 0 writes its
    progress."""
    terminal = sys.stdout.isatty()
    bar = tqdm(
        total=100, disable=not terminal, file=sys.stdout, leave=False, ncols=80, nrows=10,
        bar_format="  training {bar} {percentage:3.0f} %{postfix}",
    )  # fmt: skip
    told = 0.0
    last = False
    while not last:
        last = finished.wait(0.25)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and len(lines[-1].split()) == 3:
            used, step, loss = map(float, lines[-1].split())
            bar.set_postfix_str(f"step {step:.0f}, loss {loss:.2f}", refresh=False)
            bar.update(100 * used - bar.n)
            if not terminal and (used >= told + 0.2 or (used == 1 and told < 1)):
                told = used
                print(
                    f"  training {100 * used:3.0f} %   step {step:4.0f}   loss {loss:.2f}",
                    flush=True,
                )
    bar.close()


def run(text, ranks, seconds, steps):
    """Launch the ranks and show their progress. Returns the results of all ranks, together with the
    run's ledger."""
    with tempfile.TemporaryDirectory() as folder:
        progress, finished = Path(folder) / "progress", threading.Event()
        watcher = threading.Thread(target=show_progress, args=(progress, finished))
        watcher.start()
        try:
            timeout = 60 + 2 * seconds if seconds else 24 * 3600
            return launch.capture(
                train, text, seconds, steps, str(progress), nproc=ranks, timeout=timeout
            )
        finally:
            finished.set()
            watcher.join()


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lib.demo", description="Train a small GPT on several ranks."
    )
    parser.add_argument("--ranks", type=int, default=4, help="how many ranks (4)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="how long to train (60)")
    length.add_argument("--steps", type=int, help="train this many steps instead")
    parser.add_argument(
        "--text", metavar="FILE", help="your own UTF-8 text (default: Python's help pages)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/demo"), help="folder for the results"
    )
    options = parser.parse_args(arguments)
    if options.seconds is None and options.steps is None:
        options.seconds = 60.0
    for name in ("ranks", "seconds", "steps"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} {value:g} leaves nothing to run: use 1 or more")
    try:
        text = texts.load(options.text)
    except (OSError, ValueError) as error:
        parser.error(f"--text: {error}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(
            dir=options.out
        ).close()  # so that a folder that cannot be written to is noticed before the run
    except (FileExistsError, NotADirectoryError):
        parser.error(f"--out {options.out}: there is a file of that name, give a folder")
    except OSError as error:
        parser.error(
            f"--out {options.out} cannot be written to ({error.strerror}): give another folder"
        )

    model = GPT(shape_for(text))
    print(f"{options.ranks} ranks train one GPT by data parallelism")
    print(
        f"   text    {len(text.tokens):,} characters, {len(text.vocabulary)} different; unigram "
        f"entropy",
        end=" ",
    )
    print(f"{text.entropy:.2f} nats = {text.entropy_bits:.2f} bits per character")
    print(
        f"   model   {model.num_parameters():,} parameters: {model.shape.n_layers} layers, hidden "
        f"{model.shape.hidden}"
    )
    print(
        f"   batch   {options.ranks} ranks x {PER_RANK} sequences x {SEQ_LEN} characters; then one "
        f"ring all-reduce"
    )
    print("           of all gradients, and every rank takes the same step\n", flush=True)
    try:
        results = run(text, options.ranks, options.seconds, options.steps)
    except KeyboardInterrupt:
        print("\nstopped; no rank is left running")
        return 130
    except (
        launch.RankError
    ) as error:  # the message names the rank and the line; a traceback adds nothing
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0 if report(text, options.ranks, results, options.out) else 1
