# syntax=docker/dockerfile:1
# One image for every process; the last stage is what the chart runs, by naming a process as the
# command. The stages between are the same image with one process preset:
#   docker build --target api .
# BASE_IMAGE: Debian 12 or newer with python3 >= 3.11 and its venv module. The digest is of the index of
# all architectures, Python 3.11.16 of September 2026; docs/decisions/0041 says how it is renewed.
ARG BASE_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE_IMAGE} AS build
COPY requirements/runtime.txt /tmp/runtime.txt
# Only wheels: nothing is compiled, so nothing to compile with is needed. What installs goes again.
# Of the services that botocore describes only S3 and what gives credentials for it is kept.
# Two builds of a commit are equal: sets are compiled in one order, and no module keeps a time (-f:
# also those that are compiled already).
RUN python3 -m venv /opt/gateway && \
    /opt/gateway/bin/pip install --quiet --no-cache-dir --no-compile --only-binary :all: \
        --disable-pip-version-check --require-hashes -r /tmp/runtime.txt && \
    /opt/gateway/bin/pip uninstall --quiet --yes pip setuptools && \
    packages="$(/opt/gateway/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
    find "${packages}/botocore/data" -mindepth 1 -maxdepth 1 -type d \
        ! -name s3 ! -name sts ! -name sso ! -name sso-oidc -exec rm -r {} + && \
    echo /opt/gateway/src > "${packages}/gateway.pth" && \
    PYTHONHASHSEED=0 /opt/gateway/bin/python -m compileall -q -f -j 0 --invalidation-mode unchecked-hash "${packages}"
COPY core/gateway_core /opt/gateway/src/gateway_core
COPY web/gateway_web /opt/gateway/src/gateway_web
COPY apiserver/gateway_apiserver /opt/gateway/src/gateway_apiserver
COPY mcpserver/gateway_mcpserver /opt/gateway/src/gateway_mcpserver
COPY operator/gateway_operator /opt/gateway/src/gateway_operator
COPY cli/gateway_cli /opt/gateway/src/gateway_cli
COPY simulator/gateway_simulator /opt/gateway/src/gateway_simulator
RUN printf '%s\n' '#!/opt/gateway/bin/python' 'from gateway_cli.__main__ import main' 'main()' \
        > /opt/gateway/bin/gatewayctl && chmod 755 /opt/gateway/bin/gatewayctl && \
    PYTHONHASHSEED=0 /opt/gateway/bin/python -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /opt/gateway/src

FROM ${BASE_IMAGE} AS runtime
# The chart's own Redis, with Debian's security fixes as of the build; upgrades are those of the base's other
# packages. redis-tools has the program (redis-check-rdb is redis-server by another name), the package
# redis-server only what starts it on a machine.
RUN apt-get update --quiet && \
    apt-get upgrade --quiet --yes --no-install-recommends && \
    apt-get install --quiet --yes --no-install-recommends redis-tools && \
    ln -s redis-check-rdb /usr/bin/redis-server && \
    redis-server --version && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/apt /var/log/dpkg.log
COPY --from=build /opt/gateway /opt/gateway
RUN echo 'gateway:x:10001:10001:Model Gateway:/nonexistent:/usr/sbin/nologin' >> /etc/passwd && \
    echo 'gateway:x:10001:' >> /etc/group
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /
# a number, so that Kubernetes can tell without a look inside that it is not root
USER 10001:10001

FROM runtime AS api
EXPOSE 8080
CMD ["python", "-m", "gateway_apiserver", "api"]

FROM runtime AS mcp
EXPOSE 8080
CMD ["python", "-m", "gateway_mcpserver"]

FROM runtime AS media
EXPOSE 8081
CMD ["python", "-m", "gateway_apiserver", "media"]

FROM runtime AS operator
EXPOSE 8082
CMD ["python", "-m", "gateway_operator"]

FROM runtime AS simulator
EXPOSE 9010
CMD ["python", "-m", "gateway_simulator"]

FROM runtime
LABEL org.opencontainers.image.title="model-gateway" \
      org.opencontainers.image.licenses="Apache-2.0"
CMD ["gatewayctl", "--help"]
