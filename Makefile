# The commands of the project; `make` alone lists them. Everything lives in .venv, which `make lab` fills.
# Windows has no make: docs/install.md gives the same lines for it.

BIN := .venv/bin
# Whatever Python there is to start with; tools/setup_env.py then looks for a newer one where it must.
BOOT := $(shell for p in python3 python3.13 python3.12 python3.11 python; do "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null && echo $$p && break; done)
NEED_PYTHON := $(if $(BOOT),,echo "No Python was found; expected 3.11 or newer. Install it from python.org or your system's packages." >&2; exit 1)

.DEFAULT_GOAL := help
.PHONY: help lab html wheelhouse check test test-newest colab-check bench peer-suite gpu-check soak env env-tests

help: ## list the commands
	@echo "gpulab: a laboratory for GPU acceleration of deep learning inside JupyterLab"
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s%s\n", $$1, $$2 }' Makefile

lab: env ## set up .venv if needed, and open JupyterLab at 00_start_here (ARGS=--no-browser on a server)
	@$(BIN)/gpulab lab $(ARGS)

html: env ## run the course and write it as pages that open from the disk (ARGS="--out FOLDER --solutions"; without --out into course-pages)
	@$(BIN)/gpulab html --out course-pages $(ARGS)

wheelhouse: ## download all packages into wheels/, from which `make lab` then installs without a network (ARGS=--tests: JAX and TensorFlow too)
	@$(NEED_PYTHON)
	@$(BOOT) tools/setup_env.py --wheelhouse $(ARGS)

check: env-tests ## before each commit: lint, types, layers, size and the fast tests (90 s)
	@$(BIN)/python tools/run_tests.py --check $(ARGS)

test: env-tests ## everything: the checks, all tests, doctests, notebooks in the browser (12 min)
	@$(BIN)/python tools/run_tests.py $(ARGS)

test-newest: env-tests ## the same tests without the browser, with the newest versions of all dependencies (ARGS=--list: what differs)
	@$(BIN)/python tools/newest.py $(ARGS)

colab-check: env ## gpulab beside the versions that Google Colab has: nothing there may change, and the notebooks must run (ARGS="04 08": these)
	@$(BIN)/python tools/colab_check.py $(ARGS)

bench: env-tests ## the benchmarks behind docs/measurements.md (ARGS=--quick for a short look)
	@$(BIN)/python tools/run_benchmarks.py $(ARGS)

peer-suite: env-tests ## numba-cuda's own test suite on Numba's simulator and on gpulab.kernels.simulate (10 min; ARGS="warp_ops": only these)
	@$(BIN)/python tools/peer_suite.py --out .gpulab/peer-suite $(ARGS)

gpu-check: ## on a GPU machine: the gpu tests, the notebooks, and counters, occupancy and matmul against hardware (PYTHON=python3 uses that Python as it is)
ifdef PYTHON
	@$(PYTHON) tools/gpu_check.py $(ARGS)
else
	@$(MAKE) --no-print-directory env-tests
	@$(BIN)/python tools/gpu_check.py $(ARGS)
endif

soak: env-tests ## the long runs, resumable: full benchmarks, many examples, the whole course 20 times (ARGS=--again starts over)
	@$(BIN)/python tools/soak.py $(ARGS)

env:
	@$(NEED_PYTHON)
	@$(BOOT) tools/setup_env.py

env-tests:
	@$(NEED_PYTHON)
	@$(BOOT) tools/setup_env.py --tests
