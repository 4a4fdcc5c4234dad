# Every target creates the virtual environment if it is missing, installs into it, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Tests start hundreds of interpreters: compiled modules are kept, whatever the shell asks for.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed

.PHONY: demo test test-broad every-change test-slow test-real test-models test-ray test-mcp test-integrations test-trainers test-clients test-pythons test-notebook test-all campaign coverage fuzz mutation check docs docs-pictures settings-page models-page compat-matrix viewer-libraries viewer-pictures hub-pictures wheel release docker shim clean bench-smoke

demo: $(STAMP)  ## the whole loop on Tic-Tac-Toe; ARGS="--seed 1" for another seed
	$(BIN)/rove demo tictactoe $(ARGS)

test: $(STAMP)  ## everything that is not slow
	$(BIN)/python -m pytest -m "not slow" -q -n 2 --dist loadfile --timeout 600 $(ARGS)

test-broad: $(STAMP)  ## what every change must pass too, and takes longer: whole processes, crowds, long tables
	$(BIN)/python -m pytest -m broad -q -n 2 --dist worksteal --timeout 600 $(ARGS)

every-change: $(STAMP)  ## `test` and `test-broad` in one session, which collects the tests once; three workers, as many broad tests wait
	$(BIN)/python -m pytest -m "broad or not slow" -q -n 3 --dist worksteal --timeout 600 $(ARGS)

test-slow: $(STAMP)  ## the rest, and all of the inputs that hypothesis draws, of which `test` tries an eighth
	ROVE_EXAMPLES=all $(BIN)/python -m pytest -m "(slow and not broad or hypothesis) and not real and not matrix" -q --timeout 1800 $(ARGS)

check: $(STAMP)  ## format, lint, types, layers, and what Windows lacks
	$(BIN)/ruff format --check hatch_build.py rove environments examples tests benchmarks shim docs/site
	$(BIN)/ruff check hatch_build.py rove environments examples tests benchmarks shim docs/site
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m "not broad" tests/docs/test_glossary.py tests/test_windows.py

test-real: $(STAMP)  ## tests with SmolLM2-135M, which is downloaded once
	$(BIN)/python -m pytest -m real -q $(ARGS) tests/real

test-models: $(STAMP)  ## every family of models: rollouts, SFT and RL, stopped and resumed, and the result in transformers; ARGS="-k qwen3" for some
	$(BIN)/python -m pytest -m matrix -q -n 2 --dist loadgroup --timeout 600 --matrix-results build/models_matrix.json $(ARGS) tests/models_matrix

models-page: $(STAMP)  ## the table of families in docs/models.md, from the results of test-models
	$(MAKE) test-models
	$(BIN)/python tests/support/models_page.py build/models_matrix.json

docs: $(STAMP)  ## the documentation site, into build/site
	$(BIN)/python docs/site/site_build.py

docs-pictures: $(STAMP)  ## docs/site/pictures/*.png, of the built site, and docs/learning_curve-*.svg
	$(BIN)/python docs/site/learning_curve.py
	$(BIN)/python docs/site/pictures.py

settings-page: $(STAMP)  ## docs/settings.md and rove/viewer/defaults.json, from the settings
	$(BIN)/python tests/support/settings_page.py

compat-matrix: $(STAMP)  ## docs/compat_matrix.md, of the packages in tests and environments
	-$(BIN)/rove check tests/compat_packages environments -o docs/compat_matrix.md  # judge_qa has no judge, group_rank a reward that raises: exit status 1

viewer-libraries: $(STAMP)  ## the viewer's JavaScript libraries from npm, pinned by version and digest
	$(BIN)/python tests/support/viewer_libraries.py

viewer-pictures: $(STAMP)  ## docs/viewer/*.png, of runs made as docs/viewer.md says; RUNS=folder
	$(BIN)/python tests/support/viewer_pictures.py $(or $(RUNS),runs)

hub-pictures: $(STAMP)  ## docs/hub/*.png, of a hub that it makes
	$(BIN)/python tests/support/hub_pictures.py

test-ray: $(STAMP)  ## environments on a Ray cluster, of three nodes on this machine
	rm -rf build/ray && $(BIN)/python -m pip install --quiet --target build/ray "ray>=2.60" -c constraints.txt
	PYTHONPATH=$(CURDIR)/build/ray $(BIN)/python -m pytest -q tests/remote/test_ray.py

