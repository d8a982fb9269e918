# Slipstream in a container: on a CPU (the default), or with `--target gpu` on NVIDIA GPUs. See docs/deploy.md.
#
# Weights are not baked in: the first start fetches them into the volume /cache. pip takes torch's default build,
# which carries CUDA; for the CPU's much smaller one name PyTorch's CPU package index:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=... -t slipstream:cpu .

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS gpu-packages
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG FLASH_ATTN_CUDA_ARCHS="80;90;100;120"
ARG MAX_JOBS
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/venv
WORKDIR /app
COPY pyproject.toml .
RUN mkdir core scheduler server benchmarks \
 && touch README.md core/__init__.py scheduler/__init__.py server/__init__.py benchmarks/__init__.py \
 && pip install -e .
# Compiled against the torch just installed, which takes long, unless its makers offer a wheel for it.
RUN pip install ninja packaging psutil wheel \
 && pip install --no-build-isolation -e '.[gpu]' \
 && pip uninstall -y ninja psutil wheel

FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS gpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --home-dir /cache --no-create-home --shell /usr/sbin/nologin slipstream \
 && install --directory --owner=slipstream --group=slipstream /cache
COPY --from=gpu-packages /opt/venv /opt/venv
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH \
    HF_HOME=/cache/huggingface \
    SLIPSTREAM_CACHE_DIR=/cache \
    SLIPSTREAM_CONFIG=configs/gpu.yaml \
    SLIPSTREAM_SERVER__HOST=0.0.0.0 \
    SLIPSTREAM_SERVER__PORT=8000
USER 10001:10001
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); exit(c.getresponse().status != 200)"]
# tini passes a stop on to the server; one that was asked for and went well is exit code 0, not 143.
ENTRYPOINT ["tini", "-e", "143", "--", "slipstream"]
CMD ["serve"]
# Last, since it changes most often.
COPY . .

FROM debian:bookworm-slim AS cpu-packages
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/venv
WORKDIR /app
COPY pyproject.toml .
# An editable installation needs the packages' names, not their code: so a change of code installs nothing anew.
RUN mkdir core scheduler server benchmarks \
 && touch README.md core/__init__.py scheduler/__init__.py server/__init__.py benchmarks/__init__.py \
 && pip install -e . \
 && cd /opt/venv/lib/python3*/site-packages/torch && rm -rf bin/test_* include test

FROM debian:bookworm-slim AS cpu
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --home-dir /cache --no-create-home --shell /usr/sbin/nologin slipstream \
 && install --directory --owner=slipstream --group=slipstream /cache
COPY --from=cpu-packages /opt/venv /opt/venv
WORKDIR /app
ENV PATH=/opt/venv/bin:$PATH \
    HF_HOME=/cache/huggingface \
    SLIPSTREAM_CACHE_DIR=/cache \
    SLIPSTREAM_CONFIG=configs/demo.yaml \
    SLIPSTREAM_SERVER__HOST=0.0.0.0 \
    SLIPSTREAM_SERVER__PORT=8000
USER 10001:10001
VOLUME /cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health'); exit(c.getresponse().status != 200)"]
# tini passes a stop on to the server; one that was asked for and went well is exit code 0, not 143.
ENTRYPOINT ["tini", "-e", "143", "--", "slipstream"]
CMD ["serve"]
# Last, since it changes most often.
COPY . .
