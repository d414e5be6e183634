# The gateway, without torch. Build from the top of the repository:
#   docker build -f helm/images/gateway.Dockerfile -t localhost/radixgate/gateway:0.1.0 .
FROM python:3.11-slim AS build
RUN python -m venv /opt/radixgate
COPY pyproject.toml README.md LICENSE /src/
COPY radix_cache /src/radix_cache
COPY policies /src/policies
COPY workers /src/workers
COPY gateway /src/gateway
RUN /opt/radixgate/bin/pip install --no-cache-dir '/src[oidc,postgres]'

FROM python:3.11-slim
# A numeric user, so that Kubernetes can see that it is not root.
RUN groupadd --gid 10001 radixgate && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp radixgate
COPY --from=build /opt/radixgate /opt/radixgate
ENV PATH=/opt/radixgate/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000 8001
ENTRYPOINT ["radixgate"]
CMD ["serve", "--config", "/etc/radixgate/gateway.yaml"]
