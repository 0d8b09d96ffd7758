# `make` lists the targets. They need Python 3.11 or newer, Java 17 (for Spark) and make.

# The first Python that is new enough. Another one can be given: make PYTHON=/usr/bin/python3.12
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV ?= .venv
DEMO_VENV ?= .venv-demo
BIN := $(VENV)/bin
# Tests start some thousand Pythons: where they may not keep what they compile, each compiles all of it, which takes a quarter of a second.
export PYTHONDONTWRITEBYTECODE :=
UV := $(BIN)/python -m uv
# Number of rounds of `make crash`, `power`, `faults`, `network` and `crash-spark`.
COUNT ?= 200
# `make damage` damages every STEP-th byte, and cuts the power at each step of the disk in ROUNDS rounds of work.
STEP ?= 1
ROUNDS ?= 10
# `make simulate` runs SEEDS histories of OPERATIONS operations each; FIRST is the first seed.
SEEDS ?= 200
FIRST ?= 1
OPERATIONS ?= 1000
# Number of damaged inputs of `make fuzz`.
INPUTS ?= 1000000
# Size of the attacks, as a multiple of that in the tests: SCALE for `make bench-attacks`, FLOODS for `make fuzz`.
SCALE ?= 1
FLOODS ?= 3
# Number of waiting messages of `make load`; 100 million take 12 GB of disk.
MESSAGES ?= 100000000
# Duration of `make soak` in minutes.
MINUTES ?= 60
# Folders of `make harnesses`: brokers and disks that things happen to.
HARNESSES := $(addprefix spark_tests/,damage engine faults hostile)
PYTEST := PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python $(BIN)/python -m pytest

NEEDS_PYTHON = test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; say where: make PYTHON=/path/to/python3.11"; exit 1; }
WHEEL_SOURCES := setup.py README.md CHANGELOG.md $(shell find proto connector broker_core -name '*.py' -o -name '*.pyi' -o -name '*.proto')

NEEDS_JAVA = test -x "$$JAVA_HOME/bin/java" || command -v java >/dev/null || { echo "Spark needs Java 17 or newer: install it, or set JAVA_HOME"; exit 1; }

.DEFAULT_GOAL := help
.PHONY: help setup demo test check unit plain harnesses quick spark simulate bugs fuzz damage crash power faults network crash-spark bench bench-attacks bench-peers load soak protos wheel clean

help:  ## lists the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready  ## makes the virtual environment .venv with everything that the other targets need

# An editable install serves the command `mq` and the metadata. A .pth with the three source roots stands in for the finder that setuptools
# makes for several roots: that one hides packages from pkgutil (which Spark looks for sources with) and from mypy, and costs each Python that
# starts 20 ms.
$(VENV)/.ready: setup.py pyproject.toml CHANGELOG.md
	@$(NEEDS_PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --group dev -e '.[broker,spark]'
	$(BIN)/python -c "import pathlib, sysconfig; site = pathlib.Path(sysconfig.get_path('purelib')); [path.unlink() for path in site.glob('__editable__.pyspark_mq-*.pth')]; (site / 'pyspark_mq_roots.pth').write_text(''.join(str(pathlib.Path(root).resolve()) + '\n' for root in ('proto', 'connector', 'broker_core')))"
	@touch $@

demo: $(DEMO_VENV)/.ready  ## runs a whole job on real data: 336,776 flights through a broker that is killed half-way
	@$(NEEDS_JAVA)
	$(DEMO_VENV)/bin/python -m examples.flights.demo

# The environment of a user: the built wheel with its extras, and rich for the progress bars of the demo.
$(DEMO_VENV)/.ready: $(WHEEL_SOURCES)
	@$(NEEDS_PYTHON)
	@echo "setting up $(DEMO_VENV): the wheel, Spark (450 MB, once) and rich"
	@test -x $(DEMO_VENV)/bin/python || $(PYTHON) -m venv $(DEMO_VENV)
	@$(DEMO_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@rm -rf build dist/demo
	@$(DEMO_VENV)/bin/python -m uv build --quiet --wheel --out-dir dist/demo .
	@$(DEMO_VENV)/bin/python -m uv pip install --quiet --python $(DEMO_VENV)/bin/python --reinstall-package pyspark-mq "$$(ls dist/demo/*.whl)[broker,spark]" rich
	@touch $@

# Tests wait for processes, disks and clocks for much of their time: parts side by side take little more than the longest.
test: check  ## runs all tests, with lint and types; .ci/run calls it
	@$(NEEDS_JAVA)
	@echo "three parts side by side: with Spark, harnesses, the rest; each reports when it is done"
	@$(MAKE) --no-print-directory -j3 --output-sync=target spark harnesses quick

check: setup  ## checks lint, format, types and generated stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check

unit: setup  ## runs the quick tests that need no JVM
	$(PYTEST) -q -m 'not spark and not slow'

plain: setup  ## runs the tests that need no JVM
	$(PYTEST) -q --durations=10 -m 'not spark'

# The two halves of `plain`: tests that kill, damage or attack whole brokers, and all others.
harnesses: setup
	$(PYTEST) -q --durations=10 -m 'not spark' $(HARNESSES)

quick: setup
	$(PYTEST) -q --durations=10 -m 'not spark' $(HARNESSES:%=--ignore=%)

spark: setup $(VENV)/.classes  ## runs the tests that need Spark
	$(PYTEST) -q --durations=10 -m spark

# With an archive of Spark's classes, JVMs start in half the time. Tests also pass without it.
$(VENV)/.classes: $(VENV)/.ready
	@$(NEEDS_JAVA)
	@echo "writing an archive of Spark's classes, so that the JVMs of tests start faster"
	@$(BIN)/python -m spark_tests.support.spark_home 2>/dev/null || echo "it could not be written: JVMs start as usual"
	@touch $@

simulate: setup  ## runs a whole broker in SEEDS (200) random histories of OPERATIONS (1000); SEED=17 repeats one and shows its events
	$(BIN)/python -m spark_tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST)) --operations $(OPERATIONS)

