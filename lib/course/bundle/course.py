"""What `make lab` and `make merge` run, which handle a student's own copies of the labs
(labs/mine/*.ipynb), and what `make setup` runs.

install.py               makes the environment, and chooses the build of PyTorch
mine.py                  makes a copy, opens it in JupyterLab, merges it with a new edition
answers.py carry.py      finds what the student wrote, and puts it into the new edition
edition.py notebook.py   finds which edition a notebook is; handles notebooks as data
"""

import sys

# When nbformat is imported, jsonschema builds a grammar of web addresses, which takes a second in
# every process that we start. It skips this step if the module below is missing. We lose nothing,
# because no notebook is checked for web addresses.
sys.modules.setdefault("rfc3987_syntax", None)
