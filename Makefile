# Every target sets up what it needs. `make demo` runs the main job, `make test` runs the tests.

ROOTS := core wire cli sdk patterns broker pipeline examples
SOURCES := pyproject.toml setup.py $(shell find $(ROOTS) -name '*.py' 2>/dev/null)
# The first that really runs: a shim of a version manager may exist and fail.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PYTHON := $(PYTHON)
# The versions of constraints.txt, also of what builds; bytecode is made at the first import, since most of it is never imported.
PIP_FLAGS := -qq --disable-pip-version-check --root-user-action=ignore --no-compile
PIP_LOCK := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
# What setuptools leaves in the source folder
BUILD_LEFTOVERS := build/lib* build/bdist.* build/temp.* warrenmq.egg-info
export ORDERS
# Each test process would compile again what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check changed page-check test test-all test-compiled nightly lock lint chaos migration damage soak conformance fuzz docs docs-check bench bench-full bench-hot dist clean

demo: .venv/.demo system-runtime
	.venv/bin/warren demo orders $(if $(ORDERS),--file "$(ORDERS)")

comma := ,

# A command and how long it took: $(call timed,NAME,COMMAND)
timed = @start=$$(date +%s) && $(2) && echo "$(1): $$(( $$(date +%s) - start )) s"

# While you work: lint without pyright, and the tests that start no process. About a minute.
check: .venv/.tests .venv/.lint
	$(call timed,make check,$(MAKE) --no-print-directory --output-sync=target -j2 lint check-tests)

# Four processes at a time, so that two cores are busy while two of them wait; a file's tests in one of them. One after the
# other: make test PARALLEL= .
PARALLEL ?= -n 4 --dist loadfile --no-loadscope-reorder
# Further options of pytest for every target that runs it
PYTEST_FLAGS ?=
PYTEST = .venv/bin/pytest -q $(PARALLEL) $(PYTEST_FLAGS)
.PHONY: check-tests
check-tests: .venv/.tests
	$(PYTEST) --tier check

# The tests of the packages that a change touches: what is not committed, or what differs from a commit with BASE=main
BASE ?= HEAD
changed: .venv/.tests system-runtime system-postgresql
	@tests=$$(.venv/bin/python -m tests.ci.changed --base "$(BASE)") && if [ -n "$$tests" ]; then \
		echo "make changed: $$tests" && $(PYTEST) --tier test $$tests; else echo "make changed: nothing to test"; fi

# Before you commit: all that shows that this machine's Warren works, on one server of each kind. Five minutes on two cores.
test: .venv/.tests system-runtime system-postgresql
	$(call timed,make test,$(PYTEST) --tier test)

# Every night: all that takes too long before each merge, in one command that goes on after a failure; the results stand in
# build/nightly/report.md
nightly:
	.ci/nightly

# Everything: also kills, RabbitMQ 3.10, Spark clusters, the documentation's programs, models in full, pyright.
test-all: .venv/.tests .venv/.lint .venv/.types system-runtime system-rabbitmq system-postgresql system-prometheus
	$(call timed,make test-all,$(PYTEST))

# The compiled build, with the tests of what is compiled: wire and broker. What compares with RabbitMQ does so above; the HTTP API
# and the definitions database are not compiled. TIER: that of the tests, as in tests/support/tiers.py
COMPILED_TESTS = tests/unit/wire tests/unit/store tests/broker --ignore tests/broker/http_api \
	--ignore tests/broker/test_definitions_damage.py
TIER ?= all
test-compiled: .venv-compiled/.installed system-runtime
	$(call timed,make test-compiled,.venv-compiled/bin/pytest -q $(PARALLEL) $(PYTEST_FLAGS) --tier $(TIER) -k "not rabbit" $(COMPILED_TESTS))

# SDK and patterns on uvloop, the event loop of uvicorn[standard]
.PHONY: test-uvloop
test-uvloop: .venv/.tests system-runtime system-rabbitmq system-postgresql
	$(call timed,make test-uvloop,.venv/bin/pytest -q $(PARALLEL) $(PYTEST_FLAGS) --event-loop uvloop tests/sdk tests/patterns)

# Patterns on the oldest versions of the stores' clients that pyproject.toml allows
.PHONY: test-oldest
test-oldest: .venv/.oldest system-runtime system-rabbitmq system-postgresql
	$(call timed,make test-oldest,PYTHONPATH="$(CURDIR)/.venv/oldest" .venv/bin/pytest -q $(PARALLEL) $(PYTEST_FLAGS) tests/patterns)

.venv/.oldest: .venv/.tests tests/ci/oldest_versions.py
	rm -rf .venv/oldest
	.venv/bin/pip install $(PIP_FLAGS) --no-deps --target .venv/oldest $$(.venv/bin/python -m tests.ci.oldest_versions redis sql)
	touch $@

