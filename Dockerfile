# One image for operator, planner, router and workers; the command chooses which (`disagg --help` lists them).
#
#   docker build -t disagg:dev .
#   docker build -t disagg:dev --build-arg BASE_IMAGE=debian-with-python3-venv .
#
# The base needs Python 3.11 or newer with venv, and the certificates of the authorities that it trusts.
ARG BASE_IMAGE=python:3.11-slim-bookworm

# Our own code as a wheel, unpacked where it will lie in the environment of the last stage.
FROM ${BASE_IMAGE} AS wheel
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir "build" "hatchling>=1.27"
WORKDIR /src
COPY . .
RUN /opt/build/bin/python -m build --wheel --no-isolation --outdir /dist \
 && /opt/build/bin/pip install --no-deps --no-index --prefix /opt/app /dist/*.whl \
 && sed -i '1s|.*|#!/opt/disagg/env/bin/python|' /opt/app/bin/* \
 && python3 -m compileall -q /opt/app/lib

FROM ${BASE_IMAGE}
ARG UV_VERSION=0.13.9
LABEL org.opencontainers.image.title="disagg" \
      org.opencontainers.image.description="Control plane for disaggregated LLM serving" \
      org.opencontainers.image.licenses="Apache-2.0"
# Dependencies come from the lock file alone, so a change of our own code leaves this large layer as it is.
# What installs them leaves again; tests that they ship inside their packages go too (a fifth of the size).
COPY pyproject.toml uv.lock /opt/disagg/locked/
RUN export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
 && python3 -m venv /opt/build \
 && /opt/build/bin/pip install --disable-pip-version-check --no-cache-dir "uv==${UV_VERSION}" \
 && cd /opt/disagg/locked \
 && UV_PROJECT_ENVIRONMENT=/opt/disagg/env /opt/build/bin/uv sync --python "$(command -v python3)" \
      --no-python-downloads --no-cache --link-mode copy --frozen --no-dev --no-install-project \
 && rm -rf /opt/build \
 && find /opt/disagg/env -type d -name tests -prune -exec rm -rf {} + \
 && python3 -m compileall -q -j 0 /opt/disagg/env/lib
# Nothing is written outside /tmp, so the root file system can be read-only.
ENV PATH=/opt/disagg/env/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
COPY --from=wheel /opt/app /opt/disagg/env
RUN disagg --version
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["disagg"]
CMD ["--help"]
