# SPDX-License-Identifier: Apache-2.0
FROM debian:12 AS build
COPY docker/none.txt docker/
COPY . .
RUN meson setup /build \
 && ninja -C /build server/trainyard-server server/trainyard-lost \
 && docker/lost.sh /build/server/trainyard-server > /list.txt
FROM debian:12-slim
COPY --from=build /list.txt /other.txt /usr/share/
COPY --from=builder /build/server/trainyard-server /usr/bin/
