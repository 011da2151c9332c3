# SPDX-License-Identifier: Apache-2.0
# trainyard-server and trainyard-billing. Build from the root of the repository:
#   docker build -f docker/server.Dockerfile -t trainyard/server .
FROM debian:12 AS build
WORKDIR /src
COPY docker/apt-packages.txt docker/
RUN apt-get update \
 && apt-get install -y --no-install-recommends $(cat docker/apt-packages.txt)
COPY . .
RUN meson setup /build -Dbuildtype=release \
 && ninja -C /build server/trainyard-server billing/trainyard-billing \
 && docker/runtime-packages.sh /build/server/trainyard-server /build/billing/trainyard-billing \
    > /runtime-packages.txt

FROM debian:12-slim
COPY --from=build /runtime-packages.txt /usr/share/trainyard/
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates $(cat /usr/share/trainyard/runtime-packages.txt) \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --home-dir /var/lib/trainyard --create-home trainyard \
 && install -d -o trainyard /var/lib/trainyard/blobs
COPY --from=build /build/server/trainyard-server /build/billing/trainyard-billing /usr/bin/
COPY migrations /usr/share/trainyard/migrations
ENV TRAINYARD_MIGRATIONS_DIR=/usr/share/trainyard/migrations \
    TRAINYARD_DATA_DIR=/var/lib/trainyard/blobs \
    TRAINYARD_API_ADDRESS=0.0.0.0 \
    TRAINYARD_AGENT_ADDRESS=0.0.0.0
USER trainyard
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["trainyard-server"]
CMD ["serve"]
