# Two images: `web` (pages, web worker, beat, one-off set-up) and `gpu-worker` (the same code with
# the serving engine in an environment of its own). compose.yaml starts both.

FROM python:3.11-slim-bookworm AS web
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app
COPY requirements.lock ./
RUN pip install --require-hashes --requirement requirements.lock
COPY manage.py pyproject.toml LICENSE ./
COPY calculator/ calculator/
COPY runner/ runner/
COPY webapp/ webapp/
COPY templates/ templates/
COPY static/ static/
# Compiled here, as the running containers cannot write into their own image.
RUN python -m compileall -q calculator runner webapp \
 && useradd --system --uid 10001 --user-group --no-create-home --home-dir /nonexistent draftproof \
 && install --directory --owner=draftproof --group=draftproof --mode=0750 /var/lib/draftproof
ENV DRAFTPROOF_VAR_DIR=/var/lib/draftproof
USER draftproof
EXPOSE 8000
CMD ["python", "-m", "gunicorn", "webapp.wsgi:application", "--bind=0.0.0.0:8000", "--worker-class=gthread", "--workers=2", "--threads=8", "--timeout=30", "--graceful-timeout=30", "--max-requests=2000", "--max-requests-jitter=200", "--worker-tmp-dir=/dev/shm", "--no-control-socket"]

FROM web AS gpu-worker
USER root
# The engine compiles small kernels at its first start.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc g++ libc6-dev \
 && rm -rf /var/lib/apt/lists/*
# The extra `engine-gpu` of pyproject.toml, in its own environment and out of the volume's way.
RUN DRAFTPROOF_VAR_DIR=/opt/draftproof python -m runner engine install --kind gpu
ENV ENGINE_PYTHON=/opt/draftproof/engines/gpu/bin/python
USER draftproof
CMD ["python", "-m", "celery", "-A", "webapp.celery", "worker", "--queues=gpu", "--hostname=gpu@%h", "--concurrency=1", "--max-tasks-per-child=1", "--prefetch-multiplier=1", "--disable-prefetch", "--without-gossip", "--without-mingle", "--loglevel=INFO"]
