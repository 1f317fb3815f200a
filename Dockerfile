# kgpu's one image: operator, agent and every operand. `kgpu lab image` makes the same without a container tool.
#
#   docker build -t registry.example/kgpu:0.1.0 . && docker push registry.example/kgpu:0.1.0
#   helm install kgpu charts/kgpu -n gpu-operator --create-namespace --set image.repository=registry.example/kgpu
ARG PYTHON=3.13-slim

FROM python:${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY native native
# A virtual environment at the place where it will run; modules are compiled, so that a pod starts at once.
RUN python -m venv --without-pip /opt/kgpu \
    && pip --python /opt/kgpu/bin/python install --no-cache-dir --no-compile --constraint constraints.txt . \
    && /opt/kgpu/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/kgpu/lib \
    && cd /opt/kgpu/bin \
    && for name in $(./python -c 'from kgpu.formats.programs import LINKS; print(*LINKS)'); do ln -sf kgpu "$name"; done

FROM python:${PYTHON}
LABEL org.opencontainers.image.title=kgpu org.opencontainers.image.licenses=Apache-2.0
# Pods of the operator run as this user; the agent's pods say themselves that they are root.
RUN groupadd --gid 65532 kgpu && useradd --uid 65532 --gid 65532 --no-create-home --home-dir /tmp kgpu
COPY --from=build /opt/kgpu /opt/kgpu
# The replaced images have their programs in /usr/bin, and some manifests say so.
RUN for name in $(/opt/kgpu/bin/python -c 'from kgpu.formats.programs import LINKS; print(*LINKS)'); \
    do ln -s /opt/kgpu/bin/kgpu "/usr/bin/$name"; done
ENV PATH=/opt/kgpu/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
# kgpu, or the replaced program of a manifest that names none: kgpu/cli/entrypoint.py.
ENTRYPOINT ["/opt/kgpu/bin/kgpu-entrypoint"]
