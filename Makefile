# One command each: `make help`. Set-up runs by itself, and again when pyproject.toml changed.
#
#   TORCH=2.13.0          the torch release asked for (2.10 to 2.15 work)
#   TORCH_INDEX=URL       another wheel index for torch, such as the CPU-only one
#   EXTRAS=deepspeed      with `setup`: what is installed besides; Lab 4 then runs DeepSpeed, else shows stored results
#   LAB=0                 (or lab0) which lab `lab`, `merge`, `grade`, `validate`, `notebooks` are about (the first three: 0; else all)
#   LAB_OPTIONS=...       options of JupyterLab for `lab`, such as --no-browser
#   NOTEBOOK=path         the notebook that `grade` grades (default: your copy in labs/mine/, else the one in labs/)
#   JSON=path             where `grade` also writes its points as JSON

SHELL := /bin/bash
TORCH ?= 2.13.0
PYTHON ?= python3

# The active conda environment if there is one (not its base), else .venv here.
ifneq ($(and $(CONDA_PREFIX),$(filter-out base,$(CONDA_DEFAULT_ENV))),)
ENV := $(CONDA_PREFIX)
else
ENV := .venv
endif
# `make test` also tries the book, `make test-all` nbgrader and JupyterLab in Chromium, too, where that is installed.
ifneq ($(filter test-all,$(MAKECMDGOALS)),)
EXTRAS ?= nbgrader,browser,book
endif
ifneq ($(filter test book,$(MAKECMDGOALS)),)
EXTRAS ?= book
endif
BIN := $(ENV)/bin
PY := $(BIN)/python
# pip shows what it fetches where somebody looks on.
PIP := $(PY) -m pip install $(shell test -t 2 || echo --quiet) --disable-pip-version-check
STAMP := $(ENV)/.labs-ready-$(subst /,-,$(CURDIR))$(EXTRAS:%=-%)
COMMA := ,
# Four tests at a time on two cores: ranks wait for each other, kernels to begin, and hangs for their verdict.
SIDE_BY_SIDE := -n 4 --dist loadscope --no-loadscope-reorder -p no:nbval
TEST_OPTIONS ?=
# Python sees to its own compiled files: without them each rank of each launch would compile lib again.
unexport PYTHONDONTWRITEBYTECODE
# Several processes share the cores there: threads of each that wait for each other would only use them up.
test test-all validate: export OMP_NUM_THREADS := 1
test-all: export WHOLE_SWEEPS := 1

.PHONY: help setup lab merge demo book test test-all test-gpu notebooks validate grade bench lint clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP) ## install everything (runs by itself before the others)

$(STAMP): pyproject.toml
	@test -x $(PY) || { echo "making $(ENV)"; $(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 15), \
		f"this course needs Python 3.11 to 3.14, and {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ..."' \
		&& $(PYTHON) -m venv $(ENV); }
	@echo "PyTorch $(TORCH) and the rest go into $(ENV): about 1.5 GB with a PyTorch for the CPU, 8 GB with CUDA. For the"
	@echo "CPU alone give TORCH_INDEX=URL; pytorch.org, 'Get started', Compute Platform CPU, shows the URL after --index-url."
	@begin=$$(date +%s); $(PIP) torch==$(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) && $(PIP) -e ".[dev$(EXTRAS:%=$(COMMA)%)]" && \
		echo "$(ENV) is ready: $$(du -sh $(ENV) | cut -f1), $$(($$(date +%s) - begin)) s"
	@touch $@

lab: setup ## open your own copy of a lab, labs/mine/lab3_..., in JupyterLab: make lab LAB=3
	@$(PY) -m lib.course.mine open $(or $(LAB),0) $(LAB_OPTIONS)

merge: setup ## put the answers of your copy into a new edition of the lab: make merge LAB=3
	@$(PY) -m lib.course.mine merge $(or $(LAB),0)

demo: setup ## 4 ranks train a GPT for about a minute; results in results/demo
	$(PY) -m lib.demo $(DEMO_OPTIONS)

book: setup ## the labs as pages for a browser, build/book/index.html: read, search, move sliders, without a kernel
	$(PY) -m lib.course book

test: setup lint ## everything CI runs
	$(PY) -m pytest -m "not slow and not gpu" $(SIDE_BY_SIDE) $(TEST_OPTIONS)
	$(PY) -m lib.course validate

test-all: setup lint ## the slow tests too
	$(PY) -m pytest -m "not gpu" $(SIDE_BY_SIDE) $(TEST_OPTIONS)
	$(PY) -m lib.course validate --whole

test-gpu: setup ## does this machine's GPUs, driver and NCCL do; then everything on GPUs, in ten minutes on one
	$(PY) -m tests.gpu $(if $(STEPS),--steps $(STEPS))

notebooks: setup ## generate labs/ from solutions/, and execute solutions/
	$(PY) -m lib.course build $(LAB)
	$(PY) -m lib.course execute $(LAB)

validate: setup ## solutions pass, unsolved labs score 0, labs equal what solutions generate
	$(PY) -m lib.course validate --whole $(LAB)

grade: setup ## points for a notebook, or a folder of them: make grade LAB=0 NOTEBOOK=path [OUT=report JOBS=2]
	$(PY) -m lib.course grade --lab $(or $(LAB),0) $(if $(JSON),--json "$(JSON)") \
		$(if $(OUT),--out "$(OUT)") $(if $(JOBS),--jobs $(JOBS)) $(if $(NOTEBOOK),"$(NOTEBOOK)")

bench: setup ## speed, side by side with torch's own, in one run; results in results/bench
	$(PY) -m tests.benchmarks $(BENCH)

lint: setup ## ruff, on code and notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean: ## remove what the other commands made
	rm -rf .venv build results *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
