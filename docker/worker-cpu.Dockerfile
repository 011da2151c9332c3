# SPDX-License-Identifier: Apache-2.0
# trainyard-agent and its trainer on a machine without GPUs. Build from the root of the repository:
#   docker build -f docker/worker-cpu.Dockerfile -t trainyard/worker-cpu .
FROM debian:12 AS build
WORKDIR /src
COPY docker/apt-packages.txt docker/
RUN apt-get update \
 && apt-get install -y --no-install-recommends $(cat docker/apt-packages.txt)
COPY . .
RUN meson setup /build -Dbuildtype=release \
 && ninja -C /build workers/agent/trainyard-agent workers/trainer/trainyard-trainer \
 && python3 docker/gpt2_tokenizer.py /tokenizers \
 && docker/runtime-packages.sh /build/workers/agent/trainyard-agent \
    /build/workers/trainer/trainyard-trainer > /runtime-packages.txt

FROM debian:12-slim
COPY --from=build /runtime-packages.txt /usr/share/trainyard/
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates $(cat /usr/share/trainyard/runtime-packages.txt) \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --home-dir /var/lib/trainyard --create-home trainyard \
 && install -d -o trainyard /var/lib/trainyard/work
COPY --from=build /build/workers/agent/trainyard-agent /build/workers/trainer/trainyard-trainer /usr/bin/
COPY --from=build /tokenizers /usr/share/trainyard/tokenizers
ENV TRAINYARD_WORK_DIR=/var/lib/trainyard/work \
    TRAINYARD_TRAINER=/usr/bin/trainyard-trainer
USER trainyard
STOPSIGNAL SIGTERM
ENTRYPOINT ["trainyard-agent"]
