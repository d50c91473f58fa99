# Every target makes its own environment: nothing to install by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

OUT ?= demo

.PHONY: demo weights kernels test faults fuzz lint format clean

demo: $(VENV)/.installed
	$(BIN)/lgq demo --out $(OUT)

weights: $(VENV)/.installed
	$(BIN)/lgq weights fetch

# Triton, 690 MB: with it, the tests run and compile the GPU's kernels, without a GPU.
kernels: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[kernels]'

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2

faults: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python -m faults

fuzz: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What a user needs.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[viewer]'
	touch $@

# What the tests need on top: tools, the libraries that results are compared with, UMAP and W&B.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,bench,datasets,diffusers,umap,viewer,wandb]'
	touch $@
