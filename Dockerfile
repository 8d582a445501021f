# A mount is made inside the container; to run it and read the data there:
#
#   docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined \
#     -e FASTFUSE_SOURCE=s3://BUCKET/PREFIX -e FASTFUSE_REGION=eu-west-1 fastfuse mount
#
# For the host or another container to see it, mount it below a shared bind mount:
#
#   --mount type=bind,source=/mnt/data,target=/mnt/data,bind-propagation=rshared   ... mount --allow-other s3://... /mnt/data/x
#
# It runs as root: mounting takes CAP_SYS_ADMIN, and --cap-add gives that to root only.

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libfuse3-dev libssl-dev pkg-config python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/fastfuse
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY fastfuse ./fastfuse
RUN /opt/fastfuse/bin/pip install --no-cache-dir . \
    && /opt/fastfuse/bin/pip uninstall -y pip setuptools

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates fuse3 libssl3 python3 \
    && rm -rf /var/lib/apt/lists/*
# At the path it was built for: the scripts of a virtual environment name their interpreter.
COPY --from=build /opt/fastfuse /opt/fastfuse
ENV PATH=/opt/fastfuse/bin:$PATH
ENTRYPOINT ["fastfuse"]
CMD ["--help"]
