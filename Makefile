# make demo   a small example on this machine, no Slurm needed
# make test   everything: lint, types, unit tests, and the tests on a real Slurm that the sandbox starts
# make tensorflow  the tests that need TensorFlow, a gigabyte in a .venv-tensorflow/ of its own
# make chaos  random faults on that Slurm while commands race: SEEDS=20, LAUNCHER=shoal, naive or submitit
# All build .venv/ here; .venv/bin/shoal is then the command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for processes, so three at a time keep two cores busy; a file's tests share its fixtures.
PARALLEL := -n 3 --dist loadfile
PACKAGES := slurm-wlm slurmdbd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin munge mariadb-server iproute2 \
            squashfs-tools chromium chromium-driver zsh fish tcc charliecloud-runtime podman runc fuse3

.PHONY: demo test lint types unit slurm tensorflow chaos packages bench clean

demo: $(VENV)/.installed
	@$(BIN)/shoal demo

test: lint types unit slurm

lint: $(VENV)/.installed-test
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check -q src tests benchmarks

types: $(VENV)/.installed-test
	$(BIN)/mypy

# Fast failures first: these need no Slurm.
unit: $(VENV)/.installed-test packages
	$(BIN)/pytest -q $(PARALLEL) -m "not slurm"

slurm: $(VENV)/.installed-test packages
	$(BIN)/pytest -q $(PARALLEL) -m slurm

tensorflow: $(VENV)-tensorflow/.installed
	$(VENV)-tensorflow/bin/pytest -q -p no:cacheprovider tests/data/test_data_tensorflow.py

SEEDS ?= 20
LAUNCHER ?= shoal
chaos: $(VENV)/.installed-test packages
	cd tests && ../$(BIN)/python -m chaos --seeds $(SEEDS) --launcher $(LAUNCHER)

bench: $(VENV)/.installed-test packages
	$(BIN)/python -m benchmarks

# Slurm for the sandbox, a browser for the page, shells to complete in, a C compiler of a megabyte for an NVML that
# tells what a test says, two container runtimes, FUSE for mounts with old caches: Debian's packages, where we may
# install them.
packages:
	@missing=; for program in slurmctld slurmd slurmdbd munged mariadbd ip mksquashfs chromium chromedriver zsh fish tcc \
	    ch-run podman runc fusermount3; do \
	    command -v $$program >/dev/null || missing=$$program; \
	done; \
	if [ -z "$$missing" ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(PACKAGES); \
	else \
	    echo "error: the tests need programs that are not here: $$missing" >&2; \
	    echo "hint: sudo apt-get install --no-install-recommends $(PACKAGES)" >&2; exit 1; \
	fi

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/pip install -q --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)-tensorflow/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-tensorflow
	$(VENV)-tensorflow/bin/pip install -q --disable-pip-version-check tensorflow-cpu pytest hypothesis -e '.[data]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-tensorflow .pytest_cache .mypy_cache .ruff_cache .hypothesis