bugs: setup  ## plants each bug of the catalogue (BUGS=text: those with the text in their names), and shows which check of which run caught it
	MQ_BUGS="$(BUGS)" $(BIN)/python -m spark_tests.planted

fuzz: setup  ## feeds INPUTS (1,000,000) damaged requests and replies to a broker and its clients; runs attacks at FLOODS (3) times their size in tests
	MQ_FUZZ_INPUTS=$(INPUTS) MQ_SIEGE_SCALE=$(FLOODS) $(PYTEST) -q -s spark_tests/hostile

damage: setup  ## damages a small data directory at every STEP-th byte (1) and by whole files; each case is recovered, or refused and repaired
	MQ_DAMAGE_STEP=$(STEP) MQ_POWER_STEPS_ROUNDS=$(ROUNDS) $(PYTEST) -q -s -m damage

crash: setup  ## kills a real broker under load COUNT times (200) and counts the rows
	MQ_CRASH_ROUNDS=$(COUNT) $(PYTEST) -q -s -m crash

power: setup  ## cuts the power of a real broker's disk COUNT times under load (needs root, ext4 and loop devices)
	MQ_POWER_ROUNDS=$(COUNT) $(PYTEST) -q -s -m power

faults: setup  ## fails, kills or stops a real broker in COUNT system calls under load; also full disks and stopped processes (needs strace, root)
	MQ_FAULT_ROUNDS=$(COUNT) $(PYTEST) -q -s -m faults

network: setup  ## cuts, delays and half-opens connections COUNT times under load, and drops answers after the commit
	MQ_NETWORK_ROUNDS=$(COUNT) $(PYTEST) -q -s -m network

crash-spark: setup  ## kills broker, Python workers or driver COUNT times at random steps, damages checkpoints, and checks that every row crosses once
	MQ_SPARK_CRASH_ROUNDS=$(COUNT) $(PYTEST) -q -s -m crash_spark

bench: setup  ## measures all speed figures and prints a table; about ten minutes
	$(BIN)/python -m benchmarks.bench

bench-attacks: setup  ## runs each attack beside a regular client and measures its latencies and the broker's memory; SCALE=3 = larger, ONLY=text = some
	$(BIN)/python -m benchmarks.attacks --scale $(SCALE) --only "$(ONLY)"

bench-peers: setup  ## measures ours, Spark's Kafka connector and an empty source, with ratios; downloads Kafka first
	$(BIN)/python -m benchmarks.peers

load: setup  ## measures with 100 million waiting messages (MESSAGES=n), 10,000 destinations, 1,000 idle consumers, 8,000 that share streams
	$(BIN)/python -m benchmarks.load --messages $(MESSAGES)

soak: setup  ## runs all kinds of clients for MINUTES (60): checks that memory and disk stay flat, and counts every row
	MQ_SOAK_MINUTES=$(MINUTES) $(PYTEST) -q -s spark_tests/faults/test_soak.py

protos: setup  ## generates the Python stubs beside the .proto files
	$(BIN)/python proto/generate.py

wheel: setup  ## builds dist/*.whl
	rm -rf build
	$(UV) build --wheel --out-dir dist .

clean:  ## removes everything that the other targets made, including .venv
	rm -rf $(VENV) $(DEMO_VENV) .venv-protos build dist .demo .peers .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
