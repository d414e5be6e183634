# The gateway, without torch, with all extras that the chart's values can ask for. `make images` builds it. PYTHON: the
# base, which a digest pins: --build-arg PYTHON=docker.io/library/python:3.11-slim@sha256:...
ARG PYTHON=docker.io/library/python:3.11-slim
FROM ${PYTHON} AS build
RUN python -m venv /opt/radixgate
COPY pyproject.toml README.md LICENSE /src/
COPY radix_cache /src/radix_cache
COPY policies /src/policies
COPY workers /src/workers
COPY gateway /src/gateway
RUN /opt/radixgate/bin/pip install --no-cache-dir '/src[ext-proc,oidc,parquet,postgres,s3]'

FROM ${PYTHON}
# A numeric user, so that Kubernetes can see that it is not root.
RUN groupadd --gid 10001 radixgate && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp radixgate
COPY --from=build /opt/radixgate /opt/radixgate
ENV PATH=/opt/radixgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 8001
ENTRYPOINT ["radixgate"]
CMD ["serve", "--config", "/etc/radixgate/gateway.yaml"]
