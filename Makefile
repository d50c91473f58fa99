# Every target makes its own environment: nothing to install by hand.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

OUT ?= demo

.PHONY: demo test faults fuzz weights lint format clean

demo: $(VENV)/.installed
	$(BIN)/lgq demo --out $(OUT)

test: $(VENV)/.installed
	$(BIN)/pytest -n 2

faults: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m faults

fuzz: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m fuzz

weights: $(VENV)/.installed
	$(BIN)/lgq weights fetch

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,bench,umap,wandb]'
	touch $@
