# `make demo` and `make test` work on a fresh Debian machine: they install what is missing, and say so.

PYTHON ?= python3
# What Debian and Ubuntu call it: they have a package for each version, such as python3.11.
PACKAGE := $(or $(filter python3%,$(notdir $(PYTHON))),python3)
VENV := .venv
BIN := $(VENV)/bin
COMPILED := fastfuse/s3/openssl.pxd fastfuse/s3/tls.pyx fastfuse/s3/direct_get.h fastfuse/cache/kept_file.h \
    $(wildcard fastfuse/cache/*.pxd fastfuse/cache/*.pyx fastfuse/filesystem/kernel/*.pxd \
    fastfuse/filesystem/kernel/*.pxi fastfuse/filesystem/kernel/*.pyx)
SANITIZED := build/sanitized

.DEFAULT_GOAL := help
.PHONY: help demo test check pytest sanitize bench bench-advise bench-libraries soak launchers report-test alerts fuzz \
    readme system examples clean kernels system-kernels system-run system-dev system-bench system-alerts system-chromium \
    system-slurm system-boot

help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Mount a made data set from a local S3 server and read it at full speed.
	$(BIN)/fastfuse demo

# The tests start hundreds of processes: each would compile the package anew.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev ## Run the linters, the type checker and all tests.
	@$(MAKE) --no-print-directory -j2 check pytest

# The type checker takes what the tests leave of the cores: they wait a lot.
check: $(VENV)/.dev ## Run the linters and the type checker only.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	nice $(BIN)/mypy

# In the order of the files. Else the last ones would be those of few tests, some of which are the longest.
pytest: $(VENV)/.compiled
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder -m "not chromium"

# The checked build has a tree of its own: a module built with ASan cannot be loaded without it. ASan sees the memory of
# Python's objects only if malloc gives it, and its report only passes pytest if that leaves the file descriptors alone.
# It ends a worker, which the tests count. Python frees little as it ends, so leaks are not looked for. One test sends SIGBUS.
sanitize: $(VENV)/.dev ## Run the tests of the compiled modules under AddressSanitizer and UBSan (as root; 3 minutes).
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -r fastfuse pyproject.toml README.md LICENSE $(SANITIZED)
	CFLAGS="-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined" LDFLAGS="-fsanitize=address,undefined" \
	    $(BIN)/python -m pip install --quiet --no-deps --target $(SANITIZED)/installed ./$(SANITIZED)
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 PYTHONMALLOC=malloc \
	    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONSAFEPATH=1 \
	    PYTHONPATH=$(CURDIR)/$(SANITIZED)/installed:$(CURDIR) \
	    $(BIN)/pytest --import-mode=append --capture=sys tests/s3/test_tls.py tests/s3/test_tls_records.py \
	    tests/filesystem/test_interposed.py tests/filesystem/test_replies.py tests/semantics/test_threads.py \
	    tests/semantics/test_small_files.py tests/semantics/test_large_reads.py tests/semantics/test_files_ahead.py \
	    tests/cache/test_mount.py tests/cache/test_shared.py

bench: $(VENV)/.bench ## Measure beside raw GETs, FUSE alone and the peers (15 minutes, on a quiet machine).
	$(BIN)/python -m bench --check

bench-advise: $(VENV)/.bench ## Run a job in each mode beside what `fastfuse advise` estimates (5 minutes).
	$(BIN)/python -m bench.scenarios

bench-libraries: $(VENV)/.bench ## Read as libraries do, and count the bytes fetched (25 minutes).
	$(BIN)/python -m pip install --quiet --editable '.[libraries]'
	$(BIN)/python -m bench.libraries

SOAK_SECONDS ?= 600
SOAK_SEED ?= 1

soak: $(VENV)/.bench ## Disturb a mount in every way while every byte is compared (10 minutes; SOAK_SECONDS, SOAK_SEED).
	nice $(BIN)/python -m bench.soak --seconds $(SOAK_SECONDS) --seed $(SOAK_SEED)
	nice $(BIN)/python -m bench.soak.flips

# A job that is ended by its own time-out is taken down; one that is ended with pytest leaves its daemons.
launchers: $(VENV)/.launchers | system-slurm ## Run jobs under a real Slurm (Debian's slurm-wlm and munge), torchrun and Ray (5 minutes).
	$(BIN)/pytest -o faulthandler_timeout=600 -m launchers tests/launchers

report-test: $(VENV)/.dev | system-chromium ## Open the page of `fastfuse report` in a real browser (takes Debian's chromium; a minute).
	$(BIN)/pytest -m chromium tests/report

alerts: $(VENV)/.dev | system-alerts ## Have a real Prometheus check the alert rules and the dashboard's queries (takes Debian's prometheus).
	$(BIN)/pytest tests/deploy/test_queries.py

FUZZ_SECONDS ?= 600

fuzz: $(VENV)/.fuzz ## Fuzz each parser of what others send (10 minutes each; FUZZ_SECONDS, FUZZ_TARGET).
	nice $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGET)

readme: $(VENV)/.dev | system-boot ## Run the commands of README.md and docs/USAGE.md on a fresh Debian (as root; 10 minutes; Docker's, too, if it is here).
	$(BIN)/python -m tests.docs.fresh

# An environment of its own: TensorFlow wants other versions than the tests. EXAMPLES_PIP may name where PyTorch without
# CUDA is found.
EXAMPLES_PIP ?=

examples: $(VENV)/.dev ## Run docs/EXAMPLES.md with the four libraries (takes 3 GB of disk; 5 minutes).
	$(PYTHON) -m venv build/examples
	build/examples/bin/python -m pip install --quiet $(EXAMPLES_PIP) datasets tensorflow-cpu torch webdataset
	$(BIN)/python -m tests.docs.examples build/examples/bin/python

system: $(VENV)/.dev | system-boot ## Boot a fresh Debian under systemd, and try package, unit and fstab (as root; 10 minutes).
	$(BIN)/python -m tests.system

KERNEL ?= *

kernels: $(VENV)/.dev | system-boot system-kernels ## Run the tests of the mount on older kernels in QEMU (as root; takes 12 GB; an hour; KERNEL=5.10 for one).
	$(BIN)/python -m tests.system.kernels --only '$(KERNEL)'

docs/architecture.svg: docs/architecture.dot # takes Debian's graphviz
	dot -Tsvg $< -o $@

clean: ## Remove what was installed and built here.
	rm -rf $(VENV) build dist fastfuse.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find fastfuse \( -name '*.c' -o -name '*.so' \) -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: an environment is made again only when pyproject.toml or what is compiled changes.
$(VENV)/.demo: pyproject.toml $(COMPILED) | system-run
	@echo "== installing fastfuse into $(VENV) (a minute; pyfuse3 and five modules of our own are compiled)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(COMPILED) | system-run system-dev
	@echo "== installing fastfuse and its development tools into $(VENV) (a minute or two; pyfuse3 is compiled)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev]' # most of it is never imported
	@touch $@ $(VENV)/.demo

# Each process of the tests would compile and rewrite all modules itself.
$(VENV)/.compiled: $(VENV)/.dev
	@$(BIN)/pytest --collect-only -qq > /dev/null || true # the tests say what is wrong
	@touch $@

$(VENV)/.bench: pyproject.toml $(COMPILED) | system-run system-bench
	@echo "== installing fastfuse and what its bench needs into $(VENV) (a minute or two; pyfuse3 is compiled)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@ $(VENV)/.demo

$(VENV)/.fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[fuzz]'
	@touch $@

# A PyTorch without CUDA where its index can be reached. Tests that read with PyTorch find it, too.
$(VENV)/.launchers: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[launchers]' \
	    --extra-index-url https://download.pytorch.org/whl/cpu
	@touch $@

# Debian's packages, each behind the question whether what it brings is there: Python may be pyenv's, and the rest
# may have come from anywhere.
system-run:
	@missing=; \
	need() { package=$$1; shift; "$$@" > /dev/null 2>&1 || missing="$$missing $$package"; }; \
	need fuse3 command -v fusermount3; \
	need pkg-config command -v pkg-config; \
	need libfuse3-dev pkg-config --exists fuse3; \
	need libssl-dev pkg-config --exists openssl; \
	need libxxhash-dev test -e /usr/include/xxhash.h; \
	need gcc command -v gcc; \
	need libc6-dev test -e /usr/include/stdlib.h; \
	need $(PACKAGE) command -v $(PYTHON); \
	need $(PACKAGE)-venv $(PYTHON) -c 'import ensurepip, venv'; \
	need $(PACKAGE)-dev $(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'; \
	$(install-missing); \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "fastfuse needs Python 3.11 or newer: make PYTHON=python3.11 ..." >&2; exit 1; }

# `systemd-analyze verify` checks the unit.
system-dev:
	@missing=; command -v systemd-analyze > /dev/null || missing=systemd; $(install-missing)

# Makes the certificates of the servers that speak TLS.
system-bench:
	@missing=; command -v openssl > /dev/null || missing=openssl; $(install-missing)

system-alerts:
	@missing=; command -v promtool > /dev/null || missing=prometheus; $(install-missing)

system-chromium:
	@missing=; command -v chromium > /dev/null || missing=chromium; $(install-missing)

system-slurm:
	@missing=; command -v munged > /dev/null && command -v slurmd > /dev/null || missing="slurm-wlm munge"; \
	$(install-missing)

system-boot:
	@missing=; command -v debootstrap > /dev/null || missing=debootstrap; \
	command -v systemd-nspawn > /dev/null || missing="$$missing systemd-container"; $(install-missing)

system-kernels:
	@missing=; command -v qemu-system-x86_64 > /dev/null || missing=qemu-system-x86; $(install-missing)

# A fresh machine often upgrades itself, so that apt-get has to wait for the lock.
define install-missing
if [ -n "$$missing" ]; then \
    command -v apt-get > /dev/null \
        || { echo "please install what Debian calls:$$missing" >&2; exit 1; }; \
    if [ "$$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi; \
    [ -z "$$sudo" ] || command -v sudo > /dev/null \
        || { echo "please install as root:$$missing" >&2; exit 1; }; \
    echo "== installing Debian packages: $$missing"; \
    $$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install \
        -o DPkg::Lock::Timeout=300 -y -q --no-install-recommends $$missing || exit 1; \
fi
endef
