# Everything made here lies in .venv/ and var/, and is used again next time. `make help` says what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLING := $(VENV)/.installing

.DEFAULT_GOAL := help
.PHONY: help setup engine demo serve test check bench truth lock secrets stop clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(INSTALLED)  ## the Python environment in .venv/ from requirements-dev.lock

# An environment whose installation was cut short is thrown away: half a package cannot be mended.
$(INSTALLED): requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@if [ -e $(INSTALLING) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then rm -rf $(VENV); fi
	@if [ ! -e $(VENV) ]; then echo "== Making $(VENV)"; $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module does not work here (Debian: apt-get install python3-venv)." >&2; exit 1; }; fi
	@touch $(INSTALLING)
	@echo "== Installing the locked packages into $(VENV) (some 300 MB, once)"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input --require-hashes -r requirements-dev.lock
	@rm $(INSTALLING) && touch $@

engine: setup  ## the serving engine (vLLM) in its own environment under var/engines/
	@$(if $(ENGINE_PYTHON),echo "== Engine: $(ENGINE_PYTHON)",$(BIN)/python -m runner engine install)

demo: setup engine  ## measure a real engine with and without speculation, and show the verdict (EXIT=1: end then)
	@$(if $(MODEL),echo "== Model: $(MODEL)",$(BIN)/python -m runner models demo)
	@$(BIN)/python manage.py demo $(if $(EXIT),--exit)

serve: setup  ## the site on this machine (PORT=8000), until Ctrl-C
	@$(BIN)/python manage.py serve $(if $(PORT),--port $(PORT))

test: setup engine  ## every test: the quick ones, those with a real engine, those in a browser
	@$(BIN)/python -m runner models demo && $(BIN)/python -m runner models tiny
	@was="$$($(BIN)/python -m webapp.core.embedded status)"; \
	$(BIN)/pytest && $(BIN)/pytest -m quiet && $(BIN)/pytest -m engine && $(BIN)/pytest -m browser; code=$$?; \
	case "$$was" in *running*) ;; *) $(BIN)/python -m webapp.core.embedded stop >/dev/null;; esac; exit $$code

check: setup  ## every static check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/lint-imports --no-logo
	@$(BIN)/python manage.py services start
	$(BIN)/python -W error manage.py makemigrations --check --dry-run
	DRAFTPROOF_BASE_URL=https://draftproof.example.com \
	  DRAFTPROOF_SECRET_KEY="$$($(BIN)/python -c 'import secrets; print(secrets.token_urlsafe(64))')" \
	  $(BIN)/python manage.py check --deploy --fail-level WARNING

truth: setup  ## do the intervals hold what they promise? (docs/truth.md)
	@$(BIN)/python -m tests.truth --write

bench: setup engine  ## load generators beside a known truth, the harness's share, what a comparison costs, how fast pages answer (ONLY="ruler engine harness comparison pages")
	@$(BIN)/python -m tests.bench $(ONLY)

# Exact versions with the hashes of all their files; no address of any registry gets in.
COMPILE := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --generate-hashes \
  --strip-extras --allow-unsafe --no-header --no-config --no-emit-options --no-emit-index-url \
  --no-emit-find-links --no-emit-trusted-host

lock: setup  ## choose the newest versions that pyproject.toml allows and write both lock files
	$(COMPILE) --output-file requirements.lock pyproject.toml
	$(COMPILE) --constraint requirements.lock --extra dev --output-file requirements-dev.lock pyproject.toml

secrets: setup  ## random secrets for compose.yaml in var/secrets/
	@$(BIN)/python manage.py make_secrets

stop:  ## stop the embedded PostgreSQL and Valkey
	@if [ -x $(BIN)/python ]; then $(BIN)/python manage.py services stop; fi

clean:  ## delete .venv/ and var/: the database, samples, models and engines too (SURE=1)
	@[ -n "$(SURE)" ] || { echo "This deletes the database, samples, models and engines: make clean SURE=1" >&2; exit 1; }
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m webapp.core.embedded remove; fi
	rm -rf $(VENV) var
