"""JupyterHub for a class on one shared GPU; put your own authenticator and address in.

    jupyterhub -f jupyterhub_config.py

What it sets is explained in docs/classroom.md: measurements take turns, each kernel has a share of
the GPU's memory, and idle kernels end.
"""

c = get_config()  # noqa: F821

# Who may come in, and from where: yours to choose. As it stands, only this machine is served, and
# PAM (the machine's own users) decides.
c.JupyterHub.bind_url = "http://127.0.0.1:8000"
c.Authenticator.allow_all = True

# The students' servers run in gpulab's own environment (with `pip install jupyterhub` in it), so
# that they have its kernel and instruments.
# c.Spawner.cmd = ["/srv/gpulab/.venv/bin/jupyterhub-singleuser"]
c.Spawner.default_url = "/lab"
# Importing PyTorch from a disk that thirty students read at once takes a while.
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 120

c.Spawner.environment = {
    # The most that PyTorch takes on each GPU in one kernel: with 80 GB and 30 students of whom 8
    # compute at once, a tenth.
    "GPULAB_GPU_MEMORY": "10 %",
    # One folder for all students, so that measurements take turns. Make it once:
    # install -d -m 1777 /var/lib/gpulab/turns
    "GPULAB_LOCK_DIR": "/var/lib/gpulab/turns",
    # "show", "after-attempt" or "withhold".
    "GPULAB_SOLUTIONS": "after-attempt",
    # The environment is not the students' own, and there Jupyter would take a python3 kernel in a
    # student's home before the course's.
    "JUPYTER_PREFER_ENV_PATH": "1",
}

# A kernel that was idle for 20 minutes ends and gives its memory on the GPU back, also where its
# page is still open. Notebooks stay; their variables are gone, and "Run All" brings them back.
c.Spawner.args = [
    "--MappingKernelManager.cull_idle_timeout=1200",
    "--MappingKernelManager.cull_interval=60",
    "--MappingKernelManager.cull_connected=True",
]