test-mcp: $(STAMP)  ## MCPEnv with the oldest and the newest SDKs it is made for
	for sdk in "mcp==1.24.*" "mcp<2" "mcp<3"; do \
		rm -rf build/mcp && $(BIN)/python -m pip install --quiet --target build/mcp "$$sdk" && \
		PYTHONPATH=$(CURDIR)/build/mcp $(BIN)/python -m pytest -q tests/mcp/test_mcp.py tests/envs/test_mcp.py || exit 1; \
	done

test-integrations: $(STAMP)  ## other libraries' environments, the slow tests too; OpenEnv's package apart, which wants an older SDK of MCP
	$(BIN)/python -m pytest -q tests/integrations/test_integrations.py tests/integrations/test_gym.py tests/integrations/test_reasoning_gym.py tests/integrations/test_text_arena.py \
		tests/integrations/test_known_defects.py tests/compat/test_integrations.py
	rm -rf build/openenv && $(BIN)/python -m pip install --quiet --target build/openenv openenv "mcp<2"
	PYTHONPATH=$(CURDIR)/build/openenv $(BIN)/python -m pytest -q tests/integrations/test_open_env.py
	test -d build/tasksets || $(PYTHON) -m venv build/tasksets
	build/tasksets/bin/python -m pip install --quiet "verifiers>=0.4,<0.5"
	ROVE_VERIFIERS_V1=$(CURDIR)/build/tasksets/bin/python $(BIN)/python -m pytest -q tests/integrations/test_taskset.py

# pip reads the settings that name a CPU build of torch; uv does not, and installs 5 GB of CUDA libraries.
test-trainers: $(STAMP)  ## rove's environments in other people's trainers, each in a separate virtual environment
	test -d build/trainers/verifiers || $(PYTHON) -m venv build/trainers/verifiers
	$(BIN)/uv pip install --quiet --python build/trainers/verifiers/bin/python -c constraints.txt -r tests/trainer_verifiers.txt -e .
	$(BIN)/uv pip check --python build/trainers/verifiers/bin/python
	test -d build/trainers/trl || $(PYTHON) -m venv build/trainers/trl
	build/trainers/trl/bin/python -m pip install --quiet -c constraints.txt "torch==2.13.0"
	$(BIN)/uv pip install --quiet --python build/trainers/trl/bin/python -c constraints.txt -r tests/trainer_trl.txt -e ".[train,hf]"
	$(BIN)/uv pip check --python build/trainers/trl/bin/python
	TRL_EXPERIMENTAL_SILENCE=1 build/trainers/trl/bin/python -m pytest -q tests/integrations/test_trl.py
	ROVE_VERIFIERS_V1=$(CURDIR)/build/trainers/verifiers/bin/python ROVE_OPENENV=$(CURDIR)/build/trainers/trl/bin/python $(BIN)/python -m pytest -q tests/integrations/test_verifiers_v1.py tests/integrations/test_open_env_consumers.py
	# pip installs torch, because it finds builds for the CPU in the folders of its settings; uv then keeps it.
	for name in cookbook skyrl; do \
		test -d build/trainers/$$name || $(PYTHON) -m venv build/trainers/$$name; \
		build/trainers/$$name/bin/python -m pip install --quiet -c constraints.txt "torch==2.13.0" || exit 1; \
	done
	$(BIN)/uv pip install --quiet --python build/trainers/cookbook/bin/python --overrides tests/trainer_cookbook_overrides.txt -r tests/trainer_cookbook.txt -e ".[train]"
	build/trainers/cookbook/bin/python -m pytest -q tests/integrations/test_tinker_cookbook.py
	$(BIN)/uv pip install --quiet --python build/trainers/skyrl/bin/python -r tests/trainer_skyrl.txt -e ".[train]"
	build/trainers/skyrl/bin/python -m pytest -q tests/integrations/test_skyrl.py
	python=$$($(PYTHON) tests/support/python_versions.py --interpreter 3.12); \
	if [ -z "$$python" ]; then echo "SKIPPED [1] tests/integrations/test_art.py: there is no Python 3.12"; exit 0; fi; \
	test -d build/trainers/art || $(BIN)/uv venv --quiet --python "$$python" build/trainers/art || exit 1; \
	$(BIN)/uv pip install --quiet --python build/trainers/art/bin/python -r tests/trainer_art.txt -e . && \
	$(BIN)/uv pip check --python build/trainers/art/bin/python && \
	build/trainers/art/bin/python -m pytest -q tests/integrations/test_art.py

