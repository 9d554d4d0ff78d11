# syntax=docker/dockerfile:1
# The image of spark-usher: one static binary and the root CAs, nothing else. It does not run as root.
#   docker build -t spark-usher .
# Base images are pinned by version here. To publish an image, pin them by digest (docker buildx imagetools inspect).

FROM rust:1.95.0-alpine3.22 AS build
# ring and mimalloc compile C code.
# hadolint ignore=DL3018
RUN apk add --no-cache build-base ca-certificates
WORKDIR /src
COPY Cargo.toml Cargo.lock rust-toolchain.toml ./
COPY benches benches
COPY src src
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --no-default-features --locked --bin spark-usher && cp target/release/spark-usher /spark-usher

FROM scratch
LABEL org.opencontainers.image.title="spark-usher" \
      org.opencontainers.image.description="Admission webhook and controller for Apache Spark executors on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /spark-usher /spark-usher
USER 65532:65532
EXPOSE 8443 8080
ENTRYPOINT ["/spark-usher"]