# Without what Windows lacks: SDK, test kit, store and embedded broker
.PHONY: test-portable
test-portable: .venv/.tests
	$(call timed,make test-portable,.venv/bin/python -m tests.portability.whole_run)

# Inject faults into a broker under load, and check the history of its clients: make chaos ROUNDS=200 SEED=7
ROUNDS ?= 20
chaos: .venv/.tests
	.venv/bin/python -m tests.faults.chaos --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

# Kill, freeze, cut off and restart the nodes of a RabbitMQ cluster under the order service and the patterns: make cluster FAULTS=50 SEED=7
FAULTS ?= 4
.PHONY: cluster
cluster: .venv/.tests system-rabbitmq4
	.venv/bin/python -m tests.faults.cluster --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results $(RESULTS))

# Move messages from one broker to another under traffic, with kills: make migration MESSAGES=1000000 SOURCE=warren TARGET=4.3
migration: .venv/.tests
	.venv/bin/python -m tests.faults.migration --messages $(or $(MESSAGES),1000000) --source $(or $(SOURCE),warren) \
	--target $(or $(TARGET),4.3) $(if $(SEED),--seed $(SEED))

# Damage each kind of file of a data folder in each way, and judge what the broker makes of it: make damage SEEDS=3 SEED=7
# With PAGE=1, docs/damage.md is written from the results.
damage: .venv/.tests
	.venv/bin/python -m tests.faults.damage --seeds $(or $(SEEDS),1) $(if $(SEED),--first-seed $(SEED)) $(if $(PAGE),--page)

# What must hold over large numbers, with its figures: make soak PARTS=once SHARE=0.05 SEED=7
SHARE ?= 1
PARTS ?=
soak: .venv/.tests system-runtime system-postgresql
	.venv/bin/python -m tests.faults.soak $(PARTS) --share $(SHARE) $(if $(SEED),--seed $(SEED))

# The same scripts on Warren and on RabbitMQ, and Warren's tests on RabbitMQ. SCRIPTS: how many random ones of each kind;
# SEEDS=N instead: N that were never played before. COMPAT: the version of RabbitMQ, 4.3 or 3.10.
SPARK_ON_THE_WIRE = $(patsubst %,tests/spark/test_%.py,broker_connection datasource stream_source several_streams stream_faults sink \
	spool demo_shop delivery_audit_planted)
CONFORMANCE_TESTS ?= tests/conformance tests/broker tests/sdk tests/patterns tests/cli tests/testing $(SPARK_ON_THE_WIRE)
SCRIPTS ?= 150
SEEDS ?=
COMPAT ?= 4.3
conformance: .venv/.tests system-runtime $(if $(filter 4%,$(COMPAT)),system-rabbitmq4,system-rabbitmq) system-postgresql
	SCRIPTS=$(SCRIPTS) SEEDS=$(SEEDS) $(PYTEST) --amqp-url rabbitmq --compat $(COMPAT) \
		$(CONFORMANCE_TESTS) \
		--ignore tests/broker/test_bench.py

# Malformed and mistimed frames, handshakes and HTTP requests: make fuzz N=1000000 SEED=7
N ?= 100000
fuzz: .venv/.tests
	.venv/bin/python -m tests.faults.fuzz --cases $(N) $(if $(SEED),--seed $(SEED))

# Attack a broker by all that a peer gives: too much, too deep, too slow, too often; with the longest wait of another client and the
# memory: make attacks ONLY="wrong passwords"
ONLY ?=
.PHONY: attacks
attacks: .venv/.tests
	.venv/bin/python -m tests.faults.attacks --only "$(ONLY)"

lint: .venv/.tests .venv/.lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(ROOTS) tests benchmarks
	.venv/bin/lint-imports

docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

# The site as readers see it: each page in headless Chromium, at three widths, light and dark. About ten minutes; less with
# make docs-check PAGES="handle.html patterns/once.html"
PAGES ?=
docs-check: .venv/.tests .venv/.docs system-chromium
	.venv/bin/pytest -q $(PYTEST_FLAGS) tests/site
	.venv/bin/python -m tests.site.check $(addprefix --page ,$(PAGES))

# The management page of the broker in headless Chromium
page-check: .venv/.tests .venv/.docs system-chromium
	$(call timed,make page-check,$(PYTEST) tests/page)

# Processor time a message of this checkout against another commit: make bench-hot BASE=main~1
bench-hot: .venv/.tests .venv/.lint
	.venv/bin/python -m benchmarks.hot_path --base "$(BASE)"

