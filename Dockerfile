# A mount is made inside the container; to run it and read the data there:
#
#   docker run --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined --stop-timeout 60 \
#     -e FASTFUSE_SOURCE=s3://BUCKET/PREFIX -e FASTFUSE_REGION=eu-west-1 fastfuse mount
#
# For the host or another container to see it, mount it below a shared bind mount:
#
#   --mount type=bind,source=/mnt/data,target=/mnt/data,bind-propagation=rshared   ... mount --allow-other s3://... /mnt/data/x
#
# It runs as root: mounting takes CAP_SYS_ADMIN, and --cap-add gives that to root only. What serves the reads becomes
# nobody. In Kubernetes user 65532 serves what a helper mounts: see docs/KUBERNETES.md.

FROM debian:bookworm-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libfuse3-dev libssl-dev libxxhash-dev pkg-config python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/fastfuse
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY fastfuse ./fastfuse
# Nobody imports the tests of libraries, what numpy compiles others with, or the services of AWS that give no credentials.
RUN /opt/fastfuse/bin/pip install --no-cache-dir . \
    && /opt/fastfuse/bin/pip uninstall -y pip setuptools \
    && cd /opt/fastfuse/lib/python3*/site-packages \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && rm -rf numpy/_core/include numpy/_core/lib numpy/f2py fastfuse/*/*.c fastfuse/*/*/*.c \
    && find botocore/data -mindepth 1 -maxdepth 1 -type d \
        ! -name s3 ! -name signin ! -name sso ! -name sso-oidc ! -name sts -exec rm -rf {} + \
    && strip --strip-unneeded fastfuse/*/*.so fastfuse/*/*/*.so pyfuse3/*.so

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates fuse3 libssl3 python3 \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log \
    && groupadd --gid 65532 fastfuse \
    && useradd --uid 65532 --gid 65532 --no-create-home --home-dir / --shell /usr/sbin/nologin fastfuse
# At the path it was built for: the scripts of a virtual environment name their interpreter.
COPY --from=build /opt/fastfuse /opt/fastfuse
ENV PATH=/opt/fastfuse/bin:$PATH
# Healthy once something is mounted and served here; a helper, and what mounts through one, always is. An outage of S3 is
# no reason to end a container, nor is another container's mount, which gives no answer here. A listing may take as long
# as the first period.
HEALTHCHECK --interval=30s --timeout=10s --start-period=10m \
    CMD { [ -n "$FASTFUSE_FUSE_SOCKET" ] || grep -q " fuse.fastfuse " /proc/self/mounts || grep -Eqz "^(fuse-helper|.*fuse.socket.*)$" /proc/1/cmdline; } \
        && ! fastfuse status --json | grep -Eq '"state": "(dead|no worker)"'
ENTRYPOINT ["fastfuse"]
CMD ["--help"]
