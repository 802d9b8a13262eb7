PYTHON ?= python3

.PHONY: check test slow lint names types imports docs bench mutants

check: test lint names types imports docs

test:
	$(PYTHON) -m pytest -n auto

slow:
	$(PYTHON) -m pytest -m slow -n auto

lint:
	$(PYTHON) -m ruff check src tests benchmarks docs tools
	$(PYTHON) -m ruff format --check src tests benchmarks docs tools

names:
	$(PYTHON) tools/check_names.py src/steptime --limit 0

types:
	$(PYTHON) -m mypy
	MYPYPATH=src $(PYTHON) -m mypy tests/strict_script.py

imports:
	$(PYTHON) -c "from importlinter.cli import lint_imports_command as main; main()"

docs:
	$(PYTHON) docs/generate.py --check

bench:
	$(PYTHON) benchmarks/speed.py
	$(PYTHON) benchmarks/simulate.py
	$(PYTHON) benchmarks/validate.py
	$(PYTHON) benchmarks/training.py
	$(PYTHON) benchmarks/questions.py
	$(PYTHON) benchmarks/page.py

mutants:
	$(PYTHON) -m tests.mutants $(ARGS)