# Warren, plain and compiled, beside RabbitMQ on this machine (and LAVINMQ=path of a binary), and docs/benchmarks.md of it:
# under 20 minutes. A part of it, only printed: make bench ROWS=confirmed,window-1,idle RUNS=3
ROWS ?=
RUNS ?= 5
LAVINMQ ?=
NOTE ?=
COMPARE = .venv/bin/python -m benchmarks.comparison --runs $(RUNS) --rows "$(ROWS)" --lavinmq "$(LAVINMQ)" --note "$(NOTE)"
bench: .venv/.tests .venv-compiled/.installed system-rabbitmq
	$(COMPARE)

# The same with further loads, what connections and queues cost, the literature's claims, and a backlog of COUNT messages: hours.
COUNT ?= 10000000
bench-full: .venv/.tests .venv-compiled/.installed system-rabbitmq
	$(COMPARE) --full --count $(COUNT)

# The packages of a release: source, a wheel for any platform, and a compiled one for this machine. Both wheels are tried in empty
# environments.
dist: .venv/.release | system-compiler
	rm -rf dist $(BUILD_LEFTOVERS)
	$(PIP_LOCK) WARREN_COMPILE=0 .venv/bin/python -m build
	$(PIP_LOCK) WARREN_COMPILE=1 .venv/bin/python -m build --wheel
	.venv/bin/twine check --strict dist/*
	for wheel in dist/*.whl; do PYTHON="$(CURDIR)/.venv/bin/python" .ci/try-wheel $$wheel || exit 1; done
	rm -rf $(BUILD_LEFTOVERS)

clean:
	rm -rf .venv .venv-compiled build dist site warrenmq.egg-info

.PHONY: system-python system-runtime system-compiler system-rabbitmq system-rabbitmq4 system-postgresql system-prometheus system-chromium
system-python system-runtime system-compiler system-rabbitmq system-rabbitmq4 system-postgresql system-prometheus system-chromium: system-%:
	@PYTHON="$(PYTHON)" .ci/system $*

# One environment, filled by what is asked for: `make demo` installs no test tools, `make test` no linters.
.venv/.demo: EXTRAS = redis,spark
.venv/.tests: EXTRAS = tests
.venv/.lint: EXTRAS = lint
.venv/.types: EXTRAS = types
.venv/.docs: EXTRAS = docs
.venv/.release: EXTRAS = release
# What .ci/run needs, at once: each installation takes its time even if little is missing.
.venv/.checks: EXTRAS = tests,lint,docs
.venv/.nightly: EXTRAS = tests,lint,types,docs,release
.venv/.demo .venv/.tests .venv/.lint .venv/.types .venv/.docs .venv/.release .venv/.checks .venv/.nightly: pyproject.toml setup.py constraints.txt | .venv/bin/python
	$(PIP_LOCK) WARREN_COMPILE=0 .venv/bin/pip install $(PIP_FLAGS) -e '.[$(EXTRAS)]'
	rm -rf $(BUILD_LEFTOVERS)
	touch $@ $(patsubst %,.venv/.%,$(subst $(comma), ,$(EXTRAS)))

.venv/bin/python: | system-python
	$(PYTHON) -m venv .venv

# The compiled build is installed, not linked, and built from a copy: its tests must not find the sources, nor an older build's
# leftovers.
COPY_SOURCES = rm -rf .venv-compiled/src && mkdir .venv-compiled/src && \
	cp -r pyproject.toml setup.py README.md LICENSE $(ROOTS) .venv-compiled/src/
.venv-compiled/.ready: pyproject.toml setup.py constraints.txt | system-python system-compiler
	test -x .venv-compiled/bin/python || $(PYTHON) -m venv .venv-compiled
	$(COPY_SOURCES)
	$(PIP_LOCK) WARREN_COMPILE=0 .venv-compiled/bin/pip install $(PIP_FLAGS) './.venv-compiled/src[tests]'
	touch $@

.PHONY: compiled
compiled: .venv-compiled/.installed

.venv-compiled/.installed: .venv-compiled/.ready $(SOURCES)
	$(COPY_SOURCES)
	$(PIP_LOCK) WARREN_COMPILE=1 .venv-compiled/bin/pip install $(PIP_FLAGS) --no-deps --force-reinstall .venv-compiled/src
	cd / && "$(CURDIR)/.venv-compiled/bin/python" -c 'import warren.wire.content as m; assert m.__file__.endswith(".so")'
	rm -rf .venv-compiled/src
	touch $@

# constraints.txt: the versions of what the targets above install, for every system and Python that Warren supports. It changes only
# what pyproject.toml asks for anew; the newest of all: make lock UPGRADE=--upgrade
UPGRADE ?=
lock: .venv/bin/python
	.venv/bin/pip install $(PIP_FLAGS) $$(grep '^uv==' constraints.txt || echo uv)
	.venv/bin/uv pip compile --quiet --universal --all-extras --group build $(UPGRADE) --no-annotate \
		--custom-compile-command "make lock" pyproject.toml --output-file constraints.txt
