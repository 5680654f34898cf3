# `make help` lists the commands. They install what they need, and again if pyproject.toml has changed.
#
#   TORCH=2.13.0          the release of torch that is installed (2.10 to 2.15 work)
#   TORCH_INDEX=URL       the index for torch (default: PyTorch's CPU index if there is no NVIDIA driver, else pip's own index)
#   EXTRAS=deepspeed      with `setup`: what else to install; with deepspeed, Lab 4 runs DeepSpeed instead of showing stored results
#   LAB=0                 (or lab0) the lab (default: 0 for `lab`, `merge` and `grade`, every lab for `validate` and `notebooks`)
#   LAB_OPTIONS=...       options of JupyterLab for `lab`, such as --no-browser
#   NOTEBOOK=path         the notebook that `grade` grades (default: your copy in labs/mine/, else the one in labs/)
#   JSON=path             a file to which `grade` also writes the points, as JSON

SHELL := /bin/bash
TORCH ?= 2.13.0
PYTHON ?= python3

# The active conda environment if there is one (not its base), else .venv here.
ifneq ($(and $(CONDA_PREFIX),$(filter-out base,$(CONDA_DEFAULT_ENV))),)
ENV := $(CONDA_PREFIX)
else
ENV := .venv
endif
# `make test` also tries the book, `make test-all` nbgrader, JupyterLab in Chromium, and jobs of a Slurm, where those are
# installed (Debian: apt-get install chromium slurm-wlm munge).
ifneq ($(filter test-all,$(MAKECMDGOALS)),)
EXTRAS ?= nbgrader,browser,book
endif
ifneq ($(filter test book,$(MAKECMDGOALS)),)
EXTRAS ?= book
endif
BIN := $(ENV)/bin
PY := $(BIN)/python
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

# What `make help` shows: the targets below a line "##@ group" belong to that group, until the next such line.
##@ students
help: ## show this list
	@awk -F ':.*## ' '/^##@ / {group = substr($$0, 5)} \
		/^[a-z-]+:.*## / {lines[group] = lines[group] sprintf("  make %-12s %s\n", $$1, $$2)} \
		END {n = split("students instructors developers", groups, " "); \
			for (i = 1; i <= n; i++) printf "%sFor %s\n%s", (i > 1 ? "\n" : ""), groups[i], lines[groups[i]]}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## install everything; the other commands do this if it is needed

$(STAMP): pyproject.toml
	@test -x $(PY) || $(PYTHON) lib/course/install.py environment $(ENV)
	@$(PY) lib/course/install.py packages $(TORCH) "dev$(EXTRAS:%=$(COMMA)%)" $(TORCH_INDEX)
	@touch $@

lab: setup ## open your own copy of a lab in JupyterLab: make lab LAB=3 opens labs/mine/lab3_...
	@$(PY) -m lib.course.mine open $(or $(LAB),0) $(LAB_OPTIONS)

merge: setup ## put your answers into a new edition of a lab: make merge LAB=3
	@$(PY) -m lib.course.mine merge $(or $(LAB),0)

demo: setup ## train a GPT on 4 ranks for about a minute; the results are in results/demo
	$(PY) -m lib.demo $(DEMO_OPTIONS)

book: setup ## build the labs as a book in build/book, which any browser can show and search
	$(PY) -m lib.course book

##@ developers
# The labs are validated although a test has failed; the last two lines say how both went, and how long they took.
test: setup lint ## run everything that CI runs
	@$(PY) -m tests.in_turn tests $(PY) -m pytest -m "not slow and not gpu" $(SIDE_BY_SIDE) $(TEST_OPTIONS) \
		--then validate $(PY) -m lib.course validate

test-all: setup lint ## run the slow tests as well
	@$(PY) -m tests.in_turn tests $(PY) -m pytest -m "not gpu" $(SIDE_BY_SIDE) $(TEST_OPTIONS) \
		--then validate $(PY) -m lib.course validate --whole

test-gpu: setup ## check the GPUs, driver and NCCL of this machine, then test the course on them; ten minutes on one GPU
	$(PY) -m tests.gpu $(if $(STEPS),--steps $(STEPS)) $(if $(MINUTES),--minutes $(MINUTES))

##@ instructors
notebooks: setup ## generate labs/ from solutions/, and execute solutions/
	$(PY) -m lib.course build $(LAB)
	$(PY) -m lib.course execute $(LAB)

validate: setup ## prove that the solutions pass, that unsolved labs score 0, and that labs/ matches solutions/
	$(PY) -m lib.course validate --whole $(LAB)

grade: setup ## grade a notebook, or a folder of them: make grade LAB=0 NOTEBOOK=path [OUT=report JOBS=2]
	$(PY) -m lib.course grade --lab $(or $(LAB),0) $(if $(JSON),--json "$(JSON)") \
		$(if $(OUT),--out "$(OUT)") $(if $(JOBS),--jobs $(JOBS)) $(if $(NOTEBOOK),"$(NOTEBOOK)")

##@ developers
bench: setup ## measure our speed next to PyTorch's in the same run; the results are in results/bench
	$(PY) -m tests.benchmarks $(BENCH)

lint: setup ## run ruff on the code and the notebooks, and mypy on the annotations of lib
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## delete the environment, build/, results/ and caches, but no notebook
	rm -rf .venv build results *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
