# The broker, compiled: docker build --tag warrenmq . && docker run -p 5672:5672 -v warren:/data warrenmq
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
# The versions with which this one was tested, also of what compiles it
ENV PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
RUN python -m venv /warren && WARREN_COMPILE=1 /warren/bin/pip install --no-cache-dir ".[management,otel]"

FROM python:3.13-slim
COPY --from=build /warren /warren
RUN useradd --system --no-create-home warren && install --directory --owner=warren --mode=0700 /data
USER warren
VOLUME /data
EXPOSE 5672 15672 15692
STOPSIGNAL SIGTERM
ENTRYPOINT ["/warren/bin/warren"]
# `guest` may log in from the loopback interface only: add a user with `warren ctl` (docs/deploy.md).
CMD ["broker", "--host", "0.0.0.0", "--data-dir", "/data"]
