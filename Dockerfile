# The bridge in an image: what requirements.lock holds and nothing else, as a user who is not root. `scripts/build-image`
# builds it, also where there is no Docker. There is no agent in it: build your own image on this one with the agents
# that you use, or let the bridge attach to agents elsewhere.

FROM python:3.13-slim AS build
WORKDIR /src
# Index settings and a certificate bundle of the machine that builds come as secrets, if at all, and stay out of the image.
COPY requirements.lock requirements-dev.lock ./
# What builds wheels is pinned in the development lock; it goes into a virtual environment of its own, which stays here.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=certificates \
    awk '/^[a-z]/ { keep = /^(hatchling|packaging|pathspec|pluggy|setuptools|tomlkit|trove-classifiers)==/ } keep' \
        requirements-dev.lock >build.lock \
 && python -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes -r build.lock \
 && /build/bin/pip wheel --no-cache-dir --no-build-isolation --require-hashes --wheel-dir /wheels -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY bridge bridge
RUN /build/bin/pip wheel --no-index --no-build-isolation --no-deps --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/acp-matrix-bridge \
 && /build/bin/pip --python /opt/acp-matrix-bridge/bin/python install --no-index --no-deps /wheels/*.whl

FROM python:3.13-slim
COPY --from=build /opt/acp-matrix-bridge /opt/acp-matrix-bridge
RUN groupadd --system --gid 990 bridge \
 && useradd --system --uid 990 --gid 990 --home-dir /var/lib/acp-matrix-bridge --shell /usr/sbin/nologin bridge \
 && install -d -o bridge -g bridge -m 0700 /var/lib/acp-matrix-bridge \
 && install -d -m 0755 /etc/acp-matrix-bridge
ENV PATH=/opt/acp-matrix-bridge/bin:$PATH \
    HOME=/var/lib/acp-matrix-bridge \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER bridge
# The state: `state_dir` in the config, which is looked for in /etc/acp-matrix-bridge/config.toml.
VOLUME /var/lib/acp-matrix-bridge
WORKDIR /var/lib/acp-matrix-bridge
STOPSIGNAL SIGTERM
ENTRYPOINT ["acp-matrix-bridge"]
CMD ["run"]
