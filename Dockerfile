# The course in a container.
#
#   docker build -t gpulab .                              without a GPU
#   docker build -t gpulab --build-arg STACK=cuda13 .     for an NVIDIA GPU (driver 580 or newer; cuda12 for 525 or newer)
#   docker run --rm -it --network host --shm-size=1g -v gpulab-work:/home/student/work gpulab    and --gpus all with a GPU
#
# JupyterLab listens on the loopback address alone, here as everywhere, so the container shares the host's network (Docker Desktop:
# "Enable host networking" in its settings); the volume keeps the learner's copies of the notebooks. Docker's own 64 MB of shared memory
# hold too few batches for the loading of notebook 06.
FROM python:3.12-slim
ARG STACK=cpu
ENV GPULAB_STACK=$STACK
# torch.compile on a CPU needs g++.
RUN apt-get update && apt-get install -y --no-install-recommends make g++ && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home student && mkdir /home/student/work /home/student/gpulab && chown -R student /home/student
USER student
WORKDIR /home/student/gpulab
COPY --chown=student . .
# Without the copies that pip keeps of what it downloads.
RUN PIP_NO_CACHE_DIR=1 make env
CMD ["make", "lab", "ARGS=--no-browser --dir /home/student/work"]
