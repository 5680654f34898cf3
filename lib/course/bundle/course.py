"""A student's own copies of the labs, labs/mine/*.ipynb, behind `make lab` and `make merge`; and
`make setup`.

install.py               makes the environment, and chooses the build of PyTorch
mine.py                  makes a copy, opens it in JupyterLab, merges it with a new edition
carry.py answers.py      what the student wrote, found and put into the new edition
edition.py notebook.py   which edition a notebook is; notebooks as data
"""

import sys

# Importing nbformat would have jsonschema build a grammar of web addresses, a second of work in
# every process that is started here. It does without where that module is missing; no notebook is
# checked for them.
sys.modules.setdefault("rfc3987_syntax", None)
