# Two commands from a bare clone: `make run` does the main job, `make test` passes the tests.
PY ?= python3
PYTHON ?= 3.12
TWIN_PY ?= python$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The longest file first: the last one to start would run alone at the end.
TESTS := tests/e2e tests/unit tests/cpu tests/cheats

.PHONY: run test test-all test-gpu lint docs bundle twin clean

$(READY): pyproject.toml constraints.txt
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PY=python3.x"; exit 1; }
	$(PY) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt setuptools torch triton
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev,cuda]'
	@touch $@

# What keeps two cores busy leaves a large GPU waiting for launches (docs/measured.md#idle).
HAS_GPU ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU ' && \
  $(BIN)/python -c 'import torch; print(torch.cuda.is_available() or "")')
ON_CPU := examples/models/llama.py:build --top 3 --budget 4m30s
ON_GPU := examples/models/llama.py:build_loss --top 2 --budget 4m

run: $(READY)
	@$(BIN)/kernelwright optimize $(if $(HAS_GPU),$(ON_GPU),$(ON_CPU)) --max-pairs 40 --processes 3 --home .kernelwright

lint: $(READY)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python docs/generate.py --sizes

test: $(READY) lint
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 40 --durations-min 5 -m "not gpu and not slow" $(TESTS)

test-all: $(READY) lint
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu" $(TESTS)

test-gpu: $(READY)
	@$(BIN)/pytest -m gpu tests

docs: $(READY)
	@$(BIN)/python docs/generate.py

# What children import whenever one is started, and none of them may write bytecode. With all of it the bundle has 81 MiB.
COMPILED := $(addprefix kernelwright/,core judge worker model backends ops hardware store) \
  pydantic annotated_types typing_inspection typing_extensions.py

# The package and what a GPU node lacks, for `PYTHONPATH=build/offline python3 -m kernelwright` without a network.
bundle: $(READY)
	@rm -rf build/offline && mkdir -p build/offline
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --only-binary :all: \
	  --python-version $(PYTHON) --implementation cp --target build/offline -r bundle.txt -c constraints.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation \
	  --target build/offline . && rm -rf build/lib build/bdist.* build/offline/bin
	@find build/offline -depth -type d \( -name tests -o -name testing -o -name __pycache__ \) \
	  -not -path 'build/offline/kernelwright/*' -exec rm -rf {} +
	@find build/offline -name '*.so' -exec strip --strip-unneeded {} + && find build/offline -name '*.pyx' -delete
	@# By content: the files' times are others once they are copied. Bytecode of another minor version is dead weight.
	@cd build/offline && if [ "$$($(TWIN_PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>&1)" = $(PYTHON) ]; \
	  then $(TWIN_PY) -m compileall -q --invalidation-mode checked-hash $(COMPILED); \
	  else echo "no bytecode: $(TWIN_PY) is no Python $(PYTHON) (TWIN_PY=...)"; fi
	@du -sm build/offline | awk '{ print "build/offline: " $$1 " MiB"; exit $$1 >= 60 }'

# A copy of the GPU node's Python stack, to try things in before they go there; needs Python $(PYTHON) (TWIN_PY=...), 5 GB, no GPU.
twin: bundle
	$(TWIN_PY) -m venv .twin
	.twin/bin/pip install --quiet --disable-pip-version-check -r twin.txt
	PYTHONPATH=build/offline .twin/bin/python -m kernelwright doctor

clean:
	rm -rf $(VENV) .twin build .mypy_cache .ruff_cache .pytest_cache