test-clients: $(STAMP)  ## other people's clients of `rove serve`, in a separate virtual environment
	test -d build/clients || $(PYTHON) -m venv build/clients
	$(BIN)/uv pip install --quiet --python build/clients/bin/python -c constraints.txt -r tests/server_clients.txt
	ROVE_CLIENTS=$(CURDIR)/build/clients/bin/python $(BIN)/python -m pytest -q tests/server/test_clients.py

test-pythons:  ## the wheel on every Python of this machine; ARGS="--dependencies --extras" also with the lowest dependencies and each extra alone
	$(PYTHON) tests/support/python_versions.py $(ARGS)

test-notebook: $(STAMP)  ## notebooks/first_run.ipynb, with a kernel of Jupyter
	rm -rf build/notebook && $(BIN)/python -m pip install --quiet --target build/notebook "nbclient>=0.10" "ipykernel>=6.29"
	PYTHONPATH=$(CURDIR)/build/notebook $(BIN)/python -m pytest -q tests/docs/test_notebook.py

test-all: $(STAMP)  ## every test target once, and a table of what passed, failed and was skipped, and why
	$(BIN)/python tests/support/all_targets.py

campaign: $(STAMP)  ## thousands of faults in every command, and what must hold after each; ARGS="--faults 200" for a short one; continues
	$(BIN)/python benchmarks/campaign/campaign.py $(ARGS)

bench-smoke: $(STAMP)  ## whether rove is as fast as recorded in benchmarks/smoke.json, in five minutes; ARGS=--record records
	$(BIN)/python benchmarks/smoke.py $(ARGS)

coverage: $(STAMP)  ## line and branch coverage of the quick tests per package; ARGS="tests/core" for some of them
	rm -rf build/coverage && $(BIN)/python -m pip install --quiet --target build/coverage "coverage>=7.10"
	$(BIN)/python tests/support/coverage_table.py $(ARGS)

fuzz: $(STAMP)  ## fuzz every parser of foreign bytes; ARGS="--minutes 120 chat_request verdict" for a time and some targets
	test -d build/fuzz-tools || $(BIN)/python -m pip install --quiet --target build/fuzz-tools "atheris>=3.0"
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support:$(CURDIR)/build/fuzz-tools $(BIN)/python -m tests.fuzz.fuzz $(ARGS)

mutation: $(STAMP)  ## change sampled places of the code, and count the changes that the quick tests notice; ARGS="--mutants 10 rove/train/losses.py" for some; continues
	test -d build/mutation/cosmic-ray || $(BIN)/python -m pip install --quiet --target build/mutation/cosmic-ray "cosmic-ray>=8.7"
	test -d build/mutation/coverage || $(BIN)/python -m pip install --quiet --target build/mutation/coverage "coverage>=7.10"
	$(BIN)/python tests/support/mutation.py $(ARGS)

wheel: $(STAMP)
	$(BIN)/python -m build --wheel

release:  ## check all that a release needs, and leave its files in dist/; ARGS=--rehearsal before there is a tag (docs/releasing.md)
	test -d build/release || $(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet -r tests/release.txt
	build/release/bin/python tests/support/release.py $(ARGS)

docker:  ## the image of the Dockerfile, and an evaluation in it; nothing where Docker does not run
	@if docker info >/dev/null 2>&1; then \
		docker build --tag rove . && docker run --rm rove eval tictactoe -m scripted:teacher -n 4 -r 1; \
	else echo "docker: skipped, because no Docker daemon answers"; fi

shim: $(STAMP)  ## the distribution that stands for verifiers, into dist/; docs/compat.md tells how to use it
	$(BIN)/python -m build --wheel --outdir dist shim

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist runs models .pytest_cache .ruff_cache .hypothesis
