# SPDX-License-Identifier: Apache-2.0
# trainyard-agent and its trainer on a machine with NVIDIA GPUs. Build from the root of the repository:
#   docker build -f docker/worker-cuda.Dockerfile -t trainyard/worker-cuda .
# Run it with NVIDIA's container toolkit, which brings the driver's libraries: docker run --gpus all …
# NVIDIA's image is an Ubuntu, whose names of packages are not those of docker/apt-packages.txt.
FROM nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 AS build
WORKDIR /src
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ gcc libarchive-dev libcmocka-dev \
    libcurl4-openssl-dev libgloo-dev libjansson-dev libjpeg-dev libjwt-dev libmicrohttpd-dev libnccl-dev \
    libpcre2-dev libpng-dev libpq-dev libssl-dev meson ninja-build npm pkg-config python3
COPY . .
RUN meson setup /build -Dbuildtype=release -Dcuda=enabled \
 && ninja -C /build workers/agent/trainyard-agent workers/trainer/trainyard-trainer \
 && python3 docker/gpt2_tokenizer.py /tokenizers \
 && docker/runtime-packages.sh /build/workers/agent/trainyard-agent \
    /build/workers/trainer/trainyard-trainer > /runtime-packages.txt

# cuBLASLt, cuDNN 9 and NCCL are loaded when the trainer runs: no package of ldd's list brings them, the image has them.
FROM nvidia/cuda:13.0.1-cudnn-runtime-ubuntu24.04
COPY --from=build /runtime-packages.txt /usr/share/trainyard/
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libnccl2 $(cat /usr/share/trainyard/runtime-packages.txt) \
 && rm -rf /var/lib/apt/lists/* \
 && for library in libcublasLt.so.13 libcudnn.so.9 libnccl.so.2; do \
      ldconfig -p | grep -q "$library" || { echo "$library is missing" >&2; exit 1; }; done \
 && useradd --system --home-dir /var/lib/trainyard --create-home trainyard \
 && install -d -o trainyard /var/lib/trainyard/work
COPY --from=build /build/workers/agent/trainyard-agent /build/workers/trainer/trainyard-trainer /usr/bin/
COPY --from=build /tokenizers /usr/share/trainyard/tokenizers
ENV TRAINYARD_WORK_DIR=/var/lib/trainyard/work \
    TRAINYARD_TRAINER=/usr/bin/trainyard-trainer \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER trainyard
STOPSIGNAL SIGTERM
ENTRYPOINT ["trainyard-agent"]
