# rove on a CPU: evaluation, data, SFT and RL. `make docker` builds this image and runs an evaluation in it.
FROM python:3.12-slim AS wheel
WORKDIR /source
COPY . .
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist

FROM python:3.12-slim
# The C kernels for attention are compiled on first use (docs/decisions/kernels.md).
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
RUN pip install --no-cache-dir torch --constraint /tmp/constraints.txt --index-url https://download.pytorch.org/whl/cpu
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir "$(ls /dist/*.whl)[train]" && rm -r /dist
# Environments and models write code; no part of rove needs root.
RUN useradd --create-home rove && mkdir /data && chown rove /data
USER rove
WORKDIR /data
ENTRYPOINT ["rove"]
CMD ["--help"]
