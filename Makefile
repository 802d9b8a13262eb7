PYTHON ?= python3

.PHONY: check test slow lint names types imports docs site bench mutants

check: test lint names types imports docs

test:
	$(PYTHON) -m pytest -n auto

slow:
	EXAMPLES=40 $(PYTHON) -m pytest -m "slow or thorough or hypothesis" -n auto

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

# The documentation site, in build/site. All its commands run; STEPTIME_SITE_RUN=0 leaves their outputs out.
site:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

bench:
	$(PYTHON) benchmarks/speed.py
	$(PYTHON) benchmarks/simulate.py
	$(PYTHON) benchmarks/validate.py
	$(PYTHON) benchmarks/training.py
	$(PYTHON) benchmarks/questions.py
	$(PYTHON) benchmarks/page.py

mutants:
	$(PYTHON) -m tests.mutants $(ARGS)
