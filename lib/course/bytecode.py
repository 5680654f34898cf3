"""Definitions, compiled: run by the Python that shall run them, for bytecode differs from release
to release. Both ways as JSON:

    stdin   {"lab0.ring_all_reduce": ["def ring_all_reduce(...", "lib/collectives/ring.py", 28],
             ...}
    stdout  {"tag": "cpython-311",
             "code": {"lab0.ring_all_reduce": base64 of the marshalled code, ...}}

Every instruction gets the one line number given: what stands there says in a traceback whose code
this is. Only the standard library is imported, so that any interpreter can run this file.
"""

import ast
import base64
import json
import marshal
import sys


def compiled(text: str, file: str, line: int) -> bytes:
    """The code object of `text`, marshalled, as if all of it stood on one line of `file`."""
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
