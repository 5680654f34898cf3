"""Compiles definitions. This program is run by the Python that will later run the definitions,
because bytecode differs from release to release. Its input and output are JSON:

    stdin   {"lab0.ring_all_reduce": ["def ring_all_reduce(...", "lib/collectives/ring.py", 28],
             ...}
    stdout  {"tag": "cpython-311", "version": [3, 11],
             "code": {"lab0.ring_all_reduce": base64 of the marshalled code, ...}}

All instructions of a definition get the one line number given. A traceback therefore shows that
line of the file, which is the stub's signature or the call of `reference`. Only the standard
library is imported, so that any interpreter can run this file.
"""

import ast
import base64
import json
import marshal
import sys


def compiled(text: str, file: str, line: int) -> bytes:
    """The marshalled code object of `text`, as if all of it were on one line of `file`."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    return marshal.dumps(compile(tree, file, "exec", dont_inherit=True, optimize=0))


if __name__ == "__main__":
    code = {
        name: base64.b64encode(compiled(*given)).decode()
        for name, given in json.load(sys.stdin).items()
    }
    json.dump(
        {"tag": sys.implementation.cache_tag, "version": sys.version_info[:2], "code": code},
        sys.stdout,
    )
