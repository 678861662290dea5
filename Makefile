# make demo   a small example on this machine, no Slurm needed
# make test   everything: lint, types, unit tests, and the tests on a real Slurm that the sandbox starts
# make fast   the unit tests that take a moment each; make slow runs the others, make unit both
# make hydra  the test with hydra-optuna-sweeper, which needs an old Optuna, in a .venv-hydra/ of its own
# make tensorflow  the tests that need TensorFlow, a gigabyte in a .venv-tensorflow/ of its own
# make slurms  the Slurm tests on other releases, written to docs/compatibility.md: SLURMS="24.11 26.05", TESTS=core
# make fuzz   every parser of foreign text with many more random inputs than the other targets have: EXAMPLES=2000
# make chaos  random faults on that Slurm while commands race: SEEDS=20, LAUNCHER=shoal, naive or submitit
# make search-chaos  engines and samplers of searches are killed at random: SEEDS=20
# make pythons  a wheel, installed into fresh environments of every Python from 3.10 on that is here, runs the demo
# make docs   the documentation as a site in build/site/, strictly, by mkdocs-material in a .venv-docs/ of its own
# All build .venv/ here; .venv/bin/shoal is then the command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for processes, so three at a time keep two cores busy; a file's tests share its fixtures, such as a
# cluster.
PARALLEL := -n 3 --dist loadfile
PACKAGES := slurm-wlm slurmdbd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin munge mariadb-server iproute2 \
            squashfs-tools chromium chromium-driver zsh fish tcc charliecloud-runtime podman runc fuse3 openssh-server

.PHONY: demo test lint types fast slow unit slurm slurms fuzz hydra tensorflow chaos search-chaos pythons docs packages \
        bench clean

demo: $(VENV)/.installed
	@$(BIN)/shoal demo

test: lint types fast slow slurm

lint: $(VENV)/.installed-test
	$(BIN)/ruff check src plugins tests benchmarks
	$(BIN)/ruff format --check -q src plugins tests benchmarks

types: $(VENV)/.installed-test
	$(BIN)/mypy

# Fast failures first. Every test is in one of fast, slow and slurm.
fast: $(VENV)/.installed-test packages
	$(BIN)/pytest -q $(PARALLEL) -m "not slow and not slurm"

slow: $(VENV)/.installed-test packages
	$(BIN)/pytest -q $(PARALLEL) -m "slow and not slurm"

unit: fast slow

slurm: $(VENV)/.installed-test packages
	$(BIN)/pytest -q $(PARALLEL) -m slurm

SLURMS ?= 22.05 24.11 26.05
TESTS ?=
slurms: $(VENV)/.installed-test packages
	cd tests && ../$(BIN)/python -m slurms --releases $(SLURMS) --tests $(TESTS)

EXAMPLES ?= 2000
fuzz: $(VENV)/.installed-test
	SHOAL_FUZZ_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -q $(PARALLEL) tests/fuzz

hydra: $(VENV)-hydra/.installed
	$(VENV)-hydra/bin/pytest -q -p no:cacheprovider tests/plugins/test_hydra.py -k optuna

tensorflow: $(VENV)-tensorflow/.installed
	$(VENV)-tensorflow/bin/pytest -q -p no:cacheprovider tests/data/test_data_tensorflow.py

SEEDS ?= 20
LAUNCHER ?= shoal
chaos: $(VENV)/.installed-test packages
	cd tests && ../$(BIN)/python -m chaos --seeds $(SEEDS) --launcher $(LAUNCHER)

search-chaos: $(VENV)/.installed-test
	cd tests && ../$(BIN)/python -m search_chaos --seeds $(SEEDS)

pythons: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.pythons

# The second line: no page may load scripts, styles or fonts from elsewhere.
docs: $(VENV)-docs/.installed
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict
	@! grep -rlE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' build/site --include=*.html

bench: $(VENV)/.installed-test packages
	$(BIN)/python -m benchmarks

# Slurm for the sandbox, a browser for the page, shells to complete in, a C compiler of a megabyte for an NVML that
# tells what a test says, two container runtimes, FUSE for mounts with old caches: Debian's packages, where we may
# install them.
packages:
	@missing=; for program in slurmctld slurmd slurmdbd munged mariadbd ip mksquashfs chromium chromedriver zsh fish tcc \
	    ch-run podman runc fusermount3 sshd; do \
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
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test]' -e plugins/hydra
	@touch $@

$(VENV)-hydra/.installed: pyproject.toml plugins/hydra/pyproject.toml
	$(PYTHON) -m venv $(VENV)-hydra
	$(VENV)-hydra/bin/pip install -q --disable-pip-version-check 'hydra-core==1.3.*' hydra-optuna-sweeper pytest \
	    hypothesis -e . -e plugins/hydra
	@touch $@

$(VENV)-tensorflow/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-tensorflow
	$(VENV)-tensorflow/bin/pip install -q --disable-pip-version-check tensorflow-cpu pytest hypothesis -e '.[data]'
	@touch $@

$(VENV)-docs/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-hydra $(VENV)-tensorflow $(VENV)-docs build/site .pytest_cache .mypy_cache .ruff_cache .hypothesis
