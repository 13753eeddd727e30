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

# The tables in README.md, which it writes there. Bundles, exported anew, and results are kept beside
# the checkpoints. Peers are run where they are: LLAMA_PYTHON has llama-cpp-python; GENAI_PYTHON has
# onnxruntime-genai, and GENAI_MODELS is the folder with its exports: smollm2-int8, smollm2-int4,
# coder-int8, coder-int4.
# PEERS: options of `specrt bench` that name engines to stand beside all drafters, as in
# PEERS='--peers llama.cpp,transformers --peer-program llama.cpp=other/bin/python'.
BUNDLES = $(shell $(BIN)/python -c 'from specrt.pull import home; print(home() / "bundles")')
RESULTS = $(BUNDLES)/results
KERNELS = $(BUNDLES)/kernels
SMOLLM2 = "$$($(BIN)/specrt pull smollm2)"
CODER = "$$($(BIN)/specrt pull qwen2.5-coder-1.5b)"
CODER_DRAFT = "$$($(BIN)/specrt pull qwen2.5-coder-0.5b)"
GENAI = --peers onnxruntime-genai --peer-program onnxruntime-genai=$(GENAI_PYTHON)
DRAFTERS_smollm2 = ngram,auto
DRAFTERS_coder = ngram,draft,auto
export_smollm2 = $(BIN)/python bench/exports.py $(RESULTS)/export-smollm2$(1).json $(SMOLLM2) \
    $(BUNDLES)/bench-smollm2$(1) $(2)
export_coder = $(BIN)/python bench/exports.py $(RESULTS)/export-coder$(1).json $(CODER) \
    $(BUNDLES)/bench-coder$(1) --draft $(CODER_DRAFT) --context 8192 $(2)

bench: $(READY)
	rm -rf $(RESULTS) $(KERNELS) && mkdir -p $(RESULTS) $(KERNELS)
	$(call export_smollm2)
	$(call export_coder)
	$(BIN)/specrt bench $(BUNDLES)/bench-smollm2 --drafters $(DRAFTERS_smollm2) \
	    --json $(RESULTS)/smollm2.json --html $(RESULTS)/smollm2.html
	$(BIN)/specrt bench $(BUNDLES)/bench-coder --drafters $(DRAFTERS_coder) --repeat 1 \
	    --json $(RESULTS)/coder.json --html $(RESULTS)/coder.html
	test -z "$(PEERS)" || for model in smollm2 coder; do \
	    $(BIN)/specrt bench $(BUNDLES)/bench-$$model --drafters ngram,auto --max-tokens 64 \
	        --repeat 1 $(PEERS) --json $(RESULTS)/peers-$$model.json \
	        --html $(RESULTS)/peers-$$model.html || exit 1; \
	done
	$(BIN)/python bench/overhead.py $(BUNDLES)/bench-coder --json $(RESULTS)/overhead.json
	for model in smollm2 coder; do \
	    case $$model in smollm2) source=$(SMOLLM2);; *) source=$(CODER);; esac; \
	    $(BIN)/python bench/kernels.py "$$source" --home $(KERNELS) \
	        $(if $(LLAMA_PYTHON),--llama-python $(LLAMA_PYTHON)) \
	        --json $(RESULTS)/kernels-$$model.json || exit 1; \
	done
	set -e; for bits in 8 4; do \
	    $(call export_smollm2,-int$$bits,--weights int$$bits); \
	    $(call export_coder,-int$$bits,--weights int$$bits); \
	    for model in smollm2 coder; do \
	        case $$model in smollm2) drafters=$(DRAFTERS_smollm2);; *) drafters=$(DRAFTERS_coder);; esac; \
	        width=$$model-int$$bits; \
	        $(BIN)/specrt bench $(BUNDLES)/bench-$$width --drafters $$drafters --repeat 1 \
	            --json $(RESULTS)/same-$$width.json; \
	        test -z "$(GENAI_PYTHON)" || \
	            $(BIN)/specrt bench $(BUNDLES)/bench-$$width --drafters none --max-tokens 64 \
	                --repeat 1 $(GENAI) --peer-model onnxruntime-genai=$(GENAI_MODELS)/$$width \
	                --json $(RESULTS)/genai-$$width.json; \
	    done; \
	done
	$(BIN)/python bench/readme.py $(RESULTS) README.md

# build/ is removed first: setuptools would put what an older build left there into the wheel.
$(READY): pyproject.toml README.md $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	    "specrt needs Python 3.11 or newer as $(PYTHON); choose one: make PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -rf build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	rm -rf build
	touch $@
