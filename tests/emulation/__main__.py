"""What GPUs would show, without one.

python -m tests.emulation tags ...
python -m tests.emulation strict ...
"""

import sys

if __name__ == "__main__":
    kind, rest = sys.argv[1], sys.argv[2:]
    if kind == "tags":
        from tests.emulation import tags_runs as runs
    elif kind == "strict":
        from tests.emulation import strict_runs as runs
    else:
        sys.exit(f"{kind!r} is neither tags nor strict")
    sys.exit(runs.main(rest))
