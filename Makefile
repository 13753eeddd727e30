# Each target sets up what it needs. PYTHON: which Python makes the environment. VENV: where it is.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.specrt-is-installed
SOURCES := $(shell find bench export models runtime src -type f -not -name '*.pyc')

.PHONY: demo test lint bench sanitize

demo: $(READY)  ## one answer, plainly and speculatively, side by side
	$(BIN)/specrt demo

test: $(READY)  ## all tests, against the installed wheel
	$(BIN)/specrt pull smollm2
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# A package without its library, then the library as gcc checks it. What checks is loaded before
# Python, and so is what it asks how to throw.
SANITIZED = $(VENV)/sanitized
SANITIZE = -std=c11 -O1 -g1 -ffp-contract=off -fPIC -shared -fsanitize=address,undefined \
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer -Wall -Wextra -Wno-unknown-pragmas -Werror

sanitize: $(READY)  ## the native kernels' tests, ended by the first byte read or written out of place
	CC=false $(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(SANITIZED) .
	rm -rf build
	gcc $(SANITIZE) -o $(SANITIZED)/specrt/runtime/libspecrt.so runtime/native/*.c -lm
	PYTHONPATH=$(SANITIZED) LD_PRELOAD="$$(gcc -print-file-name=libasan.so) libstdc++.so.6" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    $(BIN)/python -m pytest -rN --capture=sys -p no:cacheprovider tests/test_native.py \
	    tests/test_native_attention.py tests/test_native_safety.py

# The figures in README.md. Bundles are made once and kept beside the checkpoints.
BUNDLES = $(shell $(BIN)/python -c 'from specrt.pull import home; print(home() / "bundles")')

bench: $(READY)
	test -f $(BUNDLES)/smollm2-bench/specrt.json || $(BIN)/specrt export \
	    "$$($(BIN)/specrt pull smollm2)" $(BUNDLES)/smollm2-bench
	test -f $(BUNDLES)/coder-bench/specrt.json || $(BIN)/specrt export \
	    "$$($(BIN)/specrt pull qwen2.5-coder-1.5b)" $(BUNDLES)/coder-bench \
	    --draft "$$($(BIN)/specrt pull qwen2.5-coder-0.5b)" --context 8192
	$(BIN)/specrt bench $(BUNDLES)/smollm2-bench --drafters ngram
	$(BIN)/specrt bench $(BUNDLES)/coder-bench --drafters ngram,draft,auto

# build/ is removed first: setuptools would put what an older build left there into the wheel.
$(READY): pyproject.toml README.md $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	    "specrt needs Python 3.11 or newer as $(PYTHON); choose one: make PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	rm -rf build
	touch $@
