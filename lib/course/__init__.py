"""Everything around a notebook that is not its content: generate, execute, validate, grade.

    solutions/lab0_*.ipynb  --execute-->  the same file, with outputs       (the single source of truth)
                            --build---->  labs/lab0_*.ipynb                 (what the student opens)
    a student's notebook    --grade---->  points per exercise, as a table, JSON and JUnit XML
    a folder of them        --grade---->  the same for a class, and a page of feedback for each student

`python -m lib.course --help` lists the commands. Nothing here imports torch.
"""
