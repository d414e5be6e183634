# The embedded engine: the same package, and torch. `make images` builds it. PYTHON: the base, as for the gateway.
# Plain torch may include CUDA, several GB. For the CPU only, name PyTorch's index of CPU builds:
#   ... --build-arg TORCH_INDEX=URL
ARG PYTHON=docker.io/library/python:3.11-slim
FROM ${PYTHON} AS build
ARG TORCH_INDEX=
RUN python -m venv /opt/radixgate
COPY pyproject.toml README.md LICENSE /src/
# Torch comes first and alone, so that its layer is reused after every change of the code.
RUN torch=$(python -c 'import tomllib; print(tomllib.load(open("/src/pyproject.toml", "rb"))["project"]["optional-dependencies"]["engine"][0])') \
    && /opt/radixgate/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
COPY radix_cache /src/radix_cache
COPY policies /src/policies
COPY workers /src/workers
COPY gateway /src/gateway
RUN /opt/radixgate/bin/pip install --no-cache-dir '/src[engine,grammar]'

FROM ${PYTHON}
RUN groupadd --gid 10001 radixgate && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp radixgate
COPY --from=build /opt/radixgate /opt/radixgate
ENV PATH=/opt/radixgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 30000
ENTRYPOINT ["radixgate"]
CMD ["worker", "--help"]
